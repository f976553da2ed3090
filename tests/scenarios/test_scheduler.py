"""The gpu-scheduler on a real control plane: claims, devices, refusals and releases, one scenario each."""

import time
from pathlib import Path

import pytest
import yaml

from controlplane.api import Json
from controlplane.cluster import Cluster
from tests import invariants
from tests.history import History
from tests.scale import Scale
from tests.scenarios import stage as stages
from tests.scenarios.stage import Stage, claim, devices, holders, pod, until

EXAMPLES = Path(__file__).parents[2] / "examples"
LINKED = {"mode": "Required", "minBandwidthGBps": 600}
ISLANDS = [[0, 1, 2, 3], [4, 5, 6, 7]]


def example(name: str) -> list[Json]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def test_a_claim_and_a_pod(cluster: Cluster, tmp_path: Path, namespace: str, scale: Scale) -> None:
    """The guide's first example with default settings, but for how long a released device rests."""
    stages.install(cluster)
    stage = Stage(cluster, namespace, tmp_path)
    node = stage.gpu_nodes(1, gpus=2)[0]
    process = stage.scheduler("--leader-elect=true", "--v=1", releaseSeconds=scale(test=3.0, accept=30.0))
    assert '"plugin": "GpuClaimPlugin"' in process.log.read_text()
    stage.create(*example("claimed-pod.yaml"))
    assert stage.wait_bound("test-pod") == {"test-pod": f"{node}:0"}
    told = stage.pod("test-pod")["metadata"]["annotations"]
    assert told["gpu.scheduling/visible-devices"] == told["gpu.scheduling/local-devices"] == "0"
    until(
        lambda: f"{node}:0" in cluster.kubectl("get", "gclaim", "-n", namespace), "kubectl shows the device"
    )
    assert stage.claim("test-claim")["metadata"]["finalizers"] == ["gpu.scheduling/in-use"]
    stage.wait_event("test-pod", f"Scheduled: bound to {node}, devices 0")
    assert f"gpu-{node}-0" in cluster.kubectl("get", "leases", "-n", "gpu-orchestrator-system")

    deleted_at = time.monotonic()
    stage.delete("test-pod")
    until(lambda: f"gpu-{node}-0" not in stage.leases(), "the lease is gone", 35)
    until(lambda: stage.claim("test-claim")["status"]["phase"] == "Released", "the claim is Released", 5)
    assert time.monotonic() - deleted_at < 35
    until(lambda: "finalizers" not in stage.claim("test-claim")["metadata"], "the claim is let go")
    stage.create(pod("again", claim="test-claim"))
    stage.wait_bound("again")
    stage.close()


def test_an_island_each_and_a_third_that_waits(stage: Stage) -> None:
    node = stage.gpu_nodes(1, gpus=8, islands=ISLANDS)[0]
    stage.scheduler(leaderElect=False, releaseSeconds=1)
    with History(stage.cluster, stage.namespace) as history:
        for name in ("a", "b", "c"):
            stage.create(claim(name, 4, policy="contiguous", topology=LINKED), pod(name, claim=name))
            if name != "c":
                stage.wait_bound(name)
        assert set(stage.bound().values()) == {f"{node}:0,1,2,3", f"{node}:4,5,6,7"}
        stage.wait_event("c", "FailedScheduling: 0/")
        stage.wait_event("c", "1 has fewer than 4 free GPUs")
        until(lambda: "has fewer than 4 free" in unscheduled(stage.pod("c")), "the pod's condition says so")
        until(lambda: stage.claim("b")["status"]["bandwidthGBps"] == 600, "the claim tells its bandwidth")
        stage.delete("a")
        stage.wait_bound("c")
    released = last(history, "leases", gone=True, holder="a")
    bound = last(history, "pods", gone=False, holder="c")
    assert bound - released < 2
    invariants.check(history)


