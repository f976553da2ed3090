"""Devices that become unhealthy under running pods, and devices that may still be in use, on a real control
plane."""

import msgspec
import pytest

from controlplane.api import Json
from controlplane.cluster import free_port
from gpu_orchestrator.api import deviceleases, sharing
from gpu_orchestrator.api.kubernetes import Lease
from tests.scenarios.scheduler.test_nodes import samples
from tests.support.scheduler_stage import Stage, claim, devices, pod, until

BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"


def health(found: Json) -> tuple[str, str]:
    """Return status and message of the condition DevicesHealthy."""
    conditions = found.get("status", {}).get("conditions", [])
    each: Json = next((each for each in conditions if each["type"] == "DevicesHealthy"), {})
    return each.get("status", ""), each.get("message", "")


def sick(name: str, on_unhealthy: str) -> Json:
    made = claim(name)
    made["spec"]["onUnhealthy"] = on_unhealthy
    return made


def test_pod_is_told_of_its_unhealthy_device_and_evicted_if_its_claim_says_so(stage: Stage) -> None:
    """Three pods on one node lose their devices: one is evicted, one is told, one is kept by its budget. The
    devices are given to nobody until they are healthy again, however often they flap."""
    (node,), port = stage.gpu_nodes(1, gpus=3), free_port()
    found = devices(3)
    stage.report(node, found)
    stage.scheduler(leaderElect=False, sweepSeconds=1, agentSeconds=1, metricsBindAddress=f"127.0.0.1:{port}")
    stage.create(sick("go", "Evict"), sick("keep", "Evict"), claim("stay"))
    stage.create(pod("go", claim="go"), pod("stay", claim="stay"))
    stage.create(pod("keep", claim="keep", meta={"labels": {"kept": "yes"}}))
    stage.wait_bound()
    budget: Json = {"minAvailable": 1, "selector": {"matchLabels": {"kept": "yes"}}}
    stage.cluster.api.request(
        "POST", BUDGETS.format(stage.namespace), {"metadata": {"name": "kept"}, "spec": budget}
    )
    flap(stage, node, found, "Unhealthy")
    until(lambda: "go" not in stage.pods(), "the pod is evicted")
    stage.create(pod("next", gpus=1))
    for name in ("go", "stay", "keep"):
        stage.wait_event(name, f"DeviceUnhealthy: on {node}: device")
    stage.wait_event("keep", "EvictionNotPossible: ")
    for _ in range(60):
        flap(stage, node, found, "Healthy")
        flap(stage, node, found, "Unhealthy")
    until(lambda: health(stage.claim("stay"))[0] == "False", "the claim has the condition")
    assert "(XID 79)" in health(stage.claim("stay"))[1]
    evicted = 'gpu_scheduler_unhealthy_pods_total{action="evicted"}'
    assert samples(port)[evicted] == 1
    assert {"stay", "keep"} <= set(stage.pods())
    flap(stage, node, found, "Healthy")
    until(lambda: health(stage.claim("stay"))[0] == "True", "the claim tells that all is well")
    stage.wait_bound("next")


def flap(stage: Stage, node: str, found: list[Json], to: str) -> None:
    for each in found:
        each |= {"health": to, "unhealthyReason": "XID 79" if to == "Unhealthy" else ""}
    stage.report(node, found)


def test_gpu_opened_just_before_a_forced_delete_is_kept_by_a_new_leader(stage: Stage) -> None:
    """No report names the pod when it ends: the agent looks at intervals. The next leader knows nothing of
    the pod but its lease."""
    (node,) = stage.gpu_nodes(1, gpus=1)
    found = devices(1)
    stage.report(node, found)
    process = stage.scheduler(leaderElect=False, sweepSeconds=1, agentSeconds=5)
    stage.create(pod("p", gpus=1))
    stage.wait_bound("p")
    uid = stage.pod("p")["metadata"]["uid"]
    process.kill()
    stage.delete("p", force=True)
    process.start()
    stage.create(pod("q", gpus=1))
    with pytest.raises(AssertionError):
        stage.wait_bound("q", within_s=2)
    stage.report(node, [{**found[0], "inUseBy": [uid]}])  # the agent's next look
    with pytest.raises(AssertionError):
        stage.wait_bound("q", within_s=6)
    stage.report(node, found)
    stage.wait_bound("q")


def test_shared_pod_is_bound_when_its_mps_daemon_listens(stage: Stage) -> None:
    """The test is the agent: it sees the lease of the pod, starts the daemon that is due, and reports it."""
    (plain,) = stage.gpu_nodes(1, gpus=1)
    (node,) = stage.gpu_nodes(1, prefix=f"{stage.namespace}-mps", gpus=1)
    found = devices(1)
    stage.report(node, found, mps={})
    stage.report(plain, devices(1))
    stage.scheduler(leaderElect=False, sweepSeconds=1)
    stage.create(claim("part", exclusivity="Shared", memoryMiB=1024, share=100))
    prepared = pod("prepared", claim_template="part", annotations={"gpu.scheduling/sharing": "mps"})
    there = {"kubernetes.io/hostname": plain}
    stage.create(prepared, pod("counted", claim_template="part", nodeSelector=there))
    lease = until(lambda: stage.leases().get(f"gpu-{node}-0"), "the device is leased before the bind")
    with pytest.raises(AssertionError):
        stage.wait_bound("prepared", within_s=2)
    (daemon,) = sharing.daemons(deviceleases.holds(msgspec.convert(lease, Lease)))
    assert (daemon.namespace, daemon.memory_mib, daemon.share) == (stage.namespace, 1024, 100)
    assert daemon.uuids == (found[0]["uuid"],)
    stage.report(node, found, mps={"folders": [daemon.folder]})
    assert stage.wait_bound("prepared")["prepared"] == f"{node}:0"
    assert stage.pod("prepared")["metadata"]["annotations"]["gpu.scheduling/mps-folder"] == daemon.folder
    stage.wait_bound("counted")
    expected = {"prepared": ("True", "Mps"), "counted": ("False", "AccountedOnly")}
    until(lambda: {name: enforced(stage, name) for name in expected} == expected, "the claims tell it")


def enforced(stage: Stage, name: str) -> tuple[str, str]:
    """Return status and reason of the condition ShareEnforced of a pod's own claim."""
    made = next((each for key, each in stage.claims().items() if key.startswith(f"{name}-")), {})
    conditions = made.get("status", {}).get("conditions", [])
    found: Json = next((each for each in conditions if each["type"] == "ShareEnforced"), {})
    return found.get("status", ""), found.get("reason", "")
