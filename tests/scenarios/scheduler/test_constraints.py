"""Rules of pods on a real control plane: the gpu-scheduler decides as kube-scheduler does.

Each case is played twice, on twin nodes: once with pods for the gpu-scheduler, once with the same pods for
kube-scheduler. In every case at most one node is right, so both must choose the same, or both must wait.
"""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from controlplane.api import Json
from controlplane.cluster import Cluster
from tests.support import scheduler_stage as stages
from tests.support.neighbour_oracle import REQUIRED
from tests.support.scheduler_stage import Stage, pod, until

SIDES = ("ours", "theirs")
ZONE = "topology.kubernetes.io/zone"
LAYOUT = {"n0": "x", "n1": "x", "n2": "y"}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
STORAGE = "/apis/storage.k8s.io/v1/csinodes"
DRIVER = "csi.example"


class Twins:
    """Nodes n0 and n1 in zone x and n2 in zone y, for either side; pods on them, by side and name."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.api = stage, stage.cluster.api
        for side in SIDES:
            for name, zone in LAYOUT.items():
                labels = {"side": side, "host": name, ZONE: f"{zone}-{side}"}
                stage.gpu_nodes(1, prefix=f"{stage.namespace}-{side}-{name}", gpus=8, labels=labels)
        stage.scheduler(leaderElect=False, releaseSeconds=0)

    def node(self, side: str, name: str) -> str:
        return f"{self.stage.namespace}-{side}-{name}-0"

    def put(self, side: str, name: str, *, on: str = "", **spec: Any) -> str:
        """Create a pod, bound to a node of its side already or to be scheduled; return its name."""
        labels = {"side": side, **spec.pop("labels", {})}
        made = pod(f"{side}-{name}-{uuid4().hex[:5]}", meta={"labels": labels}, **spec)
        made["spec"]["nodeSelector"] = {"side": side, **made["spec"].get("nodeSelector", {})}
        made["spec"]["schedulerName"] = "default-scheduler"
        if on:
            made["spec"]["nodeName"] = self.node(side, on)
        elif side == "ours":
            made["metadata"]["annotations"]["gpu.scheduling/gpus"] = "1"
            made["spec"]["schedulerName"] = self.stage.scheduler_name
        return str(self.stage.create(made)[0]["metadata"]["name"])

    def chosen(self, name: str) -> str:
        """Return to which node of its side a pod was bound; empty if it was told that it does not fit."""

        def answer() -> str | None:
            seen = self.stage.pod(name)
            conditions = seen.get("status", {}).get("conditions", [])
            refused = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
            return seen["spec"].get("nodeName") or ("refused" if refused else None)

        found = until(answer, f"{name} is bound or refused", 60)
        return "" if found == "refused" else found.split("-")[-2]

    def volume(self, side: str, name: str, *, mode: str = "ReadWriteOnce", **labels: str) -> Json:
        """Create a volume that is bound to a claim; return what a pod mounts."""
        key = f"{side}-{name}-{uuid4().hex[:5]}"
        common = {"accessModes": [mode], "storageClassName": ""}
        reference = {"namespace": self.stage.namespace, "name": key}
        volume = {
            "metadata": {"name": key, "labels": labels},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "csi": {"driver": DRIVER, "volumeHandle": key},
                "claimRef": reference,
            },
        }
        claim = {
            "metadata": {"name": key},
            "spec": {**common, "volumeName": key, "resources": {"requests": {"storage": "1Gi"}}},
        }
        self.api.request("POST", "/api/v1/persistentvolumes", volume)
        path = f"/api/v1/namespaces/{self.stage.namespace}/persistentvolumeclaims"
        self.api.request("POST", path, claim)
        until(
            lambda: self.api.request("GET", f"{path}/{key}").get("status", {}).get("phase") == "Bound",
            "the claim is bound",
            60,
        )
        return {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": key}}]}


@pytest.fixture(scope="module")
def twins(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    stages.install(cluster)
    name = f"twins-{uuid4().hex[:6]}"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"team": name}}})
    stage = Stage(cluster, name, tmp_path_factory.mktemp("twins"), name, f"scheduler-{name}")
    yield Twins(stage)
    stage.close()
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


def selects(side: str, app: str) -> Json:
    return {"labelSelector": {"matchLabels": {"side": side, "app": app}}}


def rule(kind: str, side: str, app: str, key: str, **more: Any) -> Json:
    return {kind: {REQUIRED: [{"topologyKey": key, **selects(side, app), **more}]}}


def spread(side: str, app: str, key: str = ZONE, **more: Any) -> list[Json]:
    common = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**common, **selects(side, app), **more}]


def anti_affinity(twins: Twins, side: str) -> str:
    twins.put(side, "db", on="n0", labels={"app": "a"})
    return twins.put(side, "p", affinity=rule("podAntiAffinity", side, "a", ZONE))


def affinity(twins: Twins, side: str) -> str:
    twins.put(side, "db", on="n1", labels={"app": "b"})
    return twins.put(side, "p", affinity=rule("podAffinity", side, "b", "host"))


def affinity_of_namespaces(twins: Twins, side: str) -> str:
    twins.put(side, "db", on="n1", labels={"app": "c"})
    here = {"matchLabels": {"team": twins.stage.namespace}}
    return twins.put(side, "p", affinity=rule("podAffinity", side, "c", "host", namespaceSelector=here))


def affinity_elsewhere(twins: Twins, side: str) -> str:
    twins.put(side, "db", on="n1", labels={"app": "d"})
    return twins.put(side, "p", affinity=rule("podAffinity", side, "d", "host", namespaces=["default"]))


def others_anti_affinity(twins: Twins, side: str) -> str:
    twins.put(side, "far", on="n2", affinity=rule("podAntiAffinity", side, "e", ZONE))
    twins.put(side, "near", on="n0", affinity=rule("podAntiAffinity", side, "e", "host"))
    return twins.put(side, "p", labels={"app": "e"})


def even_spread(twins: Twins, side: str) -> str:
    twins.put(side, "q", on="n0", labels={"app": "f"})
    return twins.put(side, "p", labels={"app": "f"}, topologySpreadConstraints=spread(side, "f"))


def spread_over_too_few(twins: Twins, side: str) -> str:
    for node in ("n0", "n2"):
        twins.put(side, "q", on=node, labels={"app": "g"})
    rules = spread(side, "g", minDomains=3)
    return twins.put(side, "p", labels={"app": "g"}, topologySpreadConstraints=rules)


def spread_over_selected(twins: Twins, side: str) -> str:
    """Only the hosts of zone x count, so the one without a pod of the app is right."""
    twins.put(side, "q", on="n0", labels={"app": "h"})
    rules = spread(side, "h", "host")
    where = {ZONE: f"x-{side}"}
    return twins.put(side, "p", labels={"app": "h"}, topologySpreadConstraints=rules, nodeSelector=where)


def preferred_zone(twins: Twins, side: str) -> str:
    wish = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [f"y-{side}"]}]}
    return twins.put(side, "p", affinity={"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": wish}]}})


def zone_of_a_volume(twins: Twins, side: str) -> str:
    return twins.put(side, "p", **twins.volume(side, "zoned", **{ZONE: "elsewhere"}))


def volume_in_use(twins: Twins, side: str) -> str:
    mounted = twins.volume(side, "alone", mode="ReadWriteOncePod")
    twins.put(side, "user", on="n0", **mounted)
    return twins.put(side, "p", **mounted)


def volume_limit(twins: Twins, side: str) -> str:
    for name in ("n0", "n1"):
        node = twins.node(side, name)
        owner = twins.api.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
        driver = {"name": DRIVER, "nodeID": node, "topologyKeys": [], "allocatable": {"count": 1}}
        reference = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner}
        meta = {"name": node, "ownerReferences": [reference]}
        twins.api.request("POST", STORAGE, {"metadata": meta, "spec": {"drivers": [driver]}})
        twins.put(side, "user", on=name, **twins.volume(side, f"full-{name}"))
    return twins.put(side, "p", **twins.volume(side, "next"))


Case = Callable[[Twins, str], str]


@pytest.mark.parametrize(
    ("case", "right"),
    [
        pytest.param(anti_affinity, "n2", id="anti-affinity"),
        pytest.param(affinity, "n1", id="affinity"),
        pytest.param(affinity_of_namespaces, "n1", id="affinity with a namespace selector"),
        pytest.param(affinity_elsewhere, "", id="affinity to another namespace"),
        pytest.param(others_anti_affinity, "n1", id="anti-affinity of others"),
        pytest.param(even_spread, "n2", id="spread"),
        pytest.param(spread_over_too_few, "", id="spread over fewer domains than demanded"),
        pytest.param(spread_over_selected, "n1", id="spread over selected nodes"),
        pytest.param(preferred_zone, "n2", id="preferred node affinity"),
        pytest.param(zone_of_a_volume, "", id="zone label of a volume"),
        pytest.param(volume_in_use, "", id="volume for one pod"),
        pytest.param(volume_limit, "n2", id="limit on attached volumes"),
    ],
)
def test_gpu_scheduler_and_kube_scheduler_agree(twins: Twins, case: Case, right: str) -> None:
    pods = {side: case(twins, side) for side in SIDES}
    assert {side: twins.chosen(name) for side, name in pods.items()} == dict.fromkeys(SIDES, right)


def test_waiting_pods_are_bound_when_the_pod_in_their_way_has_ended(twins: Twins) -> None:
    lonely = twins.put("ours", "lonely", on="n1", affinity=rule("podAntiAffinity", "ours", "w", "host"))
    there = {"host": "n1"}
    waits = twins.put("ours", "p", labels={"app": "w"}, nodeSelector=there)
    twins.stage.wait_event(waits, "1 does not satisfy other pods' anti-affinity to app=w and side=ours")
    mounted = twins.volume("ours", "shared", mode="ReadWriteOncePod")
    user = twins.put("ours", "user", on="n0", **mounted)
    for_volume = twins.put("ours", "q", **mounted)
    twins.stage.wait_event(for_volume, f"serves another pod ({user})")
    twins.stage.delete(lonely, user, force=True)
    twins.stage.wait_bound(waits, for_volume)


def test_two_replicas_that_avoid_each_other_are_bound_to_two_hosts(twins: Twins) -> None:
    names = [
        twins.put("ours", f"r{n}", labels={"app": "r"}, affinity=rule("podAntiAffinity", "ours", "r", ZONE))
        for n in range(3)
    ]
    until(lambda: len(twins.stage.bound(names)) == 2, "two of them are bound")
    bound = twins.stage.bound(names)
    (last,) = set(names) - set(bound)
    twins.stage.wait_event(last, "do not satisfy the pod's anti-affinity to app=r and side=ours")
    zones = {LAYOUT[name.split(":")[0].split("-")[-2]] for name in bound.values()}
    assert zones == {"x", "y"}


def test_room_that_another_scheduler_made_is_kept_for_its_pod(twins: Twins) -> None:
    stage, there = twins.stage, {"host": "n0"}
    most, some = ({"requests": {"cpu": cpu}} for cpu in ("90", "20"))
    preemptor = pod("preemptor", schedulerName="another", resources=most)
    stage.create(preemptor)
    status = {"status": {"nominatedNodeName": twins.node("ours", "n0")}}
    path, merge = f"{stage.pods_path}/preemptor/status", "application/merge-patch+json"
    twins.api.request("PATCH", path, status, content_type=merge)
    waits = twins.put("ours", "p", nodeSelector=there, resources=some)
    stage.wait_event(waits, "1 has too little cpu")
    stage.delete("preemptor", force=True)
    stage.wait_bound(waits)