def unscheduled(found: Json) -> str:
    conditions = {each["type"]: each for each in found["status"].get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    return scheduled.get("message", "") if scheduled.get("status") == "False" else ""


def last(history: History, kind: str, *, gone: bool, holder: str) -> float:
    """When the last lease of a pod went, or when it was first seen bound."""
    seen = [
        change.at
        for change in history.changes
        if change.kind == kind and change.gone == gone and is_of(change.object, kind, holder)
    ]
    return seen[-1] if gone else seen[0]


def is_of(found: Json, kind: str, holder: str) -> bool:
    meta = found["metadata"]
    if kind == "leases":
        return bool(meta.get("annotations", {}).get("gpu.scheduling/pod") == holder)
    return bool(meta["name"] == holder and found["spec"].get("nodeName"))


POLICIES: dict[str, tuple[Json, str]] = {
    "one-of-each-island": ({"count": 2, "policy": "spread"}, "0,4"),
    "those-named": ({"count": 2, "policy": "preferIds", "preferIds": [6, 5]}, "5,6"),
    "inside-an-island": ({"count": 3, "policy": "contiguous"}, "0,1,2"),
    "the-broken-island": ({"count": 2, "policy": "packed"}, "1,2"),
}


def test_device_policies(stage: Stage) -> None:
    """Each on a node of its own with two islands of four; `packed` finds device 0 taken."""
    for name in POLICIES:
        stage.gpu_nodes(1, gpus=8, islands=ISLANDS, prefix=f"{stage.namespace}-{name}", labels={"for": name})
    stage.scheduler(leaderElect=False)
    stage.create(pod("first", gpus=1, nodeSelector={"for": "the-broken-island"}))
    stage.wait_bound("first")
    for name, (wish, _) in POLICIES.items():
        stage.create(claim(name, **wish), pod(name, claim=name, nodeSelector={"for": name}))
    given = {name: where.rpartition(":")[2] for name, where in stage.wait_bound(*POLICIES).items()}
    assert given == {name: ids for name, (_, ids) in POLICIES.items()}


def test_shares_add_up_and_stand_beside_no_whole_holder(stage: Stage) -> None:
    node = stage.gpu_nodes(1, gpus=2, islands=[[0, 1]])[0]
    stage.scheduler(leaderElect=False, releaseSeconds=0)
    stage.create(claim("third", exclusivity="Shared", share=333, memoryMiB=27_306), claim("whole"))
    with History(stage.cluster, stage.namespace) as history:
        stage.create(pod("whole", claim_template="whole"))
        stage.wait_bound("whole")
        shares = [f"third-{n}" for n in range(4)]
        stage.create(*(pod(name, claim_template="third") for name in shares))
        until(lambda: len(stage.bound(shares)) == 3, "three thirds are bound")
        left = next(name for name in shares if name not in stage.bound(shares))
        stage.wait_event(left, "1 has no GPU with 333 of 1000 milli and 27306 MiB free")
        assert len(set(stage.bound(shares).values())) == 1
        assert sorted(len(holders(lease)) for lease in stage.leases().values()) == [1, 3]
        stage.delete("whole")
        stage.wait_bound(left)
    assert node in stage.bound()[left]
    invariants.check(history)


def test_reports_win_and_unhealthy_devices_stay_alone(stage: Stage) -> None:
    """Two healthy of four; UUIDs in the annotations; a released device is free when the agent says so."""
    node = stage.gpu_nodes(1, gpus=8)[0]
    found = devices(4)
    found[0]["health"] = found[2]["health"] = "Unhealthy"
    stage.report(node, found)
    stage.scheduler(leaderElect=False)
    stage.create(pod("two", gpus=2))
    assert stage.wait_bound("two") == {"two": f"{node}:1,3"}
    told, uuids = stage.pod("two")["metadata"], f"{found[1]['uuid']},{found[3]['uuid']}"
    assert told["annotations"]["gpu.scheduling/visible-devices"] == uuids
    assert told["annotations"]["gpu.scheduling/local-devices"] == uuids
    for each in found:
        each["inUseBy"] = [told["uid"]]
    stage.report(node, found)
    stage.create(pod("next", gpus=1))
    stage.wait_event("next", "1 has no wholly free GPU")
    stage.delete("two", force=True)
    until(lambda: "two" not in stage.pods(), "the pod is gone")
    with pytest.raises(AssertionError):
        stage.wait_bound("next", within_s=3)  # its processes are not
    for each in found:
        each["inUseBy"] = []
    stage.report(node, found)
    stage.wait_bound("next", within_s=5)


def test_selectors_of_pod_and_claim_both_count(stage: Stage) -> None:
    stage.gpu_nodes(1, prefix=f"{stage.namespace}-a", labels={"zone": "one", "kind": "fast"})
    right = stage.gpu_nodes(1, prefix=f"{stage.namespace}-b", labels={"zone": "two", "kind": "fast"})[0]
    stage.gpu_nodes(1, prefix=f"{stage.namespace}-c", labels={"zone": "two", "kind": "slow"})
    stage.scheduler(leaderElect=False)
    asked = claim("fast")
    asked["spec"]["selector"] = {"matchLabels": {"kind": "fast"}}
    stage.create(asked, pod("p", claim="fast", nodeSelector={"zone": "two"}))
    assert stage.wait_bound("p")["p"].startswith(right)


def test_a_deployment_with_one_template(stage: Stage) -> None:
    stage.gpu_nodes(2, gpus=1, islands=[[0]])
    stage.scheduler(leaderElect=False, releaseSeconds=0)
    template, deployment = example("claimed-deployment.yaml")
    spec = deployment["spec"]["template"]["spec"]
    spec |= {"schedulerName": stage.scheduler_name, "nodeSelector": {"stage": stage.namespace}}
    stage.create(template)
    path = f"/apis/apps/v1/namespaces/{stage.namespace}/deployments"
    stage.cluster.api.request("POST", path, deployment)
    until(lambda: len(stage.bound()) == 6, "six pods are bound")
    until(lambda: children(stage) == set(stage.pods()), "each has a claim of its own, Bound")
    stage.cluster.kubectl("delete", "deployment", "small-servers", "-n", stage.namespace)
    until(
        lambda: set(stage.claims()) == {"quarter-gpu"} and not stage.leases(), "claims go with the pods", 60
    )


def children(stage: Stage) -> set[str]:
    """Pods that have a child claim which is Bound."""
    return {
        each["metadata"]["ownerReferences"][0]["name"]
        for each in stage.claims().values()
        if each.get("status", {}).get("phase") == "Bound"
    }


def test_a_claim_serves_one_pod_at_a_time(stage: Stage) -> None:
    stage.gpu_nodes(1)
    stage.scheduler(leaderElect=False, releaseSeconds=0)
    stage.create(claim("one"), pod("first", claim="one"))
    stage.wait_bound("first")
    stage.create(pod("second", claim="one"), pod("third", claim="none"))
    stage.wait_event("second", "GpuClaim one serves another pod (first)")
    stage.wait_event("third", "GpuClaim " + f"{stage.namespace}/none does not exist; create it")
    stage.cluster.api.request(
        "DELETE", f"/apis/gpu.scheduling/v1/namespaces/{stage.namespace}/gpuclaims/one", {}
    )
    assert stage.claim("one")["metadata"]["deletionTimestamp"]  # it waits for the pod it serves
    stage.delete("first")
    until(lambda: "one" not in stage.claims(), "the claim is gone with its pod")
    stage.create(claim("one"), claim("none"))
    stage.wait_bound("second", "third")


UNFIT: dict[str, tuple[Json, str]] = {
    "affinity": (
        {
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "zone", "labelSelector": {}}
                    ]
                }
            }
        },
        "required podAffinity",
    ),
    "spread": (
        {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {},
                }
            ]
        },
        "topologySpreadConstraints with DoNotSchedule",
    ),
    "plugin": (
        {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
        "a request for nvidia.com/gpu beside a claim",
    ),
    "volume": (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "data does not exist; create it",
    ),
    "strategy": ({"strategy": "leastload"}, "unknown strategy 'leastload'; did you mean 'leastLoaded'?"),
    "number": ({"gpus": "many"}, "gpu.scheduling/gpus is 'many'; write a number from 1 to 64"),
    "gang": ({"annotations": {"gpu.scheduling/gang": "g"}}, "a gang (gpu.scheduling/gang)"),
    "nothing": ({}, "asks for no GPU; add one of the annotations"),
}


