"""The gpu-scheduler and its nodes: agents, device plugins, selectors, volumes and metrics."""

from urllib.request import urlopen

import pytest
import yaml

from controlplane.api import Json
from controlplane.cluster import free_port
from tests.support import scrapes
from tests.support.scheduler_stage import Stage, claim, devices, example, pod, until


def test_agent_report_overrides_the_node_and_unhealthy_devices_are_unused(stage: Stage) -> None:
    """Two of four devices are healthy. An ended pod holds its devices while the agent reports it."""
    node = stage.gpu_nodes(1, gpus=8)[0]
    found = devices(4)
    found[0]["health"] = found[2]["health"] = "Unhealthy"
    stage.report(node, found)
    stage.scheduler(leaderElect=False, agentSeconds=5)
    stage.create(pod("two", gpus=2))
    assert stage.wait_bound("two") == {"two": f"{node}:1,3"}
    meta, uuids = stage.pod("two")["metadata"], f"{found[1]['uuid']},{found[3]['uuid']}"
    assert meta["annotations"]["gpu.scheduling/visible-devices"] == uuids
    assert meta["annotations"]["gpu.scheduling/local-devices"] == uuids
    stage.wait_event("two", f"bound to {node}, devices 1,3 ({uuids.replace(',', ', ')})")
    for each in found:
        each["inUseBy"] = [meta["uid"]]
    stage.report(node, found)
    stage.create(pod("next", gpus=1))
    stage.wait_event("next", "1 has no wholly free GPU")
    stage.delete("two", force=True)
    until(lambda: "two" not in stage.pods(), "the pod is gone")
    with pytest.raises(AssertionError):
        stage.wait_bound("next", within_s=6)  # its processes still run
    for each in found:
        each["inUseBy"] = []
    stage.report(node, found)
    stage.wait_bound("next")


def test_selectors_of_pod_and_claim_both_apply(stage: Stage) -> None:
    stage.gpu_nodes(1, prefix=f"{stage.namespace}-a", labels={"zone": "one", "kind": "fast"})
    right = stage.gpu_nodes(1, prefix=f"{stage.namespace}-b", labels={"zone": "two", "kind": "fast"})[0]
    stage.gpu_nodes(1, prefix=f"{stage.namespace}-c", labels={"zone": "two", "kind": "slow"})
    stage.scheduler(leaderElect=False)
    fast = claim("fast")
    fast["spec"]["selector"] = {"matchLabels": {"kind": "fast"}}
    stage.create(fast, pod("p", claim="fast", nodeSelector={"zone": "two"}))
    assert stage.wait_bound("p")["p"].startswith(right)


def test_metrics_count_binds_waiting_pods_and_devices(stage: Stage) -> None:
    """A pod with two bare GPUs as in the example, a pod that does not fit, and one unhealthy device."""
    node, port = stage.gpu_nodes(1, gpus=4)[0], free_port()
    found = devices(4)
    found[3]["health"] = "Unhealthy"
    stage.report(node, found)
    stage.scheduler(leaderElect=False, metricsBindAddress=f"127.0.0.1:{port}")
    (bare,) = example("bare-gpus.yaml")
    bare["spec"]["schedulerName"] = stage.scheduler_name
    stage.create(bare, pod("big", gpus=4))
    stage.wait_bound("two-gpus")
    stage.wait_event("big", "FailedScheduling: ")
    bound = 'gpu_scheduler_scheduling_duration_seconds_count{result="bound"}'
    # The server shows the bind before the scheduler has its answer.
    until(lambda: samples(port).get(bound), "the bind is counted")
    metrics = samples(port)
    assert metrics[bound] == metrics["gpu_scheduler_e2e_seconds_count"] == 1
    assert metrics['gpu_scheduler_pending_pods{state="parked"}'] == 1
    assert metrics['gpu_scheduler_lease_operations_total{op="acquire",result="ok"}'] == 2
    assert metrics["gpu_scheduler_conflicts_total"] == metrics["gpu_scheduler_leaked_leases_total"] == 0
    assert metrics['gpu_scheduler_devices{state="used"}'] == 2
    assert metrics['gpu_scheduler_devices{state="unhealthy"}'] == 1
    assert metrics["gpu_scheduler_fragmentation_ratio"] > 0


