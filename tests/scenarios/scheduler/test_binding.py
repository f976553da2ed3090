"""The gpu-scheduler on a real control plane: claims, devices, refusals and releases, one scenario each."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.api import Json
from controlplane.cluster import Cluster
from gpu_orchestrator.api import admission
from gpu_orchestrator.policies.registry import STRATEGIES
from tests.support import invariants
from tests.support import scheduler_stage as stages
from tests.support.object_history import History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, claim, example, holders, pod, until

LINKED = {"mode": "Required", "minBandwidthGBps": 600}
ISLANDS = [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_first_example_of_the_guide(cluster: Cluster, tmp_path: Path, namespace: str, scale: Scale) -> None:
    """Run it with default settings, except for how long a released device waits."""
    stages.install(cluster)
    with closing(Stage(cluster, namespace, tmp_path)) as stage:
        run_the_first_example(stage, release_s=scale(test=3.0, accept=30.0))


def run_the_first_example(stage: Stage, *, release_s: float) -> None:
    cluster, namespace = stage.cluster, stage.namespace
    node = stage.gpu_nodes(1, gpus=2)[0]
    process = stage.scheduler("--leader-elect=true", "--v=1", releaseSeconds=release_s)
    assert '"plugin": "GpuClaimPlugin"' in process.log.read_text()
    stage.create(*example("claimed-pod.yaml"))
    assert stage.wait_bound("test-pod") == {"test-pod": f"{node}:0"}
    found = stage.pod("test-pod")["metadata"]["annotations"]
    assert found["gpu.scheduling/visible-devices"] == found["gpu.scheduling/local-devices"] == "0"
    until(
        lambda: f"{node}:0" in cluster.kubectl("get", "gclaim", "-n", namespace), "kubectl shows the device"
    )
    assert stage.claim("test-claim")["metadata"]["finalizers"] == ["gpu.scheduling/in-use"]
    stage.wait_event("test-pod", f"Scheduled: bound to {node}, device 0")
    assert devices_shown(cluster, node) == [f"gpu-{node}-0"]

    deleted_at = time.monotonic()
    stage.delete("test-pod")
    until(lambda: not devices_shown(cluster, node), "the lease is gone", 35)
    until(lambda: stage.claim("test-claim")["status"]["phase"] == "Released", "the claim is Released")
    assert time.monotonic() - deleted_at < 35
    until(
        lambda: "finalizers" not in stage.claim("test-claim")["metadata"],
        "the claim is not reserved any more",
    )
    stage.create(pod("again", claim="test-claim"))
    stage.wait_bound("again")


def devices_shown(cluster: Cluster, node: str) -> list[str]:
    """Return the names from `kubectl get leases -n gpu-orchestrator-system | grep gpu-<node>`."""
    shown = cluster.kubectl("get", "leases", "-n", "gpu-orchestrator-system").splitlines()
    return [line.split()[0] for line in shown if line.startswith(f"gpu-{node}-")]


def test_two_pods_fill_the_islands_and_a_third_waits(stage: Stage, scale: Scale) -> None:
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
        until(
            lambda: "has fewer than 4 free" in unscheduled(stage.pod("c")),
            "the pod's condition has the reason",
        )
        until(lambda: stage.claim("b").get("status", {}).get("bandwidthGBps") == 600, "bandwidth is shown")
        stage.delete("a")
        stage.wait_bound("c")
    released = last(history, "leases", gone=True, holder="a")
    bound = last(history, "pods", gone=False, holder="c")
    assert bound - released < scale(test=25, accept=2)
    invariants.check(history)


def unscheduled(found: Json) -> str:
    conditions = {each["type"]: each for each in found["status"].get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    return scheduled.get("message", "") if scheduled.get("status") == "False" else ""


def last(history: History, kind: str, *, gone: bool, holder: str) -> float:
    """Return when the pod's last lease was deleted, or when the pod was first seen bound."""
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


