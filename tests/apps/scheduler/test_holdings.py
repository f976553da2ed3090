"""What a bound pod holds: what its leases or our own binding say, whatever its owner writes, and never less
while it lives."""

from typing import Any

import msgspec
import pytest
import yaml

from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed
from tests.support.paths import ROOT
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod, report

PLUGIN: dict[str, Any] = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def lease(device: int, *holders: str, since: str = "t1", share: int = 0, on: str = "a") -> Lease:
    """Return the lease of a device: shared, if a share is given."""
    all_of = [Holder(f"uid-{name}", name, "default", share, since=since) for name in holders]
    ref = DeviceRef(on, device)
    made = (
        deviceleases.shared(ref, all_of, "system", since)
        if share
        else deviceleases.exclusive(ref, all_of[0], "system")
    )
    meta = msgspec.structs.replace(made.metadata, uid=f"lease-{on}-{device}", resource_version="1")
    return msgspec.structs.replace(made, metadata=meta)


def bound_world(**config: Any) -> World:
    """Return a world of two devices in which we have bound `p` to one of them."""
    world = World(node("a", 2), **config)
    world.pod(pod("p", gpus=1))
    world.bind(world.executor.jobs[0])
    return world


@pytest.mark.parametrize("uses_leases", [True, False], ids=["leases", "binding"])
@pytest.mark.parametrize("allocated", [None, "a:1", "a:0,1", "b:0", "a:" + "9" * 5000, "x"])
def test_annotation_changes_nothing_that_a_bound_pod_holds(allocated: str | None, uses_leases: bool) -> None:
    world = bound_world(uses_leases=uses_leases)
    more = {} if allocated is None else {"allocated": allocated}
    world.pod(pod("p", node="a", gpus=1, **more))
    assert world.coordinator.holdings.devices_of("uid-p") == (0,)
    world.pod(pod("q", gpus=2))
    assert "q" in world.executor.refused


def recorded(*ids: int, **status: Any) -> dict[str, Any]:
    """Return the status of a claim that serves `p`."""
    return {"phase": "Bound", "podUID": "uid-p", "nodeName": "a", "gpuIds": list(ids), **status}


def taken_over(*leases: Lease, status: dict[str, Any], **devices: Any) -> World:
    """Return a world that was taken over with `p` bound to node a of four devices, and these leases."""
    world = World(node("a", 4), opened=False)
    world.claim(claim("c", reserved_for="uid-p", status=status, **devices))
    for each in leases:
        world.lease(each)
    world.pod(pod("p", node="a", claim="c", allocated="a:0,1"))
    world.coordinator.open()
    return world


@pytest.mark.parametrize(
    ("leases", "status", "held"),
    [
        pytest.param([], recorded(0, 1), (0, 1), id="all leases deleted"),
        pytest.param([lease(1, "p")], recorded(0, 1), (0, 1), id="one lease deleted"),
        pytest.param([lease(3, "p")], recorded(0, 1), (3,), id="the leases name other devices"),
        pytest.param([lease(0, "p"), lease(1, "p")], recorded(0, 1), (0, 1), id="no lease deleted"),
        pytest.param([], recorded(0, 1, podUID="uid-q"), (), id="the claim serves another pod"),
        pytest.param([], recorded(0, 1, nodeName="b"), (), id="another node"),
        pytest.param([], recorded(0, 1, phase="Released"), (), id="released"),
        pytest.param([], {}, (), id="no status: an annotation proves nothing"),
    ],
)
def test_pod_whose_leases_were_deleted_before_we_started_holds_what_its_claim_says(
    leases: list[Lease], status: dict[str, Any], held: tuple[int, ...]
) -> None:
    world = taken_over(*leases, status=status, count=2)
    assert world.coordinator.holdings.devices_of("uid-p") == held
    assert world.free("a") == 4 - len(held)


def test_pod_whose_shared_lease_was_deleted_holds_its_share() -> None:
    world = taken_over(status=recorded(0), count=1, exclusivity="Shared", share=600)
    world.claim(claim("d", count=4, exclusivity="Shared", share=500))
    world.pod(pod("q", claim="d"))
    assert "q" in world.executor.refused


def test_device_of_a_deleted_lease_stays_taken_beside_the_lease_of_another_pod() -> None:
    world = taken_over(lease(0, "q"), status=recorded(0), count=1)
    assert world.free("a") == 3
    world.lease_gone("gpu-a-0")
    assert world.free("a") == 3
    world.pod_gone("p")
    world.coordinator.freed("uid-p")
    assert world.free("a") == 4


