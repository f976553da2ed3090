"""The desk of an agent: processes of this machine present tickets over a socket."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpu_orchestrator.api import session, tickets
from gpu_orchestrator.apps.worker.desk import Desk, DeskCallbacks, Key

A = ("a", 1)
TICKET = tickets.Ticket("a", 1, 7)


class Agent:
    """What a desk needs of the agent."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[session.Message] = asyncio.Queue()
        self.here: set[Key] = set()
        self.cancelled: asyncio.Queue[Key] = asyncio.Queue()
        self.left = asyncio.Event()
        self.name = secrets.token_hex(8)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(f"\0{self.name}")
        listening.listen()
        self.desk = Desk(listening, tickets.Attached("gpu1", 2), self._callbacks())

    def _callbacks(self) -> DeskCallbacks:
        return DeskCallbacks(
            self.here.__contains__,
            self.cancelled.put_nowait,
            self.sent.put_nowait,
            self.left.set,
            lambda what: {"what": what},
        )


class Visitor:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, message: tickets.ToAgent) -> None:
        self.writer.write(tickets.line(message))

    async def hears(self) -> tickets.ToCelery | None:
        line = await self.reader.readline()
        return tickets.read_by_celery(line) if line else None

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    made = Agent()
    serving = asyncio.get_running_loop().create_task(made.desk.serve())
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def visiting(agent: Agent, *said: tickets.ToAgent) -> AsyncIterator[Visitor]:
    visitor = Visitor(*await asyncio.open_unix_connection(f"\0{agent.name}"))
    for message in said:
        visitor.say(message)
    try:
        yield visitor
    finally:
        await visitor.leave()


async def redeemed(agent: Agent) -> session.Redeem:
    message = await agent.sent.get()
    assert isinstance(message, session.Redeem)
    return message


async def test_process_hears_how_the_attempt_of_its_ticket_ended(agent: Agent) -> None:
    async with visiting(agent, TICKET) as visitor:
        asked = await redeemed(agent)
        assert (asked.task, asked.attempt, asked.epoch) == ("a", 1, 7)
        agent.desk.assigned(A)
        error = session.TaskError("ValueError", "no such thing")
        agent.desk.ended(A, session.Failed(*A, error), counted=True)
        assert await visitor.hears() == tickets.Ended(
            "failed", error="ValueError", message="ValueError: no such thing"
        )


async def test_second_process_with_the_same_ticket_is_refused(agent: Agent) -> None:
    async with visiting(agent, TICKET) as first:
        await redeemed(agent)
        agent.desk.assigned(A)
        agent.here.add(A)
        async with visiting(agent, TICKET) as second:
            agent.desk.void(session.Void((await redeemed(agent)).number, "again"))
            assert await second.hears() == tickets.Void("again")
        agent.desk.ended(A, session.Done(*A), counted=True)
        assert await first.hears() == tickets.Ended("completed")


async def test_run_of_a_killed_process_waits_for_the_redelivered_ticket(agent: Agent) -> None:
    async with visiting(agent, TICKET):
        await redeemed(agent)
        agent.desk.assigned(A)
        agent.here.add(A)
    async with visiting(agent, TICKET) as again:
        async with visiting(agent, tickets.Ask("ping")) as other:  # what came before is handled by then
            assert await other.hears() == tickets.Told({"what": "ping"})
        assert agent.sent.empty(), "it is not redeemed again"
        agent.desk.ended(A, session.Cancelled(*A), counted=True)
        ended = await again.hears()
        assert isinstance(ended, tickets.Ended)
        assert ended.status == "cancelled"


async def test_tickets_without_answer_are_asked_about_after_a_reconnect(agent: Agent) -> None:
    async with visiting(agent, TICKET) as visitor:
        first = await redeemed(agent)
        agent.desk.joined()
        assert await redeemed(agent) == first
        agent.desk.void(session.Void(first.number, "old"))
        assert await visitor.hears() == tickets.Void("old")


async def test_lost_lease_ends_the_waiting_of_processes(agent: Agent) -> None:
    async with visiting(agent, TICKET) as visitor:
        await redeemed(agent)
        agent.desk.assigned(A)
        agent.desk.lost()
        assert await visitor.hears() == tickets.Lost()


async def test_revoked_task_is_cancelled_and_other_ids_are_not_ours(agent: Agent) -> None:
    async with visiting(agent, *(tickets.Revoke(each) for each in ("x", ".1", "a.b", "a.²", "a.1"))):
        assert await agent.cancelled.get() == A
    assert agent.cancelled.empty()


async def test_agent_leaves_with_celerys_main_process(agent: Agent) -> None:
    async with visiting(agent, tickets.Attach()) as main:
        assert await main.hears() == tickets.Attached("gpu1", 2)
        assert not agent.left.is_set()
    await agent.left.wait()


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b"x" * 100_000 + b"\n", b'{"type":"Ticket"}\n'])
async def test_what_is_not_understood_ends_the_visit_alone(agent: Agent, line: bytes) -> None:
    async with visiting(agent) as visitor:
        visitor.writer.write(line)
        assert await visitor.hears() is None
    async with visiting(agent, tickets.Ask("ping")) as next_one:
        assert await next_one.hears() == tickets.Told({"what": "ping"})
