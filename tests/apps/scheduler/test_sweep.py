"""The sweep over many leases: it lets other tasks run, and clears leases that stayed unused for long."""

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec import structs

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.actions import Failed
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.claims import ClaimController
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.controllers.sweep import YIELD_EVERY, Sweeper, SweeperDeps
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.apps.scheduler.test_coordinator import lease
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, World
from tests.support.scheduler_objects import node, pod, report

pytestmark = pytest.mark.looptime

WAIT_S = 30.0


class Swept:
    """A world with a sweeper; `cleared` are the pods whose leases it wanted cleared."""

    def __init__(self, world: World) -> None:
        self.server, self.metrics, clock = LeaseServer(1), Metrics(), asyncio.get_running_loop().time
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
            freed=coordinator.freed,
            clock=clock,
            wait_s=WAIT_S,
        )
        writer = ClaimWriter(client)
        claim_controller = ClaimController(writer, coordinator, releaser, pacer=pacer, now=lambda: "now")
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
    world = World(*(node(f"n{number}", 8) for number in range(YIELD_EVERY)))
    for number in range(YIELD_EVERY):
        for device in range(8):
            name = f"p{number}-{device}"
            world.pod(pod(name, node=f"n{number}", gpus=1, allocated=f"n{number}:{device}"))
            world.lease(lease(f"n{number}", device, f"uid-{name}"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count())
    await Swept(world).sweep.once()
    other.cancel()
    assert turns >= 3 * 8 - 1  # leases, pods, pods' claims: a turn per hundred; one is the counter's own


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
        world.pod(pod(f"p{device}", node="a", gpus=1, allocated=f"a:{device}"))
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
