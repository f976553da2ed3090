"""The sweep over many leases: it lets others have their turns, and clears what nobody has used for long."""

import asyncio
from datetime import UTC, datetime

import pytest

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
from gpu_orchestrator.apps.scheduler.controllers.sweep import BREATH, Sweeper, SweeperDeps
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.apps.scheduler.test_coordinator import lease
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, World
from tests.support.scheduler_objects import node, pod, report

pytestmark = pytest.mark.looptime

WAIT_S = 30.0


class Swept:
    """A world with a sweep over it; `cleared` are the pods whose leases were to be taken off."""

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
            leases_of=coordinator.leases.of,
            freed=coordinator.freed,
            clock=clock,
            wait_s=WAIT_S,
        )
        account = ClaimController(ClaimWriter(client), coordinator, releaser, pacer=pacer, now=lambda: "now")
        reporter = Reporter(
            PodStatusWriter(client, Overlay(Shown(world.pods))),
            Recorder(client, "test"),
            pacer,
            lambda _: None,
        )
        self.sweep = Sweeper(
            client,
            leases,
            SweeperDeps(coordinator, account, releaser, reporter, metrics),
            clear=lambda pod: self.cleared.append(pod.metadata.name),
            now=lambda: "now",
            clock=clock,
            wait_s=WAIT_S,
        )


async def test_others_have_their_turns_while_a_full_cluster_is_swept() -> None:
    world = World(*(node(f"n{number}", 8) for number in range(BREATH)))
    for number in range(BREATH):
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
    assert turns >= 3 * 8 - 1  # leases, pods, pods' claims: a turn for each hundred; one is the counter's own


async def test_a_lease_of_a_waiting_pod_is_cleared_when_every_sweep_saw_it_for_long() -> None:
    world = World(node("a", 1), clears=False)
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


async def test_a_lease_written_anew_is_another_one() -> None:
    """Whoever took it over in between is at work."""
    world = World(node("a", 1), clears=False)
    world.lease(lease("a", 0, "uid-p", version=1))
    world.pod(pod("p", gpus=1))
    swept = Swept(world)
    await swept.sweep.once()
    await asyncio.sleep(WAIT_S)
    world.lease(lease("a", 0, "uid-p", version=2))
    await swept.sweep.once()
    assert swept.cleared == []


async def test_what_is_refused_for_one_does_not_keep_the_sweep_from_the_others() -> None:
    """The API server lets nobody write the first lease; the bound pods of both have lost theirs."""
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
        pytest.param(None, 1, id="nobody tells which device the plugin gave"),
        pytest.param(0, 1, id="the agent tells: the same"),
        pytest.param(1, 0, id="the agent tells: another"),
    ],
)
async def test_a_claimed_pod_beside_one_of_a_device_plugin(used: int | None, conflicts: int) -> None:
    """They met: kube-scheduler knows nothing of claims."""
    world = World(node("a", 2))
    world.pod(pod("ours", node="a", gpus=1, allocated="a:0"))
    limits = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    world.pod(pod("plugin", node="a", schedulerName="default-scheduler", containers=[limits]))
    if used is not None:
        by = {0: ["uid-ours"], 1: []}
        by[used] = [*by[used], "uid-plugin"]
        world.report(report("a", *({"id": each, "inUseBy": by[each]} for each in by)))
    swept = Swept(world)
    for told in (0, conflicts):
        await swept.sweep.once()
        assert swept.metrics.registry.get_sample_value("gpu_scheduler_conflicts_total") == told


@pytest.mark.parametrize("is_shown", [True, False], ids=["shown before we met it", "never shown"])
async def test_a_lease_that_is_gone_by_the_time_we_tell_of_it_is_forgotten(is_shown: bool) -> None:
    """Another scheduler took the device and gave it back while we still gave back what we had ourselves."""
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    (job,) = world.executor.jobs
    met = lease("a", 0, "uid-other")
    if is_shown:
        world.lease(met)
        world.lease_gone("gpu-a-0")
    world.coordinator.done(Failed(job, "taken", found=(met,)))
    assert world.free("a") == 0
    await Swept(world).sweep.once()
    assert world.free("a") == 1


async def test_a_lease_that_the_watch_shows_after_we_met_it_is_not_forgotten() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1))
    met = lease("a", 0, "uid-other")
    world.coordinator.done(Failed(world.executor.jobs[0], "taken", found=(met,)))
    world.lease(met)
    await Swept(world).sweep.once()
    assert world.free("a") == 0