def samples(port: int) -> dict[str, float]:
    """Return the values of /metrics, by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    scrapes.check("scheduler", text)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_node_with_unreported_plugin_pods_gets_no_claimed_pods(stage: Stage) -> None:
    """kube-scheduler places ordinary GPU pods. If no agent reports their devices, the node is not used."""
    unreported, reported, _ = stage.gpu_nodes(3, gpus=2)
    stage.scheduler(leaderElect=False)
    ordinary = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "schedulerName": "default-scheduler"}
    for node in (unreported, reported):
        stage.create(pod(f"on-{node}", nodeSelector={"kubernetes.io/hostname": node}, **ordinary))
    stage.wait_bound()
    stage.report(reported, devices(2))
    stage.create(*(pod(f"claimed-{n}", gpus=1) for n in range(3)))
    until(lambda: len(stage.bound()) == 4, "two claims are bound on the node without other pods")
    waiting = next(name for name in stage.pods() if name not in stage.bound())
    stage.wait_event(
        waiting, "2 have pods of a device plugin and no agent that reports which devices they use"
    )
    found = devices(2)
    found[0]["inUseBy"] = [stage.pod(f"on-{reported}")["metadata"]["uid"]]
    stage.report(reported, found)
    assert stage.wait_bound(waiting) == {waiting: f"{reported}:1"}


@pytest.mark.open  # filled in, the pod would tolerate the taint
def test_odd_nodes_take_no_claims_and_say_why(stage: Stage) -> None:
    """Time-slicing, another pod's slice or resource claim, a sick GPU, a GPU taint: each pod waits for its
    node with the reason, and is bound when the reason has gone."""
    shared = odd_node(stage, "shared", 80, {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "10"})
    sick, tainted = odd_node(stage, "sick"), odd_node(stage, "tainted")
    sliced, allocated = odd_node(stage, "sliced"), odd_node(stage, "allocated")
    patch_node(stage, sick, "/status", {"status": {"allocatable": {"nvidia.com/gpu": "1"}}})
    taint = {"key": "nvidia.com/gpu", "value": "team-a", "effect": "NoExecute"}
    patch_node(stage, tainted, "", {"spec": {"taints": [taint]}})
    slices = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    claims = [{"name": "gpu", "resourceClaimName": "one"}]
    ordinary = {"schedulerName": "default-scheduler"}
    stage.create(
        pod("with-slice", nodeName=sliced, resources=slices, **ordinary),
        pod("with-claim", nodeName=allocated, resourceClaims=claims, **ordinary),
    )
    stage.scheduler(leaderElect=False, releaseSeconds=1)
    stage.create(*(pod(kind, gpus=1, nodeSelector={"kind": kind}) for kind in REASONS))
    for kind, why in REASONS.items():
        stage.wait_event(kind, f"1 {why}")
    assert not stage.bound(REASONS)
    patch_node(stage, shared, "", {"metadata": {"annotations": {"gpu.scheduling/devices": '{"count": 8}'}}})
    patch_node(stage, sick, "/status", {"status": {"allocatable": {"nvidia.com/gpu": "2"}}})
    stage.delete("with-slice", "with-claim", force=True)
    tolerant = pod("tolerant", gpus=1, nodeSelector={"kind": "tainted"})
    tolerant["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    stage.create(tolerant)
    bound = stage.wait_bound("shared", "sick", "sliced", "allocated", "tolerant")
    expected = {"shared": shared, "sick": sick, "sliced": sliced, "allocated": allocated, "tolerant": tainted}
    assert bound == {name: f"{node}:0" for name, node in expected.items()}
    assert not stage.bound(["tainted"])


REASONS = {
    "shared": "has GPUs that are shared (time-slicing or MPS) and cannot be numbered: run the agent there",
    "sick": "has an unhealthy GPU and no agent that reports which one",
    "sliced": "has pods of a device plugin and no agent that reports which devices they use",
    "allocated": "has pods of a device plugin and no agent that reports which devices they use",
    "tainted": "has the taint nvidia.com/gpu=team-a:NoExecute",
}


def odd_node(stage: Stage, kind: str, gpus: int = 2, labels: dict[str, str] | None = None) -> str:
    prefix = f"{stage.namespace}-{kind}"
    return stage.gpu_nodes(1, prefix=prefix, gpus=gpus, labels={"kind": kind, **(labels or {})})[0]


def patch_node(stage: Stage, name: str, subresource: str, body: Json) -> None:
    merge = {"content_type": "application/merge-patch+json"}
    stage.cluster.api.request("PATCH", f"/api/v1/nodes/{name}{subresource}", body, **merge)


def test_agent_heartbeat_with_a_device_lease_name_blocks_that_device(stage: Stage) -> None:
    """`gpu-agent-x-0-1` is the heartbeat of node x-0-1, and the lease name of device 1 on node agent-x-0."""
    (node,) = stage.gpu_nodes(1, gpus=2, prefix=f"agent-{stage.namespace}")
    other = f"{node.removeprefix('agent-')}-1"
    stage.heartbeat(other)
    path = f"{stage.leases_path}/gpu-{node}-1"
    heartbeat = stage.cluster.api.request("GET", path)
    process = stage.scheduler(leaderElect=False, sweepSeconds=1)
    stage.create(pod("first", gpus=1))
    assert stage.wait_bound("first") == {"first": f"{node}:0"}
    stage.create(pod("second", gpus=1))
    stage.wait_event("second", "1 has no wholly free GPU")
    until(lambda: "exists and is not a device lease" in process.log.read_text(), "the sweep logs why")
    assert stage.cluster.api.request("GET", path) == heartbeat
    stage.cluster.api.request("DELETE", path)
    assert stage.wait_bound("second") == {"second": f"{node}:1"}


def test_pod_goes_to_the_node_that_reaches_its_volume(stage: Stage) -> None:
    """The pod waits until its volume claim is bound; then it goes where the volume is."""
    nodes = stage.gpu_nodes(3)
    stage.scheduler(leaderElect=False)
    mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    stage.cluster.kubectl("apply", "-n", stage.namespace, "-f", "-", stdin=volume(stage.namespace, nodes[2]))
    stage.create(pod("reader", gpus=1, volumes=mounted))
    assert stage.wait_bound("reader", within_s=60)["reader"].startswith(f"{nodes[2]}:")


def volume(name: str, node: str) -> str:
    """Return a local volume on a node and the claim for it, as YAML with the claim first."""
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
