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
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.controllers.release import POLL_S, EndedPod, Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.executor import KubeExecutor
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from tests.apps.scheduler.test_coordinator import lease
from tests.support.lease_server import LeaseServer
from tests.support.scheduler_harness import Shown, World, gone, stores_of, volume_binder
from tests.support.scheduler_objects import pod, report

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def heartbeat(renewed: datetime, looked: datetime | str | None = None) -> Lease:
    """`looked`: when the agent looked; None: an agent that does not say."""
    at = looked.isoformat() if isinstance(looked, datetime) else looked
    meta = ObjectMeta("gpu-agent-a", annotations={} if at is None else {"gpu.scheduling/looked-at": at})
    return Lease(meta, LeaseSpec(renew_time=renewed.isoformat()))


def releaser(*, used: bool | None, agent_age_s: float | None, clock: float = 100.0) -> Releaser:
    """`used`: the report names the pod; None: without a report."""
    node_statuses: Store[GpuNodeStatus] = Store()
    agents = AgentLiveness(lambda: clock, lambda: NOW)
    if agent_age_s is not None:
        agents.on_lease(None, heartbeat(NOW - timedelta(seconds=agent_age_s)))
    if used is not None:
        node_statuses.put(report("a", {"id": 0, "inUseBy": ["p"] if used else []}))
    return Releaser(
        None,
        node_statuses,
        agents,
        leases_of=lambda _: [],
        has_stopped=gone,
        freed=lambda _: None,
        clock=lambda: clock,
        wait_s=30.0,
        agent_s=15.0,
    )


@pytest.mark.parametrize(
    ("used", "agent_age_s", "remaining_s"),
    [
        pytest.param(None, None, 20, id="no agent: 30 s after the end"),
        pytest.param(None, 1, 20, id="an agent that reports nothing"),
        pytest.param(False, 1, 5, id="the agent does not see it: it may not have looked since the end"),
        pytest.param(True, 1, POLL_S, id="the agent still sees it"),
        pytest.param(True, 91, 20, id="the agent has died"),
        pytest.param(False, 91, 20, id="the agent has died after it saw the end"),
    ],
)
def test_remaining_s(used: bool | None, agent_age_s: float | None, remaining_s: float) -> None:
    made = releaser(used=used, agent_age_s=agent_age_s)
    assert made.remaining_s(EndedPod("p", "a", "default/p", at=90.0)) == remaining_s


@pytest.mark.parametrize(
    ("looked_s_ago", "ended_s_ago", "is_free"),
    [
        pytest.param(2, 20, True, id="a look from after the end"),
        pytest.param(2, 14, False, id="but not before the agent has had its time"),
        pytest.param(25, 20, False, id="the driver hangs, or the report is refused"),
        pytest.param(20.5, 20, False, id="just before the end"),
        pytest.param(None, 20, False, id="no look yet"),
    ],
)
def test_live_agent_must_have_looked_since_the_end(
    looked_s_ago: float | None, ended_s_ago: float, is_free: bool
) -> None:
    """Whatever the agent's clock says: a day away from ours, here."""
    looked = "" if looked_s_ago is None else (NOW - timedelta(days=1, seconds=looked_s_ago)).isoformat()
    clock = [0.0]
    agents = AgentLiveness(lambda: clock[0], lambda: NOW)
    agents.on_lease(None, before := heartbeat(NOW - timedelta(days=2), looked=""))
    clock[0] = 100.0
    agents.on_lease(before, heartbeat(NOW - timedelta(days=1), looked))
    made = releaser(used=False, agent_age_s=1)
    made._agent_liveness = agents
    assert (made.remaining_s(EndedPod("p", "a", "default/p", at=100.0 - ended_s_ago)) == 0.0) == is_free


def test_what_was_looked_at_stays_so_when_another_agent_takes_over() -> None:
    agents = AgentLiveness(lambda: 100.0, lambda: NOW)
    agents.on_lease(None, first := heartbeat(NOW, NOW))
    agents.on_lease(first, second := heartbeat(NOW + timedelta(seconds=1), ""))
    assert agents.has_looked_since("a", 99.0)
    assert not agents.has_looked_since("a", 100.0)
    agents.on_lease(second, heartbeat(NOW + timedelta(seconds=2)))
    assert agents.has_looked_since("a", 1000.0), "an agent of an earlier release does not say"


@pytest.mark.looptime
async def test_devices_wait_for_the_look_and_are_free_with_it() -> None:
    made = Released()
    made.report()
    made.beat(looked_s_ago=0)
    running = asyncio.create_task(made.releaser.run())
    await asyncio.sleep(1)
    made.releaser.add("p", "a", "default/p")
    for _ in range(10):
        await asyncio.sleep(30)
        made.beat(looked_s_ago=400)
    assert made.freed == {}
    made.beat(looked_s_ago=5)
    await asyncio.sleep(0.1)
    assert made.freed == {"p": 301.0}
    running.cancel()