def test_only_the_scheduler_may_write_the_status_of_claims() -> None:
    roles = [
        (path, rule)
        for path in (ROOT / "config").rglob("*.yaml")
        for each in yaml.safe_load_all(path.read_text())
        if isinstance(each, dict) and each["kind"] in ("ClusterRole", "Role")
        for rule in each.get("rules", ())
    ]
    writers = [path for path, rule in roles if "gpuclaims/status" in rule.get("resources", ())]
    assert writers == [ROOT / "config/scheduler/role.yaml"]


@pytest.mark.parametrize("allocated", [None, "a:0", "a:1", "a:0,1", "b:0"])
def test_pod_bound_before_we_started_holds_what_its_leases_say(allocated: str | None) -> None:
    world = World(node("a", 2), opened=False)
    world.lease(lease(0, "p"))
    world.pod(pod("p", node="a", gpus=1, **({} if allocated is None else {"allocated": allocated})))
    world.coordinator.open()
    assert world.free("a") == 1
    assert world.coordinator.holdings.devices_of("uid-p") == (0,)


@pytest.mark.parametrize("scheduler", ["gpu-scheduler", "default-scheduler"])
@pytest.mark.parametrize("opened", [True, False], ids=["while we run", "before we started"])
def test_annotation_without_a_lease_holds_nothing(scheduler: str, opened: bool) -> None:
    world = World(node("a", 2), opened=opened)
    world.pod(pod("forged", node="a", gpus=2, allocated="a:0,1", schedulerName=scheduler))
    assert world.free("a") == 2


@pytest.mark.parametrize(
    ("left", "held"),
    [
        pytest.param([], (0, 1), id="all leases deleted"),
        pytest.param([lease(1, "p")], (1,), id="one lease left"),
        pytest.param([lease(0, "q"), lease(1, "q")], (0, 1), id="given to another pod meanwhile"),
    ],
)
def test_guarded_annotation_stands_in_for_leases_that_are_all_gone(
    left: list[Lease], held: tuple[int, ...]
) -> None:
    world = World(node("a", 4), opened=False, guarded_annotations=True)
    for each in left:
        world.lease(each)
    world.pod(pod("p", node="a", gpus=2, allocated="a:0,1"))
    world.coordinator.open()
    assert world.coordinator.holdings.devices_of("uid-p") == held
    assert world.free("a") == 4 - len(held)


def test_guarded_annotation_of_another_node_holds_nothing() -> None:
    world = World(node("a", 2), opened=False, guarded_annotations=True)
    world.pod(pod("p", node="a", gpus=2, allocated="b:0,1"))
    world.coordinator.open()
    assert world.free("a") == 2


def test_without_leases_a_pod_that_comes_with_a_node_holds_nothing() -> None:
    """Nobody but its owner can have written its annotation; before we started, another leader may have."""
    world = World(node("a", 3), uses_leases=False, opened=False)
    world.pod(pod("before", node="a", gpus=1, allocated="a:0"))
    world.coordinator.open()
    world.pod(pod("forged", node="a", gpus=1, allocated="a:1"))
    assert world.free("a") == 2
    world.pod(pod("late", gpus=2))
    world.pod(pod("late", node="a", gpus=2, allocated="a:1,2"))  # bound by the leader before us
    assert world.free("a") == 0


def test_terms_come_from_the_lease_and_not_from_the_claim() -> None:
    world = World(node("a", 1))
    world.claim(claim("whole"))
    world.lease(lease(0, "p", share=100))
    world.pod(pod("p", node="a", claim="whole", allocated="a:0"))
    world.claim(claim("most", exclusivity="Shared", share=900))
    world.pod(pod("q", claim="most"))
    assert [job.placement.devices for job in world.executor.jobs] == [(0,)]


def test_exclusive_lease_stays_exclusive_when_its_pod_names_a_shared_claim() -> None:
    world = World(node("a", 1))
    world.claim(claim("tenth", exclusivity="Shared", share=100))
    world.lease(lease(0, "p"))
    world.pod(pod("p", node="a", claim="tenth", allocated="a:0"))
    world.pod(pod("q", claim_template="tenth"))
    assert world.executor.jobs == []


def test_lost_lease_of_a_live_pod_stays_counted_until_its_devices_are_free() -> None:
    world = World(node("a", 1))
    world.lease(lease(0, "p"))
    world.pod(pod("p", node="a", gpus=1))
    world.lease_gone("gpu-a-0")
    assert world.free("a") == 0
    (hold,) = world.coordinator.lease_index.lost("uid-p")
    assert (hold.ref, hold.exclusive) == (DeviceRef("a", 0), True)
    world.pod_gone("p")
    assert world.free("a") == 0
    assert [each.pod.metadata.name for each in world.executor.released] == ["p"]
    world.coordinator.freed("uid-p")
    assert world.free("a") == 1


