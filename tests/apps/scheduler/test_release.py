"""When the devices of an ended pod are free: by the agent's report, or after a wait if no agent reports."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.scheduler.accounting.agent_liveness import AgentLiveness
from gpu_orchestrator.apps.scheduler.actions import PodEnded
from gpu_orchestrator.apps.scheduler.binding.binder import Binder
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, LeaseHold
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.release import POLL_S, EndedPod, Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.executor import KubeExecutor
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.apps.scheduler.test_coordinator import lease
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, World, stores_of, volume_binder
from tests.support.scheduler_objects import pod, report

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def heartbeat(renewed: datetime) -> Lease:
    return Lease(ObjectMeta("gpu-agent-a"), LeaseSpec(renew_time=renewed.isoformat()))


def releaser(
    *, used: bool | None, agent_age_s: float | None, clock: float = 100.0, seen: bool = False
) -> Releaser:
    """`used`: the report names the pod; None: without a report. `seen`: an earlier report named it."""
    node_statuses: Store[GpuNodeStatus] = Store()
    agents = AgentLiveness(lambda: clock, lambda: NOW)
    if agent_age_s is not None:
        agents.on_lease(None, heartbeat(NOW - timedelta(seconds=agent_age_s)))
    made = Releaser(
        None,
        node_statuses,
        agents,
        leases_of=lambda _: [],
        is_bound=lambda uid: uid == "p",
        freed=lambda _: None,
        clock=lambda: clock,
        wait_s=30.0,
    )
    for in_use in ([True] if seen else []) + ([] if used is None else [used]):
        for change in node_statuses.put(report("a", {"id": 0, "inUseBy": ["p"] if in_use else []})):
            made.on_node_status(*change)
    return made


@pytest.mark.parametrize(
    ("used", "agent_age_s", "seen", "remaining_s"),
    [
        pytest.param(None, None, False, 20, id="no agent: 30 s after the end"),
        pytest.param(None, 1, False, 20, id="an agent that reports nothing"),
        pytest.param(False, 1, True, 0, id="the agent saw it and does not any more"),
        pytest.param(True, 1, False, POLL_S, id="the agent still sees it"),
        pytest.param(False, 1, False, 20, id="the agent has never seen it: it may have been too late"),
        pytest.param(True, 91, False, 20, id="the agent has died"),
        pytest.param(False, 91, True, 20, id="the agent has died after it saw the end"),
    ],
)
def test_remaining_s(used: bool | None, agent_age_s: float | None, seen: bool, remaining_s: float) -> None:
    made = releaser(used=used, agent_age_s=agent_age_s, seen=seen)
    assert made.remaining_s(EndedPod("p", "a", at=90.0)) == remaining_s


def test_pod_that_was_never_bound_is_released_at_once() -> None:
    assert releaser(used=None, agent_age_s=None).remaining_s(EndedPod("p", "", at=100.0)) == 0


@pytest.mark.parametrize("renewed", ["", "soon", "2026-01-01T00:00:00", "9" * 5000, "0001-01-01T00:00:00Z"])
def test_agent_with_an_unreadable_heartbeat_is_not_live(renewed: str) -> None:
    heard: list[str] = []
    agents = AgentLiveness(lambda: 0.0, lambda: NOW, heard.append)
    agents.on_lease(None, Lease(ObjectMeta("gpu-agent-a"), LeaseSpec(renew_time=renewed)))
    assert not agents.is_live("a")
    assert heard == ["a"]


def test_agent_liveness_uses_our_clock() -> None:
    """The agent's clock is an hour behind; it counts as live from the renewal that we see."""
    moment = [0.0]
    agents = AgentLiveness(lambda: moment[0], lambda: NOW)
    old = heartbeat(NOW - timedelta(hours=1))
    agents.on_lease(None, old)
    assert not agents.is_live("a")
    new = heartbeat(NOW - timedelta(hours=1) + timedelta(seconds=30))
    agents.on_lease(old, new)
    assert agents.is_live("a")
    moment[0] = 91.0
    assert not agents.is_live("a")
    agents.on_lease(new, None)
    assert not agents.is_live("a")


@pytest.mark.looptime
async def test_lease_written_to_since_it_was_seen_is_released_on_retry() -> None:
    """As when the sweep restored a lease that its watch did not show yet."""
    server, known, freed = LeaseServer(0), Store[Lease](), list[str]()
    leases = DeviceLeases(
        Client(server), "system", Overlay(Shown(known)), metrics=Metrics(), now=lambda: "now"
    )
    holder = Holder("p", "p", "default")

    async def acquired(ref: DeviceRef) -> Lease:
        assert isinstance(await leases.acquire(ref, holder, exclusive=True), LeaseHold)
        return msgspec.convert(server.leases[ref.lease], Lease)

    for index in (0, 1):
        known.put(await acquired(DeviceRef("a", index)))
    written = await acquired(DeviceRef("a", 0))
    made = Releaser(
        leases,
        Store(),
        AgentLiveness(lambda: 0.0, lambda: NOW),
        leases_of=lambda _: list(known),
        is_bound=lambda _: False,
        freed=freed.append,
        clock=lambda: 0.0,
        wait_s=0.0,
    )
    running = asyncio.create_task(made.run())
    made.add("p", "a")
    await asyncio.sleep(0.5)
    assert freed == []
    known.put(written)  # the watch catches up
    await asyncio.sleep(5)
    assert (server.leases, freed) == ({}, ["p"])
    running.cancel()


@pytest.mark.looptime
async def test_pod_that_we_never_saw_bound_waits_where_its_leases_are() -> None:
    """Another scheduler may have bound it, and its processes may still run there."""
    world, clock = World(), asyncio.get_running_loop().time
    freed: list[str] = []
    made = Releaser(
        None,
        world.node_statuses,
        AgentLiveness(clock, lambda: NOW),
        leases_of=world.coordinator.lease_index.of,
        is_bound=world.coordinator.holdings.__contains__,
        freed=freed.append,
        clock=clock,
        wait_s=30.0,
    )
    client, metrics, pacer = Client(LeaseServer(0)), Metrics(), Pacer(clock)
    status = PodStatusWriter(client, world.pods)
    reporter = Reporter(status, Recorder(client, "test"), pacer, lambda _: None)
    binder = Binder(
        client,
        status,
        None,
        ClaimWriter(client),
        volume_binder=volume_binder(client, stores_of()),
        reserves_claims=False,
        may_write=lambda: True,
        now=lambda: "now",
    )
    executor = KubeExecutor(client, status, None, binder, reporter, metrics=metrics, pacer=pacer)
    executor.attach(world.coordinator, made)
    world.lease(lease("a", 0, "uid-p"))
    executor.release(PodEnded(pod("p", gpus=1), None))
    executor.release(PodEnded(pod("q", gpus=1), None))
    running = asyncio.create_task(made.run())
    await asyncio.sleep(1)
    assert freed == ["uid-q"]  # it has no lease, so it was never bound
    await asyncio.sleep(30)
    assert freed == ["uid-q", "uid-p"]
    running.cancel()
