"""The sweep over many leases: it lets other tasks run, and clears leases that stayed unused for long."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

import msgspec
import pytest
from msgspec import structs

from gpu_orchestrator.adapters.breath import SLICE_S
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.actions import Failed
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.claims import ClaimController
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.controllers.sweep import Sweeper, SweeperDeps
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from tests.apps.scheduler.test_coordinator import lease
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, World, gone
from tests.support.scheduler_objects import claim, node, pod, report

pytestmark = pytest.mark.looptime

WAIT_S = 30.0


class Swept:
    """A world with a sweeper; `cleared` are the pods whose leases it wanted cleared."""

    def __init__(self, world: World, clock: Callable[[], float] | None = None) -> None:
        self.server, self.metrics, clock = LeaseServer(1), Metrics(), clock or asyncio.get_running_loop().time
        metrics = self.metrics
        client = Client(self.server)
        leases = DeviceLeases(
            client, "system", Overlay(Shown(world.leases)), metrics=metrics, now=lambda: "now"
        )
        coordinator, pacer, self.cleared = world.coordinator, Pacer(clock), list[str]()
        releaser = Releaser(
            leases,
            Store(),
            AgentLiveness(clock, lambda: datetime.now(UTC)),
            leases_of=coordinator.lease_index.of,
            has_stopped=gone,
            freed=coordinator.freed,
            clock=clock,
            wait_s=WAIT_S,
            agent_s=15.0,
        )
        writer = ClaimWriter(client)
        claim_controller = ClaimController(
            writer, coordinator, releaser, metrics=metrics, pacer=pacer, now=lambda: "now"
        )
        reporter = Reporter(
            PodStatusWriter(client, world.pods),
            Recorder(client, "test"),
            pacer,
            lambda _: None,
        )
        self.sweep = Sweeper(
            client,
            leases,
            SweeperDeps(coordinator, claim_controller, releaser, reporter, metrics),
            clear_leases=lambda pod: self.cleared.append(pod.metadata.name),
            now=lambda: "now",
            clock=clock,
            wait_s=WAIT_S,
        )


@pytest.mark.parametrize("name", ["../../x", "..", "%", "x" * 254, "\u0663", "A b"])
async def test_lease_of_a_pod_that_cannot_exist_is_released(name: str) -> None:
    world = World(node("a", 1))
    forged = lease("a", 0, "uid-gone")
    about = forged.metadata.annotations | {"gpu.scheduling/pod": name}
    world.lease(structs.replace(forged, metadata=structs.replace(forged.metadata, annotations=about)))
    swept = Swept(world)
    await swept.sweep.once()
    assert swept.metrics.registry.get_sample_value("gpu_scheduler_leaked_leases_total") == 1


async def test_other_tasks_run_while_a_full_cluster_is_swept() -> None:
    steps, looks = 100, count()
    world = World(*(node(f"n{number}", 8) for number in range(steps)))
    for number in range(steps):
        for device in range(8):
            name = f"p{number}-{device}"
            world.pod(pod(name, node=f"n{number}", gpus=1, allocated=f"n{number}:{device}"))
            world.lease(lease(f"n{number}", device, f"uid-{name}"))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(take_turns())
    await Swept(world, clock=lambda: next(looks) * SLICE_S / steps).sweep.once()
    other.cancel()
    assert turns >= 3 * 7  # leases, pods, pods' claims: a turn for about a hundred of each


async def test_claim_that_many_pods_name_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, check = list[str](), ClaimController.check

    def observe(controller: ClaimController, name: str) -> None:
        checked.append(name)
        check(controller, name)

    monkeypatch.setattr(ClaimController, "check", observe)
    world = World(node("a", 2))
    world.claim(claim("c", count=1))
    world.pod(pod("user", node="a", claim="c"))
    for number in range(10):
        world.pod(pod(f"p{number}", claim="c"))
    world.pod(pod("made", node="a", claim_template="t"))
    await Swept(world).sweep.once()
    assert checked == ["default/c", "default/made-uid-made"]


async def test_lease_of_a_waiting_pod_is_cleared_after_every_sweep_saw_it_for_wait_s() -> None:
    world = World(node("a", 1), clears_leftovers=False)
    world.lease(lease("a", 0, "uid-p"))
    world.pod(pod("p", gpus=1))
    swept = Swept(world)
    await swept.sweep.once()
    await asyncio.sleep(WAIT_S - 1)
    await swept.sweep.once()
    assert swept.cleared == []
    await asyncio.sleep(1)
    await swept.sweep.once()
    assert swept.cleared == ["p"]


async def test_lease_written_to_in_between_starts_its_wait_again() -> None:
    """Another scheduler took it over in between and is at work."""
    world = World(node("a", 1), clears_leftovers=False)
    world.lease(lease("a", 0, "uid-p", version=1))
    world.pod(pod("p", gpus=1))
    swept = Swept(world)
    await swept.sweep.once()
    await asyncio.sleep(WAIT_S)
    world.lease(lease("a", 0, "uid-p", version=2))
    await swept.sweep.once()
    assert swept.cleared == []


async def test_refused_write_does_not_stop_the_sweep() -> None:
    """Both bound pods have lost their lease; the API server refuses to write the first one."""
    world = World(node("a", 2))
    for device in range(2):
        world.pod(pod(f"p{device}", gpus=1))
        world.bind(world.executor.jobs[device])
    swept = Swept(world)
    swept.server.forbidden.add("gpu-a-0")
    await swept.sweep.once()
    assert set(swept.server.leases) == {"gpu-a-1"}


@pytest.mark.parametrize(
    ("used", "conflicts"),
    [
        pytest.param(None, 1, id="no agent reports the device"),
        pytest.param(0, 1, id="the same device is reported"),
        pytest.param(1, 0, id="another device is reported"),
    ],
)
async def test_second_sweep_reports_a_device_plugin_conflict(used: int | None, conflicts: int) -> None:
    """kube-scheduler ignores claims, so the two can meet."""
    world = World(node("a", 2))
    world.lease(lease("a", 0, "uid-ours"))
    world.pod(pod("ours", node="a", gpus=1, allocated="a:0"))
    limits = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    world.pod(pod("plugin", node="a", schedulerName="default-scheduler", containers=[limits]))
    if used is not None:
        by = {0: ["uid-ours"], 1: []}
        by[used] = [*by[used], "uid-plugin"]
        world.report(report("a", *({"id": each, "inUseBy": by[each]} for each in by)))
    swept = Swept(world)
    for expected in (0, conflicts):
        await swept.sweep.once()
        assert swept.metrics.registry.get_sample_value("gpu_scheduler_conflicts_total") == expected


@pytest.mark.parametrize("is_shown", [True, False], ids=["shown before the failed acquire", "never shown"])
async def test_lease_of_a_failed_acquire_that_is_gone_is_forgotten(is_shown: bool) -> None:
    """Another scheduler took the device and released it while we were releasing our own leases."""
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    found = lease("a", 0, "uid-other")
    if is_shown:
        world.lease(found)
        world.lease_gone("gpu-a-0")
    world.coordinator.done(Failed(job, "taken", found=(found,)))
    assert world.free("a") == 0
    await Swept(world).sweep.once()
    assert world.free("a") == 1


async def test_lease_of_a_failed_acquire_that_the_watch_shows_is_kept() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    found = lease("a", 0, "uid-other")
    world.coordinator.done(Failed(world.executor.jobs[0], "taken", found=(found,)))
    world.lease(found)
    await Swept(world).sweep.once()
    assert world.free("a") == 0


def conflicts(swept: Swept) -> float | None:
    return swept.metrics.registry.get_sample_value("gpu_scheduler_conflicts_total")


@pytest.mark.parametrize("allocated", [{}, {"allocated": "a:7"}, {"allocated": "c:0"}])
@pytest.mark.parametrize("is_ours", [True, False], ids=["we bound it", "bound before we started"])
async def test_lease_of_a_live_pod_is_kept_whatever_its_annotation_says(
    allocated: dict[str, str], is_ours: bool
) -> None:
    world = World(node("a", 2), node("b", 1), opened=is_ours)
    swept = Swept(world)
    if is_ours:
        world.pod(pod("p", gpus=1, nodeSelector={}))
        world.bind(world.executor.jobs[0])
        at = world.executor.jobs[0].placement
    else:
        at = Placement("uid-p", "a", devices=(0,))
    held = lease(at.node, at.devices[0], "uid-p")
    swept.server.leases[held.metadata.name] = msgspec.to_builtins(held)
    world.lease(held)
    world.pod(pod("p", node=at.node, gpus=1, **allocated))
    for expected in (0, 1, 1):
        await swept.sweep.once()
        assert conflicts(swept) == expected
    assert set(swept.server.leases) == {held.metadata.name}


@pytest.mark.parametrize("is_ours", [True, False], ids=["we bound it", "bound before we started"])
async def test_lease_that_a_bound_pod_certainly_lacks_is_released(is_ours: bool) -> None:
    """On another node, and for a pod that we have bound ourselves also on its own."""
    world = World(node("a", 2), node("b", 2), opened=is_ours)
    swept = Swept(world)
    if is_ours:
        world.pod(pod("p", gpus=1))
        world.bind(world.executor.jobs[0])
        at = world.executor.jobs[0].placement
    else:
        at = Placement("uid-p", "a", devices=(0,))
    other = "b" if at.node == "a" else "a"
    for name, device in ((at.node, 0), (at.node, 1), (other, 0)):
        held = lease(name, device, "uid-p")
        swept.server.leases[held.metadata.name] = msgspec.to_builtins(held)
        world.lease(held)
    world.pod(pod("p", node=at.node, gpus=1, allocated=f"{at.node}:{at.devices[0]}"))
    await swept.sweep.once()
    kept = {f"gpu-{at.node}-{each}" for each in ((at.devices[0],) if is_ours else (0, 1))}
    assert set(swept.server.leases) == kept


async def test_restored_lease_has_the_terms_and_the_time_of_the_lost_one() -> None:
    world = World(node("a", 1))
    swept = Swept(world)
    ref, holder = DeviceRef("a", 0), Holder("uid-p", "p", "default", 250, since="t1")
    made = deviceleases.shared(ref, [holder], "system", "t1")
    world.lease(structs.replace(made, metadata=structs.replace(made.metadata, uid="l", resource_version="1")))
    world.pod(pod("p", node="a", gpus=1))
    world.lease_gone("gpu-a-0")
    await swept.sweep.once()
    (restored,) = (msgspec.convert(each, Lease) for each in swept.server.leases.values())
    assert deviceleases.holders(restored) == (holder,)


async def test_many_lost_leases_are_restored_several_at_once() -> None:
    world = World(*(node(f"n{number}", 8) for number in range(4)))
    swept = Swept(world)
    for at in (DeviceRef(f"n{number}", device) for number in range(4) for device in range(8)):
        world.lease(lease(at.node, at.device, f"uid-{at.lease}"))
        world.pod(pod(at.lease, node=at.node, gpus=1))
        world.lease_gone(at.lease)
    await swept.sweep.once()
    assert len(swept.server.leases) == 32
    assert 1 < swept.server.most_at_once <= 8


@pytest.mark.parametrize("holder", ["", "uid-other"], ids=["free", "held by another pod"])
async def test_lease_deleted_before_we_started_is_made_again_unless_another_pod_has_it(holder: str) -> None:
    world = World(node("a", 1), opened=False)
    given = {"phase": "Bound", "podUID": "uid-p", "nodeName": "a", "gpuIds": [0]}
    world.claim(claim("c", reserved_for="uid-p", status=given, count=1))
    world.pod(pod("p", node="a", claim="c"))
    world.pod(pod("other", node="a", gpus=1))
    swept = Swept(world)
    if holder:
        made = msgspec.to_builtins(lease("a", 0, holder))
        swept.server.leases["gpu-a-0"] = made
        world.lease(lease("a", 0, holder))
    world.coordinator.open()
    await swept.sweep.once()
    (restored,) = (msgspec.convert(each, Lease) for each in swept.server.leases.values())
    assert [each.uid for each in deviceleases.holders(restored)] == [holder or "uid-p"]
    conflicts = swept.metrics.registry.get_sample_value("gpu_scheduler_conflicts_total")
    assert conflicts == (1 if holder else 0)


async def test_object_that_breaks_our_code_does_not_end_the_sweep() -> None:
    world = World(node("a", 2))
    for device in range(2):
        world.pod(pod(f"p{device}", gpus=1))
        world.bind(world.executor.jobs[device])
    structs.force_setattr(world.coordinator.our_pods["uid-p0"].metadata, "annotations", None)
    broken = lease("a", 1, "uid-gone")
    world.leases.put(broken)
    structs.force_setattr(broken.metadata, "annotations", None)
    swept = Swept(world)
    await swept.sweep.once()
    assert set(swept.server.leases) == {"gpu-a-0", "gpu-a-1"}
    assert (swept.metrics.registry.get_sample_value("gpu_scheduler_errors_total", {"part": "sweep"}) or 0) > 0


async def test_sweep_that_fails_starts_again() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    world.bind(world.executor.jobs[0])
    broken = claim("c")
    world.claims.put(broken)
    name = structs.replace(broken.metadata)
    structs.force_setattr(broken, "metadata", None)
    swept = Swept(world)
    running = asyncio.create_task(swept.sweep.run(10.0))
    await asyncio.sleep(5)
    assert swept.metrics.registry.get_sample_value("gpu_scheduler_errors_total", {"part": "sweep"}) == 1
    structs.force_setattr(broken, "metadata", name)
    await asyncio.sleep(10)
    assert swept.metrics.registry.get_sample_value("gpu_scheduler_errors_total", {"part": "sweep"}) == 1
    assert not running.done()
    running.cancel()