def test_lost_lease_of_a_pod_that_we_bound_stays_counted_until_its_devices_are_free() -> None:
    world = bound_world()
    world.lease(lease(0, "p"))
    world.lease_gone("gpu-a-0")
    assert world.free("a") == 1
    world.pod_gone("p")
    assert world.free("a") == 1
    world.coordinator.freed("uid-p")
    assert world.free("a") == 2


def test_lost_leases_of_a_pod_are_found_without_a_walk_over_those_of_others() -> None:
    world = World(node("a", 2))
    for device, name in enumerate(("p", "q")):
        world.lease(lease(device, name))
        world.pod(pod(name, node="a", gpus=1))
        world.lease_gone(f"gpu-a-{device}")
    index = world.coordinator.lease_index
    index._lost = _Unwalkable(index._lost)
    assert [hold.ref for hold in index.lost("uid-p")] == [DeviceRef("a", 0)]
    assert "uid-p" in index
    assert "uid-r" not in index
    world.pod_gone("p")
    world.coordinator.freed("uid-p")
    assert index.lost("uid-p") == []
    assert "uid-p" not in index
    assert [hold.ref for hold in index.lost("uid-q")] == [DeviceRef("a", 1)]


class _Unwalkable(dict[str, Any]):
    def values(self) -> Any:
        raise AssertionError("walks over all leases")

    def items(self) -> Any:
        raise AssertionError("walks over all leases")


def test_lost_lease_that_comes_back_counts_once() -> None:
    world = World(node("a", 1))
    world.lease(lease(0, "p", share=400))
    world.pod(pod("p", node="a", gpus=1))
    world.lease_gone("gpu-a-0")
    world.lease(lease(0, "p", share=400))
    assert world.coordinator.lease_index.lost("uid-p") == []
    assert [
        each.milli for each in world.coordinator.engine.cluster.held_on("a").values() if each.devices
    ] == [400]


def test_lease_that_another_scheduler_takes_back_is_not_kept() -> None:
    """Two others tried the same pod, each with a device of the same node. One of them has bound it."""
    world = World(node("a", 2))
    world.lease(lease(0, "p", since="t1"))
    world.lease(lease(1, "p", since="t2"))
    world.pod(pod("p", gpus=1))
    world.pod(pod("p", node="a", gpus=1, allocated="a:0"))
    assert world.free("a") == 0
    world.lease_gone("gpu-a-1")
    assert world.free("a") == 1


def test_part_of_a_pods_devices_is_kept_although_its_annotation_names_the_others() -> None:
    world = World(node("a", 2))
    for device in (0, 1):
        world.lease(lease(device, "p", since="t1"))
    world.pod(pod("p", node="a", gpus=2, allocated="a:0"))
    world.lease_gone("gpu-a-1")
    assert world.free("a") == 0


def start_bind() -> tuple[World, BindJob]:
    world = World(node("a", 2))
    world.pod(pod("p", gpus=1))
    return world, world.executor.jobs[0]


def test_device_stays_taken_when_the_watch_shows_our_bind_before_the_answer() -> None:
    world, job = start_bind()
    world.pod(pod("p", node="a", gpus=1))  # its owner has removed the annotation already
    assert world.free("a") == 1
    world.coordinator.done(Bound(job))
    assert world.free("a") == 1
    assert world.coordinator.state_of("uid-p") == "bound"


def test_device_stays_taken_when_our_bind_succeeded_and_we_could_not_tell() -> None:
    """The answer was lost, and the pod's annotation was changed before we read it."""
    world, job = start_bind()
    world.pod(pod("p", node="a", gpus=1, allocated="a:1"))
    world.coordinator.done(Failed(job, "no answer", found=(lease(0, "p"),)))
    assert world.free("a") == 1
    assert world.coordinator.holdings.devices_of("uid-p") == ()  # the watch has not shown the lease
    world.lease(lease(0, "p"))
    assert world.coordinator.holdings.devices_of("uid-p") == (0,)
    assert world.free("a") == 1


def test_plugin_pod_with_an_annotation_bars_the_node() -> None:
    world = World(node("a", 2))
    world.pod(pod("plugin", node="a", allocated="a:1", schedulerName="default-scheduler", **PLUGIN))
    world.pod(pod("p", gpus=1))
    assert "pods of a device plugin" in world.executor.refused["p"]


def test_pod_whose_quantities_cannot_be_read_still_holds_its_devices() -> None:
    world = World(node("a", 1))
    world.lease(lease(0, "p"))
    bad = {"resources": {"requests": {"cpu": "9" * 5000}}}
    world.pod(pod("p", node="a", gpus=1, containers=[bad]))
    assert world.coordinator.state_of("uid-p") == "bound"
    assert world.free("a") == 0