def test_each_policy_chooses_its_devices(stage: Stage) -> None:
    """Each policy has its own node with two islands of four; on that of `packed`, device 0 is taken."""
    for name in POLICIES:
        stage.gpu_nodes(1, gpus=8, islands=ISLANDS, prefix=f"{stage.namespace}-{name}", labels={"for": name})
    stage.scheduler(leaderElect=False)
    stage.create(pod("first", gpus=1, nodeSelector={"for": "the-broken-island"}))
    stage.wait_bound("first")
    for name, (devices, _) in POLICIES.items():
        stage.create(claim(name, **devices), pod(name, claim=name, nodeSelector={"for": name}))
    given = {name: where.rpartition(":")[2] for name, where in stage.wait_bound(*POLICIES).items()}
    assert given == {name: ids for name, (_, ids) in POLICIES.items()}


def test_shares_never_exceed_a_device_nor_join_an_exclusive_holder(stage: Stage) -> None:
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


def test_each_pod_of_a_deployment_gets_a_claim_from_the_template(stage: Stage) -> None:
    stage.gpu_nodes(2, gpus=1, islands=[[0]])
    stage.scheduler(leaderElect=False, releaseSeconds=0)
    template, deployment = example("claimed-deployment.yaml")
    spec = deployment["spec"]["template"]["spec"]
    spec |= {"schedulerName": stage.scheduler_name, "nodeSelector": {"stage": stage.namespace}}
    deployment["spec"]["template"] = admission.filled(deployment["spec"]["template"], 250)
    stage.create(template)
    path = f"/apis/apps/v1/namespaces/{stage.namespace}/deployments"
    stage.cluster.api.request("POST", path, deployment)
    until(lambda: len(stage.bound()) == 6, "six pods are bound")
    until(lambda: children(stage) == set(stage.pods()), "each has a claim of its own, Bound")
    stage.cluster.kubectl("delete", "deployment", "small-servers", "-n", stage.namespace)
    until(
        lambda: set(stage.claims()) == {"quarter-gpu"} and not stage.leases(),
        "claims are deleted with the pods",
        60,
    )


def children(stage: Stage) -> set[str]:
    """Return the pods whose own claim is Bound."""
    return {
        each["metadata"]["ownerReferences"][0]["name"]
        for each in stage.claims().values()
        if each.get("status", {}).get("phase") == "Bound"
    }


@pytest.mark.open  # a pod names a claim that is not there
def test_claim_serves_one_pod_at_a_time(stage: Stage) -> None:
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
    assert stage.claim("one")["metadata"]["deletionTimestamp"]  # it waits until its pod has ended
    stage.delete("first")
    until(lambda: "one" not in stage.claims(), "the claim is gone with its pod")
    stage.create(claim("one"), claim("none"))
    stage.wait_bound("second", "third")


def test_every_built_in_strategy_binds_a_pod(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=8)
    stage.scheduler(leaderElect=False)
    pods = {f"p-{name.lower()}": name for name in STRATEGIES}
    stage.create(*(pod(name, gpus=1, strategy=strategy) for name, strategy in pods.items()))
    assert stage.wait_bound(*pods)


UNFIT: dict[str, tuple[Json, str]] = {
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
    "gang": ({"annotations": {"gpu.scheduling/gang": "g"}}, "gang g has no size; add the annotation"),
    "nothing": ({}, "asks for no GPU; add one of the annotations"),
}


@pytest.mark.open  # the policies would refuse two of them
def test_unimplemented_features_are_refused_by_name(stage: Stage) -> None:
    stage.gpu_nodes(1)
    stage.scheduler(leaderElect=False)
    for name, (spec, _) in UNFIT.items():
        stage.create(pod(name, **({} if name == "nothing" else {"gpus": 1} | spec)))
    for name, (_, message) in UNFIT.items():
        assert message in stage.wait_event(name, "FailedScheduling")
    assert not stage.bound()
