"""The coordinator alone: objects in, jobs and refusals out; each device is counted exactly once."""

from typing import Any

import pytest
import structlog

from gpu_orchestrator.api import deviceleases, inventory
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec, Pod
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.scheduler.actions import Bound, Failed
from gpu_orchestrator.core.answer import singular
from tests.support.scheduler_harness import RecordingExecutor, World
from tests.support.scheduler_objects import claim, node, pod, report


def lease(node: str, device: int, uid: str, version: int = 1) -> Lease:
    made = deviceleases.exclusive(DeviceRef(node, device), Holder(uid, "p", "default", since="t"), "system")
    meta = made.metadata
    about = ObjectMeta(
        meta.name, "system", f"lease-{meta.name}", str(version), 0, meta.labels, meta.annotations
    )
    return Lease(about, made.spec)


def test_pod_is_placed_once_and_counted_once() -> None:
    world = World(node("a", 2))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    assert world.free("a") == 1
    world.lease(lease("a", job.placement.devices[0], "uid-p"))
    assert world.free("a") == 1  # the assumption and the lease are the same device
    world.bind(job)
    assert world.free("a") == 1
    assert len(world.executor.jobs) == 1


def test_bound_pod_that_the_watch_still_shows_unbound_keeps_its_devices() -> None:
    """Another event about the pod arrives after its bind and before the watch shows the bind."""
    world = World(node("a", 2))
    world.claim(claim("c"))
    world.pod(pod("p", claim="c"))
    (job,) = world.executor.jobs
    world.lease(lease("a", job.placement.devices[0], "uid-p"))
    world.coordinator.done(Bound(job))
    world.claim(claim("c", reserved_for="uid-p"))
    assert world.executor.cleared == []
    assert world.free("a") == 1


def test_unrelated_lease_with_a_device_lease_name_blocks_the_device() -> None:
    """Heartbeats of the agents on `node-3` and on `node-03`; `03` is not a device number."""
    world = World(node("agent-node", 4))
    for name in ("gpu-agent-node-3", "gpu-agent-node-03"):
        world.lease(Lease(ObjectMeta(name, "system", f"uid-{name}", "1"), LeaseSpec("an agent")))
    assert world.free("agent-node") == 3
    world.pod(pod("p", gpus=4))
    assert "1 has fewer than 4 free GPUs" in world.executor.refused["p"]
    world.lease_gone("gpu-agent-node-3")
    assert [job.placement.devices for job in world.executor.jobs] == [(0, 1, 2, 3)]


def test_lease_of_an_ended_pod_keeps_the_device_taken() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    world.lease(lease("a", 0, "uid-p"))
    world.bind(job)
    world.pod_gone("p")
    assert [each.placement for each in world.executor.released] == [job.placement]
    world.pod(pod("q", gpus=1))
    assert world.executor.refused == {"q": "0/1 nodes fit: 1 has no wholly free GPU"}
    world.lease_gone("gpu-a-0")
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["p", "q"]


def test_without_leases_devices_of_an_ended_pod_stay_taken_until_freed() -> None:
    world = World(node("a", 1), uses_leases=False)
    world.pod(pod("p", gpus=1))
    world.bind(world.executor.jobs[0])
    world.pod_gone("p")
    assert world.free("a") == 0
    world.coordinator.freed("uid-p")
    assert world.free("a") == 1


def test_pod_that_ends_while_being_bound_is_released() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    world.lease(lease("a", 0, "uid-p"))
    world.pod_gone("p")
    assert world.executor.released == []
    world.coordinator.done(Bound(job))
    assert [each.placement for each in world.executor.released] == [job.placement]
    assert world.free("a") == 0  # until its lease is gone
    world.lease_gone("gpu-a-0")
    assert world.free("a") == 1


def test_device_found_held_by_another_is_counted_as_taken() -> None:
    world = World(node("a", 2))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    other = lease("a", job.placement.devices[0], "uid-other")
    world.coordinator.done(Failed(job, "taken", found=(other,)))
    assert world.free("a") == 1


def test_leftover_leases_are_cleared_before_the_pod_is_queued() -> None:
    world = World(node("a", 1))
    world.lease(lease("a", 0, "uid-p"))
    world.pod(pod("p", gpus=1))
    assert world.executor.cleared == ["p"]
    assert world.executor.jobs == []
    world.lease_gone("gpu-a-0")
    world.coordinator.cleared("uid-p")
    assert len(world.executor.jobs) == 1