class Released:
    """A releaser with a live agent on node a; `freed` has the moment when each pod's devices were free."""

    def __init__(self, *, stopped: bool = False) -> None:
        self.clock, self.freed = asyncio.get_running_loop().time, dict[str, float]()
        self.reports, self.asked = Store[GpuNodeStatus](), list[str]()
        self._agents, self._stopped = AgentLiveness(self.clock, lambda: NOW), stopped
        self._beats = 0
        self.releaser = Releaser(
            None,
            self.reports,
            self._agents,
            leases_of=lambda _: [],
            has_stopped=self._ask,
            freed=lambda uid: self.freed.update({uid: round(self.clock(), 1)}),
            clock=self.clock,
            wait_s=30.0,
            agent_s=15.0,
        )

    def beat(self, looked_s_ago: float) -> None:
        """Show a sign of life of an agent that says when it looked."""
        self._beats += 1
        renewed = NOW + timedelta(seconds=self._beats)
        self._agents.on_lease(heartbeat(NOW), heartbeat(renewed, renewed - timedelta(seconds=looked_s_ago)))
        self.releaser.on_agent("a")

    async def _ask(self, ended: EndedPod) -> bool:
        self.asked.append(ended.key)
        return self._stopped

    def report(self, *uids: str) -> None:
        """Show a report that names these pods, and a sign of life."""
        self._agents.on_lease(None, heartbeat(NOW))
        for change in self.reports.put(report("a", {"id": 0, "inUseBy": list(uids)})):
            self.releaser.on_node_status(*change)


@pytest.mark.looptime
@pytest.mark.parametrize("is_new_leader", [False, True])
async def test_pod_that_opened_its_gpu_just_before_a_forced_delete_keeps_it(is_new_leader: bool) -> None:
    """The agent saw an earlier process of the pod, and not yet the one that runs. Only time since the end
    tells, and a leader that knows nothing of the past must not be quicker."""
    made = Released()
    if not is_new_leader:
        made.report("p")
    running = asyncio.create_task(made.releaser.run())
    await asyncio.sleep(1000)  # long after the bind
    made.report()
    made.releaser.add("p", "a", "default/p")
    await asyncio.sleep(10)
    made.report("p")  # the agent's next look
    await asyncio.sleep(50)
    assert made.freed == {}
    made.report()
    await asyncio.sleep(1)
    assert made.freed == {"p": 1060.0}
    running.cancel()


@pytest.mark.looptime
@pytest.mark.parametrize(("stopped", "freed_at"), [(True, 0.0), (False, 15.0)])
async def test_kubelets_word_frees_at_once_what_no_process_uses(stopped: bool, freed_at: float) -> None:
    made = Released(stopped=stopped)
    made.report()
    running = asyncio.create_task(made.releaser.run())
    made.releaser.add("p", "a", "default/p")
    await asyncio.sleep(60)
    assert (made.freed, made.asked) == ({"p": freed_at}, ["default/p"])
    running.cancel()


@pytest.mark.looptime
async def test_process_that_outlives_the_kubelets_word_keeps_its_gpu() -> None:
    made = Released(stopped=True)
    made.report("p")
    running = asyncio.create_task(made.releaser.run())
    made.releaser.add("p", "a", "default/p")
    await asyncio.sleep(60)
    assert made.freed == {}
    made.report()
    await asyncio.sleep(1)
    assert made.freed == {"p": 60.0}
    running.cancel()


def test_pod_that_was_never_bound_is_released_at_once() -> None:
    assert releaser(used=None, agent_age_s=None).remaining_s(EndedPod("p", "", "default/p", at=100.0)) == 0


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


def test_agent_whose_clock_is_off_may_live_until_it_should_have_renewed() -> None:
    """A new leader knows no agent. What is in use on a node must not be given before the next renewal."""
    moment = [0.0]
    agents = AgentLiveness(lambda: moment[0], lambda: NOW)
    agents.on_lease(None, held(found := heartbeat(NOW - timedelta(hours=1))))
    assert (agents.is_live("a"), agents.may_live("a")) == (False, True)
    moment[0] = 67.0
    assert not agents.may_live("a"), "it is dead"
    agents.on_lease(found, renewed := held(heartbeat(NOW - timedelta(minutes=59))))
    assert agents.may_live("a")
    moment[0] = 158.0
    assert not agents.may_live("a")
    agents.on_lease(renewed, None)
    agents.on_lease(None, heartbeat(NOW - timedelta(hours=1)))
    assert not agents.may_live("a"), "it ended, and let its Lease go"


def held(lease: Lease) -> Lease:
    return msgspec.structs.replace(lease, spec=msgspec.structs.replace(lease.spec, holder_identity="agent"))


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
        has_stopped=gone,
        freed=freed.append,
        clock=lambda: 0.0,
        wait_s=0.0,
        agent_s=0.0,
    )
    running = asyncio.create_task(made.run())
    made.add("p", "a", "default/p")
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
        has_stopped=gone,
        freed=freed.append,
        clock=clock,
        wait_s=30.0,
        agent_s=15.0,
    )
    client, metrics, pacer = Client(LeaseServer(0)), Metrics(), Pacer(clock)
    status = PodStatusWriter(client, world.pods)
    reporter = Reporter(status, Recorder(client, "test"), pacer, lambda _: None)
    binder = Binder(
        client,
        status,
        None,
        ClaimWriter(client),
        mps_gate=MpsGate(Store(), lambda _: True),
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
