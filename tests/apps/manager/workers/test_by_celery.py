"""The session of a worker of Celery, over a scripted transport and on a real store: the ledger redeems each
ticket once, and only for the attempt that it has."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api import session
from gpu_orchestrator.api.tickets import Ticket
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.sessions import NOT_BY_CELERY, Sessions
from gpu_orchestrator.apps.manager.workers.tickets import Celery
from tests.apps.manager.workers.test_sessions import ScriptedTransport, end, join, outcomes_of
from tests.support.store_calls import give, task

pytestmark = pytest.mark.real


class Fleet:
    """Sessions whose tickets go into a queue, and one worker of Celery."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tickets: asyncio.Queue[tuple[str, Ticket, str]] = asyncio.Queue()
        self.void: list[str] = []
        celery = Celery(lambda *sent: self.tickets.put_nowait(sent), self.void.append)
        config = SessionConfig.of(Settings())
        self.sessions = Sessions(store, outcomes_of(store), config, lambda: None, celery)
        self.worker = ScriptedTransport(executor="celery")

    async def assigned(self) -> Ticket:
        """Assign a task to the worker, and return its ticket."""
        await self.store.leadership.campaign()
        await self.store.tasks.submit([task("t")])
        await give(self.store, "t", "w", 1)
        await self.worker.says(session.Renew(1))
        async with asyncio.timeout(20):
            worker, ticket, task_type = await self.tickets.get()
        assert (worker, task_type) == ("w", "echo")
        return ticket

    async def redeems(self, number: int, ticket: Ticket) -> session.Message:
        """Redeem a ticket, and return the answer."""
        before = len(self.worker.received)
        await self.worker.says(session.Redeem(number, ticket.task, ticket.attempt, ticket.epoch))
        async with asyncio.timeout(20):
            while True:
                for each in self.worker.received[before:]:
                    if isinstance(each, session.Assign | session.Void):
                        return each
                await asyncio.sleep(0.01)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="here") as store:
        made = Fleet(store)
        serving = await join(made.sessions, made.worker)
        yield made
        await end(serving)


async def test_worker_gets_a_ticket_and_for_it_the_assignment_once(fleet: Fleet) -> None:
    ticket = await fleet.assigned()
    assert ticket == Ticket("t", 1, 1)
    assert not fleet.worker.assigned.is_set(), "assignments are for those who redeem a ticket"
    answer = await fleet.redeems(1, ticket)
    assert isinstance(answer, session.Assign)
    assert (answer.task, answer.attempt, bytes(answer.parameters)) == ("t", 1, b'{"x": 1}')
    assert await fleet.redeems(2, ticket) == session.Void(2, "again")
    assert fleet.void == ["again"]


@pytest.mark.parametrize("forged", [Ticket("t", 2, 1), Ticket("t", 1, 2), Ticket("other", 1, 1)])
async def test_ticket_that_the_ledger_does_not_have_is_void(fleet: Fleet, forged: Ticket) -> None:
    ticket = await fleet.assigned()
    assert await fleet.redeems(1, forged) == session.Void(1, "old")
    assert isinstance(await fleet.redeems(2, ticket), session.Assign)


async def test_ticket_counts_later_if_the_store_does_not_answer(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = await fleet.assigned()

    async def fails(*_: object, **__: object) -> None:
        raise Unreachable("away")

    with monkeypatch.context() as patched:
        patched.setattr(fleet.store.tasks, "fetch", fails)
        assert await fleet.redeems(1, ticket) == session.Void(1, "store")
    assert isinstance(await fleet.redeems(2, ticket), session.Assign)


async def test_resumed_session_does_not_give_what_the_worker_has(fleet: Fleet) -> None:
    ticket = await fleet.assigned()
    await fleet.redeems(1, ticket)
    fleet.worker = ScriptedTransport(executor="celery", resume_epoch=1, running=(session.Attempt("t", 1),))
    serving = await join(fleet.sessions, fleet.worker)
    assert await fleet.redeems(2, ticket) == session.Void(2, "again")
    await end(serving)


async def test_worker_of_celery_is_refused_without_celery(fleet: Fleet) -> None:
    native = Sessions(fleet.store, outcomes_of(fleet.store), SessionConfig.of(Settings()), lambda: None)
    transport = ScriptedTransport("v", executor="celery")
    async with asyncio.timeout(20):
        await native.serve(transport, "v")
    assert transport.received == [NOT_BY_CELERY]