def test_beside_other_schedulers_leftover_leases_are_kept() -> None:
    world = World(node("a", 2), clears_leftovers=False)
    world.lease(lease("a", 0, "uid-p"))
    world.pod(pod("p", gpus=1))
    assert world.executor.cleared == []
    assert [each.placement.devices for each in world.executor.jobs] == [(1,)]


def test_claim_is_assigned_to_one_of_two_pods() -> None:
    world = World(node("a", 2))
    world.pod(pod("p", claim="c"))
    world.pod(pod("q", claim="c"))
    assert world.executor.refused["p"] == "GpuClaim default/c does not exist; create it"
    world.claim(claim("c"))
    (job,) = world.executor.jobs
    assert job.pod.metadata.name == "p"
    assert world.executor.refused["q"].startswith("GpuClaim c serves another pod (p)")
    world.coordinator.done(Failed(job, "refused"))
    assert "q" in {each.pod.metadata.name for each in (*world.executor.jobs, *world.executor.abandoned)}


def test_pod_bound_by_another_scheduler_keeps_its_claim_when_our_bind_fails() -> None:
    world = World(node("a", 2), node("b", 2))
    world.claim(claim("c"))
    world.pod(pod("p", claim="c"))
    (job,) = world.executor.jobs
    world.pod(pod("q", claim="c"))
    elsewhere = "b" if job.placement.node == "a" else "a"
    world.pod(pod("p", claim="c", node=elsewhere, allocated=f"{elsewhere}:0"))
    world.coordinator.done(Failed(job, "the pod was bound by another scheduler"))
    assert world.executor.jobs == [job]
    world.pod_gone("p")
    world.coordinator.freed("uid-p")
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["p", "q"]


def test_claim_of_a_pod_bound_by_another_scheduler_is_assigned_before_the_next_decision() -> None:
    world = World(node("a", 2))
    world.claim(claim("c"))
    world.pod(pod("q", claim="c"))
    world.coordinator.done(Failed(world.executor.jobs.pop(), "refused"))
    world.now = 60.0  # q has backed off long enough: the next event makes the engine place it
    world.pod(pod("p", claim="c", node="a", allocated="a:0"))
    assert world.executor.jobs == []
    assert [job.pod.metadata.name for job in world.executor.abandoned] == ["q"]


def test_claims_wait_while_all_nodes_are_kept_for_a_device_plugin() -> None:
    plugin, unknown = {"gpu.scheduling/mode": "plugin"}, {"gpu.scheduling/mode": "claim"}
    world = World(node("a", 2, labels=plugin), node("b", 2, labels=plugin))
    world.pod(pod("p", gpus=1))
    assert not world.executor.jobs
    kept = "0/2 nodes fit: 2 are kept for a device plugin (label gpu.scheduling/mode)"
    assert world.executor.refused["p"] == kept
    assert world.coordinator.nodes.barred("b")
    with structlog.testing.capture_logs() as logged:
        world.node(node("b", 2, labels=unknown))
        world.node(node("b", 2, labels={**unknown, "zone": "x"}))
    assert [each.placement.node for each in world.executor.jobs] == ["b"]
    assert not world.coordinator.nodes.barred("b")
    assert [each["found"] for each in logged if each["event"] == "mode of node ignored"] == ["claim"]


@pytest.mark.parametrize(
    ("used", "free"),
    [
        pytest.param([], 0, id="not reported: node barred"),
        pytest.param(["uid-plugin"], 1, id="reported: the other device is free"),
    ],
)
def test_device_plugin_pod_blocks_its_device_or_the_node(used: list[str], free: int) -> None:
    world = World(node("a", 2))
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    world.pod(pod("plugin", node="a", schedulerName="default-scheduler", containers=[limits]))
    world.report(report("a", {"id": 0, "inUseBy": used}, {"id": 1}))
    world.pod(pod("p", gpus=1))
    assert [each.placement.devices for each in world.executor.jobs] == [(1,)] * free
    world.pod_gone("plugin")
    world.report(report("a", {"id": 0}, {"id": 1}))
    assert len(world.executor.jobs) == 1