def test_what_we_do_not_implement_is_refused_by_name(stage: Stage) -> None:
    stage.gpu_nodes(1)
    stage.scheduler(leaderElect=False)
    for name, (spec, _) in UNFIT.items():
        stage.create(pod(name, **({} if name == "nothing" else {"gpus": 1} | spec)))
    for name, (_, said) in UNFIT.items():
        assert said in stage.wait_event(name, "FailedScheduling")
    assert not stage.bound()


def test_beside_a_device_plugin(stage: Stage) -> None:
    """kube-scheduler places ordinary GPU pods; where nobody tells which devices they got, no claim goes."""
    shared, told, _ = stage.gpu_nodes(3, gpus=2)
    stage.scheduler(leaderElect=False)
    ordinary = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "schedulerName": "default-scheduler"}
    for node in (shared, told):
        stage.create(pod(f"on-{node}", nodeSelector={"kubernetes.io/hostname": node}, **ordinary))
    stage.wait_bound()
    stage.report(told, devices(2))
    stage.create(*(pod(f"claimed-{n}", gpus=1) for n in range(3)))
    until(lambda: len(stage.bound()) == 4, "two claims are bound on the node that nobody else uses")
    waiting = next(name for name in stage.pods() if name not in stage.bound())
    stage.wait_event(
        waiting, "2 have pods of a device plugin and no agent that tells which devices these took"
    )
    found = devices(2)
    found[0]["inUseBy"] = [stage.pod(f"on-{told}")["metadata"]["uid"]]
    stage.report(told, found)
    assert stage.wait_bound(waiting, within_s=10) == {waiting: f"{told}:1"}


