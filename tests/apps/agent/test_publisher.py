"""When the report is written, and how often at most."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Unreachable
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusStatus
from gpu_orchestrator.api.wire import OwnerReference
from gpu_orchestrator.apps.agent import publisher, survey
from gpu_orchestrator.apps.agent.health import Condition, Fault
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.pace import Pace
from gpu_orchestrator.apps.agent.publisher import Publisher
from gpu_orchestrator.apps.agent.survey import Findings
from tests.support.agent_builders import NODE, OWNER, Server, device, look, reading
from tests.support.scripted_transport import refusal

pytestmark = pytest.mark.looptime
REFRESH_S = 300.0
ILL = Condition(Fault(3, "XID 79"), 0.0)


def status(*, ill: bool = False, users: frozenset[str] = frozenset(), used: int = 0) -> GpuNodeStatusStatus:
    seen = look(device(0), readings=[reading(used_mib=used)])
    found = Findings({"GPU-0": 0}, {"GPU-0": ILL} if ill else {}, {"GPU-0": users})
    return survey.survey(seen, found, datetime.now(UTC))


@asynccontextmanager
async def publishing(server: Server, *owner: OwnerReference) -> AsyncIterator[Publisher]:
    made = Publisher(
        Client(server).with_limits(patience_s=0),
        NODE,
        refresh_s=REFRESH_S,
        clock=asyncio.get_running_loop().time,
        owner=lambda: list(owner),
        metrics=Metrics(NODE),
    )
    running = asyncio.create_task(made.run(asyncio.Event()))
    yield made
    running.cancel()


async def test_first_report_makes_the_object_then_its_status() -> None:
    server = Server()
    server.refused = {f"/apis/gpu.scheduling/v1/gpunodestatuses/{NODE}/status": [refusal(404, "NotFound")]}
    async with publishing(server, OWNER) as made:
        assert not made.is_current()
        made.offer(status())
        await asyncio.sleep(0.1)
        assert made.is_current()
    first, made_it, last = server.requests
    assert first.target == last.target
    assert first.target.endswith(f"/{NODE}/status?fieldManager=gpu-scheduler-agent&force=true")
    assert (made_it.method, server.writes()[1]["spec"]) == ("POST", {"nodeName": NODE})


async def test_report_is_not_made_when_the_node_is_gone() -> None:
    """Nothing would ever delete it."""
    server = Server()
    path = f"/apis/gpu.scheduling/v1/gpunodestatuses/{NODE}/status"
    server.refused = {path: [refusal(404, "NotFound") for _ in range(10)]}
    async with publishing(server) as made:
        made.offer(status())
        await asyncio.sleep(10)
    assert not made.is_current()
    assert {each.method for each in server.requests} == {"PATCH"}


async def test_noise_is_written_only_with_the_refresh() -> None:
    server = Server()
    async with publishing(server, OWNER) as made:
        for second in range(600):
            made.offer(status(used=second))
            await asyncio.sleep(1)
    assert 2 <= len(server.writes()) <= 4
    assert server.writes()[-1]["status"]["devices"][0]["usedMemoryMiB"] > 200, "readings ride along"


async def test_change_is_written_at_once() -> None:
    server = Server()
    async with publishing(server, OWNER) as made:
        made.offer(status())
        await asyncio.sleep(100)
        made.offer(status(ill=True))
        await asyncio.sleep(0.01)
    assert [each["status"]["devices"][0]["health"] for each in server.writes()] == ["Healthy", "Unhealthy"]


async def test_writes_are_bounded_and_end_with_the_truth() -> None:
    """A pod that takes up and leaves a device sixty times a minute."""
    server = Server()
    async with publishing(server, OWNER) as made:
        for half in range(2 * 60 * 5):
            made.offer(status(users=frozenset({"pod"} if half % 2 else ())))
            await asyncio.sleep(0.5)
        flapped = len(server.writes())
        made.offer(status(users=frozenset({"last"})))
        await asyncio.sleep(publisher.EVERY_S + 0.1)
    assert flapped <= publisher.BURST + 5 * 60 / publisher.EVERY_S + 1
    assert server.writes()[-1]["status"]["devices"][0]["inUseBy"] == ["last"]


async def test_server_that_is_away_gets_the_newest_state_when_it_is_back() -> None:
    server = Server()
    async with publishing(server, OWNER) as made:
        made.offer(status())
        await asyncio.sleep(1)
        server.away = Unreachable("away")
        made.offer(status(ill=True))
        await asyncio.sleep(publisher.OVERDUE_S - 1)
        assert made.is_current()
        await asyncio.sleep(2)
        assert not made.is_current(), "no sign of life for a report that is out of date"
        made.offer(status(users=frozenset({"new"})))
        server.away = None
        await asyncio.sleep(31)
        assert made.is_current()
    (_, last) = server.writes()
    assert last["status"]["devices"][0]["inUseBy"] == ["new"]


async def test_report_that_may_be_wrong_is_not_current_until_what_is_seen_is_known() -> None:
    async with publishing(Server()) as made:
        made.offer(status())
        await asyncio.sleep(1)
        for _ in range(2):
            made.fall_behind()
            await asyncio.sleep(publisher.OVERDUE_S + 1)
            assert not made.is_current()
            made.offer(status(used=7))
            assert made.is_current()


async def test_report_tells_of_the_looks_that_found_what_is_written() -> None:
    """And of no later one while a change is unwritten, or written for all we know: the answer was lost."""
    async with publishing(server := Server()) as made:
        assert made.covers == publisher.NEVER
        made.offer(status(), 1.0)
        await asyncio.sleep(1)
        assert made.covers == 1.0
        made.offer(status(used=7), 2.0)
        assert made.covers == 2.0, "noise is no change"
        server.away = Unreachable("away")
        made.offer(status(ill=True), 3.0)
        await asyncio.sleep(10)
        made.offer(status(), 4.0)
        assert made.covers == 2.0
        server.away = None
        await asyncio.sleep(31)
        assert made.covers == 4.0


async def test_report_that_somebody_deleted_is_written_again_soon() -> None:
    path = f"/apis/gpu.scheduling/v1/gpunodestatuses/{NODE}"
    server = Server()
    server.found[path] = {"metadata": {"name": NODE}, "spec": {"nodeName": NODE}}
    async with publishing(server, OWNER) as made:
        made.offer(status())
        guarding = asyncio.create_task(made.guard(asyncio.Event()))
        await asyncio.sleep(3 * publisher.CHECK_S)
        assert len(server.writes()) == 1
        server.refused[path] = [refusal(404, "NotFound")]
        await asyncio.sleep(publisher.CHECK_S + 1)
        assert len(server.writes()) == 2
        guarding.cancel()


async def test_refusal_is_retried_and_does_not_end_the_agent() -> None:
    server = Server()
    path = f"/apis/gpu.scheduling/v1/gpunodestatuses/{NODE}/status"
    server.refused = {path: [refusal(403, "Forbidden", "is written by the agent on that node alone")] * 3}
    async with publishing(server, OWNER) as made:
        made.offer(status())
        await asyncio.sleep(10)
        assert made.is_current()
    assert len(server.requests) == 4


@pytest.mark.parametrize(("burst", "every_s"), [(1, 1.0), (6, 5.0)])
def test_pace(burst: int, every_s: float) -> None:
    pace = Pace(burst, every_s)
    assert [pace.wait_s(100.0) for _ in range(burst)] == [0.0] * burst
    assert pace.wait_s(100.0) == pytest.approx(every_s)
    assert pace.wait_s(100.0 + every_s) == 0.0
    assert pace.wait_s(99.0) > 0, "a clock that goes back earns nothing"


def test_steady_writes_of_a_large_cluster(figure: Any) -> None:
    """What 5,000 idle nodes write in a minute, by the rule: reports and heartbeats."""
    nodes, heartbeat_s = 5000, 30.0
    reports = nodes * 60 / (REFRESH_S * 0.9)
    heartbeats = nodes * 60 / (heartbeat_s * 0.95)
    figure(f"5,000 idle nodes write {reports:,.0f} reports and {heartbeats:,.0f} heartbeats a minute")
    assert reports < 1200
    assert heartbeats < 11_000