def test_resized_pod_keeps_its_devices() -> None:
    world = bound_world()
    more = {"resources": {"requests": {"cpu": "4"}}}
    world.pod(pod("p", node="a", gpus=1, containers=[more]))
    (held,) = world.coordinator.engine.cluster.held_on("a").values()
    assert held.devices == (0,)
    assert ("cpu", 4000) in held.resources


def test_leftover_leases_found_at_the_start_are_cleared_beside_other_schedulers_too() -> None:
    """Most of them are from before a crash. Later such a lease may be another scheduler's bind."""
    world = World(node("a", 2), clears_leftovers=False, opened=False)
    world.lease(lease(0, "p"))
    world.pod(pod("p", gpus=1))
    assert world.executor.cleared == ["p"]


def test_holder_that_the_agent_reports_is_not_counted_as_a_stranger_after_a_restart() -> None:
    """Reports are heard first, then leases, then pods."""
    world = World(node("a", 1), opened=False)
    world.claim(claim("tenth", exclusivity="Shared", share=100))
    world.report(report("a", {"id": 0, "inUseBy": ["uid-p"]}))
    world.lease(lease(0, "p", share=100))
    world.pod(pod("p", node="a", claim_template="tenth"))
    world.coordinator.open()
    world.pod(pod("q", claim_template="tenth"))
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["q"]


def test_device_in_use_by_a_pod_that_does_not_hold_it_is_taken() -> None:
    world = World(node("a", 2))
    world.lease(lease(0, "p"))
    world.pod(pod("p", node="a", gpus=1))
    world.report(report("a", {"id": 0, "inUseBy": ["uid-p"]}, {"id": 1, "inUseBy": ["uid-p"]}))
    assert world.free("a") == 0


def test_node_whose_live_agent_has_no_report_gives_nothing() -> None:
    """Somebody deleted the report: the plain count would give an ill device, or one in use, at once."""
    world = World(node("a", 2))
    world.report(seen := report("a", {"id": 0}, {"id": 1, "health": "Unhealthy"}))
    world.unreported.add("a")
    world.report_gone(seen)
    world.pod(pod("p", gpus=2))
    assert "1 has an agent that has not reported their GPUs yet" in world.executor.refused["p"]
    world.unreported.clear()
    world.coordinator.nodes.recount_silent()
    assert [job.placement.node for job in world.executor.jobs] == ["a"], "no agent: the count is all there is"


def test_node_waits_for_the_first_report_of_its_agent() -> None:
    world = World(node("a", 1))
    world.unreported.add("a")
    world.coordinator.nodes.on_agent("a")
    world.pod(pod("p", gpus=1))
    assert not world.executor.jobs
    world.report(report("a", {"id": 0}))
    assert [job.placement.node for job in world.executor.jobs] == ["a"]


def test_report_of_a_silent_agent_takes_no_device_except_for_plugin_pods() -> None:
    world = World(node("a", 3))
    world.pod(pod("plugin", node="a", schedulerName="default-scheduler", **PLUGIN))
    used: list[dict[str, Any]] = [
        {"id": 0, "inUseBy": ["uid-plugin"]},
        {"id": 1, "inUseBy": ["uid-gone"]},
        {"id": 2},
    ]
    world.report(report("a", *used))
    assert world.free("a") == 1
    world.silent.add("a")
    world.coordinator.nodes.recount_silent()
    assert world.free("a") == 2
    world.silent.clear()
    world.coordinator.nodes.on_agent("a")
    assert world.free("a") == 1


def test_refusal_that_will_repeat_is_told_at_once_and_others_the_third_time() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    for turn in range(3):
        assert "p" not in world.executor.refused
        world.coordinator.done(Failed(world.executor.jobs[turn], f"device 0 of a is held by x ({turn})"))
        world.now += 60
        world.coordinator.tick()
    assert world.executor.refused.pop("p") == "could not be bound to a: device 0 of a is held by x (2)"
    world.bind(world.executor.jobs[3])
    assert world.coordinator.pending.reason("uid-p") == ""
    world.pod_gone("p")
    world.coordinator.freed("uid-p")
    world.pod(pod("q", gpus=1))
    world.coordinator.done(Failed(world.executor.jobs[4], "not allowed (403)", is_permanent=True))
    assert world.executor.refused.pop("q") == "could not be bound to a: not allowed (403)"
    assert world.coordinator.pending.reason("uid-q") == "could not be bound to a: not allowed (403)"


def test_pod_that_breaks_our_code_is_refused_and_the_next_is_placed() -> None:
    world = World(node("a", 1))
    broken = pod("broken", gpus=1)
    msgspec.structs.force_setattr(broken.spec, "tolerations", None)
    world.pod(broken)
    assert world.executor.refused["broken"].startswith("could not be judged: TypeError")
    world.pod(pod("p", gpus=1))
    assert len(world.executor.jobs) == 1