@pytest.mark.parametrize(
    "uses",
    [
        pytest.param({"containers": [{"resources": {"limits": {"nvidia.com/mig-1g.10gb": "2"}}}]}, id="MIG"),
        pytest.param(
            {"containers": [{"resources": {"limits": {"nvidia.com/gpu.shared": "1"}}}]}, id="shared"
        ),
        pytest.param({"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}, id="DRA"),
    ],
)
def test_pod_with_part_of_a_gpu_bars_its_node_until_it_is_reported(uses: dict[str, Any]) -> None:
    world = World(node("a", 2))
    world.pod(pod("other", node="a", schedulerName="default-scheduler", **uses))
    world.pod(pod("p", gpus=1))
    assert world.executor.refused["p"] == f"0/1 nodes fit: 1 {singular(inventory.PLUGIN_UNREPORTED)}"
    world.report(report("a", {"id": 0, "inUseBy": ["uid-other"]}, {"id": 1}))
    assert [each.placement.devices for each in world.executor.jobs] == [(1,)]


def test_pod_with_part_of_a_gpu_bars_its_node_until_it_has_ended() -> None:
    world = World(node("a", 2))
    world.pod(pod("other", node="a", resourceClaims=[{"name": "gpu"}], schedulerName="default-scheduler"))
    world.pod(pod("p", gpus=1))
    assert world.executor.jobs == []
    world.pod_gone("other")
    assert [each.placement.devices for each in world.executor.jobs] == [(0,)]


def test_node_that_can_no_longer_be_counted_is_not_used_as_it_was_before() -> None:
    world = World(node("a", 2))
    world.node(node("a", 0, gives={"nvidia.com/gpu": "1025"}))
    world.pod(pod("p", gpus=1))
    assert world.executor.refused["p"] == (
        "0/1 nodes fit: 1 cannot be counted: 1025 nvidia.com/gpu on one node; at most 1024 can be counted"
    )
    world.node(node("a", 2))
    assert [each.placement.devices for each in world.executor.jobs] == [(0,)]


def test_gpu_taint_keeps_pods_away_that_do_not_tolerate_it() -> None:
    taint = {"key": "nvidia.com/gpu", "value": "team-a", "effect": "NoExecute"}
    world = World(node("a", 2, taints=[taint]))
    world.pod(pod("p", gpus=1))
    assert world.executor.refused["p"] == "0/1 nodes fit: 1 has the taint nvidia.com/gpu=team-a:NoExecute"
    world.pod(pod("q", gpus=1, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]))
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["q"]


def test_refusal_is_reported_again_only_when_the_reason_changes() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=2))
    assert world.executor.refused.pop("p") == "0/1 nodes fit: 1 has fewer than 2 free GPUs"
    list(world.coordinator.pending.refresh(10))
    assert world.executor.refused == {}
    world.node(node("a", 1, unschedulable=True))
    list(world.coordinator.pending.refresh(0))
    assert world.executor.refused == {}
    list(world.coordinator.pending.refresh(10))
    assert world.executor.refused == {"p": "0/1 nodes fit: 1 is cordoned"}


def test_unknown_strategy_is_refused_with_a_hint() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1, strategy="binpak"))
    assert "did you mean 'binPack'?" in world.executor.refused["p"]


def test_gated_pod_is_neither_placed_nor_refused() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1, schedulingGates=[{"name": "g"}]))
    assert (world.executor.jobs, world.executor.refused) == ([], {})
    world.pod(pod("p", gpus=1))
    assert len(world.executor.jobs) == 1


def test_request_withdrawn_before_open_is_not_queued() -> None:
    """A pod that is queued twice before `open` is requested once, with its last request."""
    world = World(node("a", 8), opened=False)
    world.pod(pod("stays", gpus=1))
    world.pod(pod("leaves", gpus=1))
    world.pod(pod("stays", gpus=2))
    world.pod_gone("leaves")
    assert world.executor.jobs == []
    world.coordinator.open()
    assert [(job.pod.metadata.name, len(job.devices)) for job in world.executor.jobs] == [("stays", 2)]


def test_refusal_that_cannot_be_reported_loses_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: set[str] = set()

    def fail(executor: RecordingExecutor, pod: Pod, why: str) -> None:
        if pod.metadata.name in failing:
            raise RuntimeError("cannot be reported")

    monkeypatch.setattr(RecordingExecutor, "report_refused", fail)
    world = World(node("a", 3), opened=False)
    for name, gpus, priority in (("large", 2, 9), ("middle", 3, 5), ("small", 1, 0)):
        world.pod(pod(name, gpus=gpus, priority=priority))
    failing.add("middle")
    with pytest.raises(RuntimeError):
        world.coordinator.open()
    world.coordinator.tick()
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["large", "small"]
