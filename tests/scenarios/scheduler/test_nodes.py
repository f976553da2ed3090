"""The gpu-scheduler and its nodes: agents, device plugins, selectors, volumes, and what is counted."""

from urllib.request import urlopen

import pytest
import yaml

from controlplane.api import Json
from controlplane.cluster import free_port
from tests.support.scheduler_stage import Stage, claim, devices, example, pod, until


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
    stage.wait_bound("next")


def test_selectors_of_pod_and_claim_both_count(stage: Stage) -> None:
    stage.gpu_nodes(1, prefix=f"{stage.namespace}-a", labels={"zone": "one", "kind": "fast"})
    right = stage.gpu_nodes(1, prefix=f"{stage.namespace}-b", labels={"zone": "two", "kind": "fast"})[0]
    stage.gpu_nodes(1, prefix=f"{stage.namespace}-c", labels={"zone": "two", "kind": "slow"})
    stage.scheduler(leaderElect=False)
    asked = claim("fast")
    asked["spec"]["selector"] = {"matchLabels": {"kind": "fast"}}
    stage.create(asked, pod("p", claim="fast", nodeSelector={"zone": "two"}))
    assert stage.wait_bound("p")["p"].startswith(right)


def test_metrics_tell_what_happened(stage: Stage) -> None:
    """Two GPUs by number alone, as in the example; a pod that does not fit; one device out of order."""
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
    # The server knows of the bind before its answer has arrived.
    until(lambda: samples(port).get(bound), "the bind is counted")
    told = samples(port)
    assert told[bound] == told["gpu_scheduler_e2e_seconds_count"] == 1
    assert told['gpu_scheduler_pending_pods{state="parked"}'] == 1
    assert told['gpu_scheduler_lease_operations_total{op="acquire",result="ok"}'] == 2
    assert told["gpu_scheduler_conflicts_total"] == told["gpu_scheduler_leaked_leases_total"] == 0
    assert told['gpu_scheduler_devices{state="used"}'] == 2
    assert told['gpu_scheduler_devices{state="unhealthy"}'] == 1
    assert told["gpu_scheduler_fragmentation_ratio"] > 0


def samples(port: int) -> dict[str, float]:
    """What /metrics says, by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


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
    assert stage.wait_bound(waiting) == {waiting: f"{told}:1"}


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
    assert stage.wait_bound("reader", within_s=60)["reader"].startswith(f"{nodes[2]}:")


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