def test_an_agent_whose_sign_of_life_has_the_name_of_a_device(stage: Stage) -> None:
    """`gpu-agent-x-0-1` is the agent of node x-0-1, and would be the Lease of device 1 on node agent-x-0."""
    (node,) = stage.gpu_nodes(1, gpus=2, prefix=f"agent-{stage.namespace}")
    other = f"{node.removeprefix('agent-')}-1"
    stage.sign_of_life(other)
    path = f"{stage.leases_path}/gpu-{node}-1"
    sign = stage.cluster.api.request("GET", path)
    process = stage.scheduler(leaderElect=False, sweepSeconds=1)
    stage.create(pod("first", gpus=1))
    assert stage.wait_bound("first") == {"first": f"{node}:0"}
    stage.create(pod("second", gpus=1))
    stage.wait_event("second", "1 has no wholly free GPU")
    until(lambda: "exists and is no device's" in process.log.read_text(), "the sweep says why")
    assert stage.cluster.api.request("GET", path) == sign
    stage.cluster.api.request("DELETE", path)
    assert stage.wait_bound("second") == {"second": f"{node}:1"}


def test_a_volume_that_only_one_node_reaches(stage: Stage) -> None:
    """Waits until the claim is bound; then goes where the volume is."""
    nodes = stage.gpu_nodes(3)
    stage.scheduler(leaderElect=False)
    mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    stage.cluster.kubectl("apply", "-n", stage.namespace, "-f", "-", stdin=volume(stage.namespace, nodes[2]))
    stage.create(pod("reader", gpus=1, volumes=mounted))
    assert stage.wait_bound("reader")["reader"].startswith(f"{nodes[2]}:")


def volume(name: str, node: str) -> str:
    """A local volume on a node, and the claim for it, in that order of writing: claim first."""
    size = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    made: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Delete",
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }
    claimed: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {**size, "storageClassName": name, "volumeName": name},
    }
    return yaml.safe_dump_all([claimed, made])
