"""The desk alone: objects in, jobs and refusals out, a device accounted to exactly one at any moment."""

import pytest

from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.scheduler.actions import Bound, Failed
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod, report


def lease(node: str, device: int, uid: str, version: int = 1) -> Lease:
    made = deviceleases.exclusive(DeviceRef(node, device), Holder(uid, "p", "default", since="t"), "system")
    meta = made.metadata
    about = ObjectMeta(
        meta.name, "system", f"lease-{meta.name}", str(version), 0, meta.labels, meta.annotations
    )
    return Lease(about, made.spec)


def test_a_pod_is_placed_once_and_held_once() -> None:
    world = World(node("a", 2))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    assert world.free("a") == 1
    world.lease(lease("a", job.placement.devices[0], "uid-p"))
    assert world.free("a") == 1  # the assumption and the lease are the same device
    world.bind(job)
    assert world.free("a") == 1
    assert len(world.executor.jobs) == 1


def test_a_bound_pod_that_is_shown_unbound_for_a_moment_longer_keeps_its_devices() -> None:
    """Another event about it arrives between its bind and the watch telling of it."""
    world = World(node("a", 2))
    world.claim(claim("c"))
    world.pod(pod("p", claim="c"))
    (job,) = world.executor.jobs
    world.lease(lease("a", job.placement.devices[0], "uid-p"))
    world.coordinator.done(Bound(job))
    world.claim(claim("c", served="uid-p"))
    assert world.executor.cleared == []
    assert world.free("a") == 1


def test_a_lease_of_something_else_with_a_devices_name_keeps_the_device_unused() -> None:
    """Signs of life: of the agent on `node-3`, and of one on `node-03`, which is no number of a device."""
    world = World(node("agent-node", 4))
    for name in ("gpu-agent-node-3", "gpu-agent-node-03"):
        world.lease(Lease(ObjectMeta(name, "system", f"uid-{name}", "1"), LeaseSpec("an agent")))
    assert world.free("agent-node") == 3
    world.pod(pod("p", gpus=4))
    assert "1 has fewer than 4 free GPUs" in world.executor.refused["p"]
    world.lease_gone("gpu-agent-node-3")
    assert [job.placement.devices for job in world.executor.jobs] == [(0, 1, 2, 3)]


def test_an_ended_pods_lease_holds_its_device() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    world.lease(lease("a", 0, "uid-p"))
    world.bind(job)
    world.pod_gone("p")
    assert [each.placement for each in world.executor.has_ended] == [job.placement]
    world.pod(pod("q", gpus=1))
    assert world.executor.refused == {"q": "0/1 nodes fit: 1 has no wholly free GPU"}
    world.lease_gone("gpu-a-0")
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["p", "q"]


def test_without_leases_an_ended_pods_devices_are_remembered() -> None:
    world = World(node("a", 1), leases=False)
    world.pod(pod("p", gpus=1))
    world.bind(world.executor.jobs[0])
    world.pod_gone("p")
    assert world.free("a") == 0
    world.coordinator.freed("uid-p")
    assert world.free("a") == 1


def test_a_pod_that_ends_while_it_is_bound_is_released() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    world.lease(lease("a", 0, "uid-p"))
    world.pod_gone("p")
    assert world.executor.has_ended == []
    world.coordinator.done(Bound(job))
    assert [each.placement for each in world.executor.has_ended] == [job.placement]
    assert world.free("a") == 0  # until its lease is gone
    world.lease_gone("gpu-a-0")
    assert world.free("a") == 1


def test_a_device_that_was_taken_is_not_tried_again() -> None:
    world = World(node("a", 2))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    other = lease("a", job.placement.devices[0], "uid-other")
    world.coordinator.done(Failed(job, "taken", found=(other,)))
    assert world.free("a") == 1


def test_leftover_leases_are_cleared_before_the_pod_is_asked_for() -> None:
    world = World(node("a", 1))
    world.lease(lease("a", 0, "uid-p"))
    world.pod(pod("p", gpus=1))
    assert world.executor.cleared == ["p"]
    assert world.executor.jobs == []
    world.lease_gone("gpu-a-0")
    world.coordinator.cleared("uid-p")
    assert len(world.executor.jobs) == 1


def test_beside_others_leftover_leases_are_left_alone() -> None:
    world = World(node("a", 2), clears=False)
    world.lease(lease("a", 0, "uid-p"))
    world.pod(pod("p", gpus=1))
    assert world.executor.cleared == []
    assert [each.placement.devices for each in world.executor.jobs] == [(1,)]


def test_a_claim_is_given_to_one_of_two_pods() -> None:
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


def test_a_claim_serves_on_a_pod_that_others_bound_while_we_tried() -> None:
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


def test_a_claim_serves_a_pod_that_others_bound_before_anybody_else_is_placed() -> None:
    world = World(node("a", 2))
    world.claim(claim("c"))
    world.pod(pod("q", claim="c"))
    world.coordinator.done(Failed(world.executor.jobs.pop(), "refused"))
    world.now = 60.0  # q has rested: whatever is heard next makes the engine place it
    world.pod(pod("p", claim="c", node="a", allocated="a:0"))
    assert world.executor.jobs == []
    assert [job.pod.metadata.name for job in world.executor.abandoned] == ["q"]


@pytest.mark.parametrize(
    ("used", "free"),
    [
        pytest.param([], 0, id="nobody tells: barred"),
        pytest.param(["uid-plugin"], 1, id="the agent tells: the other is free"),
    ],
)
def test_pods_of_a_device_plugin(used: list[str], free: int) -> None:
    world = World(node("a", 2))
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    world.pod(pod("plugin", node="a", schedulerName="default-scheduler", containers=[limits]))
    world.report(report("a", {"id": 0, "inUseBy": used}, {"id": 1}))
    world.pod(pod("p", gpus=1))
    assert [each.placement.devices for each in world.executor.jobs] == [(1,)] * free
    world.pod_gone("plugin")
    world.report(report("a", {"id": 0}, {"id": 1}))
    assert len(world.executor.jobs) == 1


def test_a_refusal_is_told_once_and_again_when_the_reason_changed() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=2))
    assert world.executor.refused.pop("p") == "0/1 nodes fit: 1 has fewer than 2 free GPUs"
    world.coordinator.waiting.refresh(10)
    assert world.executor.refused == {}
    world.node(node("a", 1, unschedulable=True))
    world.coordinator.waiting.refresh(0)
    assert world.executor.refused == {}
    world.coordinator.waiting.refresh(10)
    assert world.executor.refused == {"p": "0/1 nodes fit: 1 is cordoned"}


def test_an_unknown_strategy_is_refused_with_a_hint() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1, strategy="binpak"))
    assert "did you mean 'binPack'?" in world.executor.refused["p"]


def test_a_gated_pod_waits_in_silence() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1, schedulingGates=[{"name": "g"}]))
    assert (world.executor.jobs, world.executor.refused) == ([], {})
    world.pod(pod("p", gpus=1))
    assert len(world.executor.jobs) == 1


def test_what_was_withdrawn_before_the_desk_opened_is_not_asked_for() -> None:
    """And asking twice before it opens is asking once."""
    world = World(node("a", 8), opened=False)
    world.pod(pod("stays", gpus=1))
    world.pod(pod("leaves", gpus=1))
    world.pod(pod("stays", gpus=2))
    world.pod_gone("leaves")
    assert world.executor.jobs == []
    world.coordinator.open()
    assert [(job.pod.metadata.name, len(job.devices)) for job in world.executor.jobs] == [("stays", 2)]
