"""The sign of life, and one agent on each node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.names import NAMESPACE
from gpu_orchestrator.apps.agent import publisher
from gpu_orchestrator.apps.agent.heartbeat import LOOK_S, MARGIN_S, TAKE_OVER, Displaced, Heartbeat
from tests.support.agent_builders import NODE, OWNER
from tests.support.lease_server import LeaseServer

pytestmark = pytest.mark.looptime
EVERY_S = 30.0
NAME = f"gpu-agent-{NODE}"


class Life:
    """One agent's heartbeat. `current`: its report is; `covers`: the look that it tells of; `owner`: its
    Node, if that is there."""

    def __init__(self, server: LeaseServer, identity: str) -> None:
        self.current, self.stopped = True, asyncio.Event()
        self.covers, self.owner = publisher.NEVER, [OWNER]
        self.beat = Heartbeat(
            Client(server).with_limits(patience_s=0),
            NODE,
            NAMESPACE,
            identity=identity,
            every_s=EVERY_S,
            clock=asyncio.get_running_loop().time,
            owner=lambda: self.owner,
            is_current=lambda: self.current,
            covers=lambda: self.covers,
        )
        self.task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        await self.beat.acquire()
        await self.beat.run(self.stopped)
        await self.beat.release()

    @asynccontextmanager
    async def living(self) -> AsyncIterator["Life"]:
        self.task = asyncio.create_task(self._run())
        await asyncio.sleep(1)
        yield self
        self.task.cancel()
        with suppress(asyncio.CancelledError, Displaced):
            await self.task

    async def stop(self) -> None:
        assert self.task is not None
        self.stopped.set()
        await self.task


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer(1)


def holder(server: LeaseServer) -> str:
    return str(server.leases[NAME]["spec"].get("holderIdentity", ""))


def renewed(server: LeaseServer) -> str:
    return str(server.leases[NAME]["spec"]["renewTime"])


def looked_at(server: LeaseServer) -> str:
    return str(server.leases[NAME]["metadata"]["annotations"]["gpu.scheduling/looked-at"])


async def test_renewed_every_thirty_seconds(server: LeaseServer) -> None:
    async with Life(server, "a").living():
        times = set()
        for _ in range(10):
            times.add(renewed(server))
            await asyncio.sleep(EVERY_S)
        assert len(times) == 10
        assert int(server.leases[NAME]["metadata"]["resourceVersion"]) <= 13


async def test_no_sign_of_life_while_the_report_is_out_of_date(server: LeaseServer) -> None:
    async with Life(server, "a").living() as life:
        life.current = False
        await asyncio.sleep(EVERY_S)
        before = renewed(server)
        await asyncio.sleep(10 * EVERY_S)
        assert renewed(server) == before
        life.current = True
        await asyncio.sleep(EVERY_S)
        assert renewed(server) != before


async def test_sign_of_life_says_when_the_look_began_that_the_report_tells_of(server: LeaseServer) -> None:
    """Also while the driver hangs, or the report is refused."""
    async with Life(server, "a").living() as life:
        assert looked_at(server) == "", "none yet"
        life.covers = asyncio.get_running_loop().time()
        await asyncio.sleep(10 * EVERY_S)
        age = timestamps.parse(renewed(server)) - timestamps.parse(looked_at(server))
        assert 9 * EVERY_S - 2 < age.total_seconds() <= 10 * EVERY_S


async def test_renewed_soon_after_a_pod_is_gone_but_not_before_a_look_from_after_that(
    server: LeaseServer,
) -> None:
    async with Life(server, "a").living() as life:
        clock = asyncio.get_running_loop().time
        life.covers = clock() + MARGIN_S
        life.beat.check()
        await asyncio.sleep(1)
        before = renewed(server)
        life.beat.owe()
        life.beat.check()
        await asyncio.sleep(1)
        assert renewed(server) == before
        life.covers = clock() + MARGIN_S
        life.beat.check()
        await asyncio.sleep(1)
        once = renewed(server)
        assert once != before
        life.beat.check()
        await asyncio.sleep(1)
        assert renewed(server) == once, "it is owed no more"


async def test_second_agent_waits_while_the_first_lives(server: LeaseServer) -> None:
    async with Life(server, "a").living(), Life(server, "b").living() as second:
        await asyncio.sleep(20 * EVERY_S)
        assert holder(server) == "a"
        assert second.beat.waits_for == "agent a of this node"


async def test_second_agent_takes_over_at_once_when_the_first_ends_cleanly(server: LeaseServer) -> None:
    async with Life(server, "a").living() as first, Life(server, "b").living() as second:
        before = renewed(server)
        await first.stop()
        assert (holder(server), renewed(server)) == ("", before), "not younger than its last look"
        await asyncio.sleep(LOOK_S + 1)
        assert holder(server) == "b"
        assert second.beat.waits_for == ""


async def test_second_agent_takes_over_from_one_that_is_dead(server: LeaseServer) -> None:
    async with Life(server, "a").living():
        pass  # killed: nothing is released
    assert holder(server) == "a"
    async with Life(server, "b").living():
        await asyncio.sleep(TAKE_OVER * EVERY_S - 2)
        assert holder(server) == "a"
        await asyncio.sleep(LOOK_S + 2)
        assert holder(server) == "b"


async def test_agent_that_starts_again_in_its_pod_goes_on_at_once(server: LeaseServer) -> None:
    async with Life(server, "a").living():
        pass
    before = renewed(server)
    async with Life(server, "a").living():
        assert renewed(server) != before


async def test_agent_whose_lease_was_taken_ends(server: LeaseServer) -> None:
    async with Life(server, "a").living() as first:
        server.leases[NAME]["spec"]["holderIdentity"] = "b"
        server.leases[NAME]["metadata"]["resourceVersion"] = "1000"
        await asyncio.sleep(EVERY_S + 1)
        assert first.task is not None
        with pytest.raises(Displaced, match="held by b"):
            await first.task


async def test_lease_written_by_somebody_else_is_renewed_again(server: LeaseServer) -> None:
    """As after an answer of ours that was lost, or a label that a person set."""
    async with Life(server, "a").living():
        server.leases[NAME]["metadata"]["resourceVersion"] = "1000"
        before = renewed(server)
        await asyncio.sleep(EVERY_S + 10)
        assert renewed(server) != before


async def test_deleted_lease_is_made_again(server: LeaseServer) -> None:
    async with Life(server, "a").living():
        server.leases.clear()
        await asyncio.sleep(EVERY_S + 10)
        assert holder(server) == "a"


async def test_lease_is_not_made_again_when_the_node_is_gone(server: LeaseServer) -> None:
    """Nothing would ever delete it. A node that is there again has its heartbeat."""
    async with Life(server, "a").living() as life:
        life.owner = []
        await asyncio.sleep(EVERY_S + 10)
        assert holder(server) == "a", "it is deleted with its Node, not before"
        server.leases.clear()
        await asyncio.sleep(EVERY_S + 10)
        assert not server.leases
        assert "Node" in life.beat.waits_for
        life.owner = [OWNER]
        await asyncio.sleep(10)
        assert holder(server) == "a"
        assert not life.beat.waits_for


async def test_agent_whose_lease_was_deleted_and_taken_ends(server: LeaseServer) -> None:
    async with Life(server, "a").living() as first, Life(server, "b").living():
        server.leases.clear()
        await asyncio.sleep(LOOK_S + 1)
        assert holder(server) == "b", "it has waited for that"
        await asyncio.sleep(2 * EVERY_S)
        assert first.task is not None
        with pytest.raises(Displaced, match="held by b"):
            await first.task
        assert first.beat.is_displaced


async def test_refused_heartbeat_is_told_and_tried_again(server: LeaseServer) -> None:
    server.forbidden.add(NAME)
    async with Life(server, "a").living() as life:
        assert "Forbidden" in life.beat.waits_for or "403" in life.beat.waits_for
        server.forbidden.clear()
        await asyncio.sleep(LOOK_S + 1)
        assert holder(server) == "a"
