"""Sessions on wires played by hand, on a real store: nobody waits for who takes nothing any more, and
nobody is taken for connected who is not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.records import Newcomer
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.adapters.store.workers import Greeting
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.sessions import Sessions
from tests.support import scripted_worker


class Played:
    """A connection whose worker has said hello; `takes` is cleared when it takes nothing any more."""

    def __init__(self, name: str = "w", **rest: object) -> None:
        self.name = name
        self._said: list[bytes] = [session.frame(scripted_worker.hello(name, **rest))]
        self.heard: list[session.ToWorker] = []
        self.takes, self.welcomed, self.assigned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.takes.set()

    async def receive(self) -> bytes | str:
        if not self._said:
            await asyncio.Event().wait()
        return self._said.pop()

    async def send(self, frame: bytes) -> None:
        await self.takes.wait()
        self.heard += session.read_by_worker(frame)
        if any(isinstance(each, session.Welcome) for each in self.heard):
            self.welcomed.set()
        if any(isinstance(each, session.Assign) for each in self.heard):
            self.assigned.set()

    async def close(self) -> None:
        await self.takes.wait()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="here") as opened:
        yield opened


@pytest.fixture
def sessions(store: Store) -> Sessions:
    return Sessions(
        store,
        Outcomes(store, Metrics(), CompletionWaiters()),
        SessionConfig.of(Settings()),
        came=lambda: None,
    )


async def join(sessions: Sessions, transport: Played) -> "asyncio.Task[None]":
    serving = asyncio.create_task(sessions.serve(transport, transport.name))
    async with asyncio.timeout(20):
        await transport.welcomed.wait()
    return serving


async def end(*serving: "asyncio.Task[None]") -> None:
    for each in serving:
        each.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


async def test_a_worker_that_comes_back_does_not_wait_for_its_lost_connection(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_orchestrator.apps.manager.workers.sessions.GOODBYE_S", 60.0)
    lost = Played()
    before = await join(sessions, lost)
    lost.takes.clear()
    after = await join(sessions, Played(resume_epoch=1))
    lost.takes.set()
    await end(before, after)


async def test_the_server_ends_whoever_takes_its_goodbye_and_then_all_are_parted_from(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_orchestrator.apps.manager.workers.sessions.GOODBYE_S", 3.0)
    lost = [Played(f"w{number}") for number in range(10)]
    serving = [await join(sessions, each) for each in lost]
    for each in lost:
        each.takes.clear()
    async with asyncio.timeout(20):  # one after the other it would be 30
        await sessions.close()
        await asyncio.gather(*serving)
    assert not len(sessions)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_worker_is_not_taken_for_connected_whose_session_ends_before_it_was_welcomed(
    sessions: Sessions, store: Store, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """It was registered, and nobody heard the answer."""
    register, is_written = store.workers.register, asyncio.Event()

    async def unheard(newcomer: Newcomer) -> Greeting:
        greeting = await register(newcomer)
        is_written.set()
        if is_lost:
            raise Unreachable("the answer was lost")
        await asyncio.Event().wait()
        return greeting

    monkeypatch.setattr(store.workers, "register", unheard)
    serving = asyncio.create_task(sessions.serve(Played(), "w"))
    await is_written.wait()
    if is_lost:
        await serving
    await end(serving)
    (row,) = await store.workers.fetch(["w"])
    assert row is not None
    assert (row["state"], row["connection"]) == ("suspect", "")


@pytest.mark.parametrize("is_there", [True, False], ids=["to a worker of ours", "from another process"])
async def test_what_was_given_to_a_worker_before_it_started_anew_is_not_told_it(
    sessions: Sessions, is_there: bool
) -> None:
    """It is on its way to a worker that restarts just then: the store has taken it back already."""
    transport = Played()
    serving = await join(sessions, transport)
    for epoch, name in ((7, "before"), (1, "now")):
        assign = session.Assign(name, 1, "echo")
        if is_there:
            sessions.to("w", "here", assign, epoch)
        else:
            sessions.deliver(msgspec.msgpack.encode(("w", session.frame(assign), epoch)))
    async with asyncio.timeout(20):
        await transport.assigned.wait()
    assert [each.task for each in transport.heard if isinstance(each, session.Assign)] == ["now"]
    await end(serving)


async def test_what_is_for_a_worker_that_started_anew_elsewhere_goes_there(
    sessions: Sessions, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection to us is lost, and we have not noticed yet."""
    posted: asyncio.Queue[str] = asyncio.Queue()

    async def publish(channel: str, message: bytes) -> None:
        posted.put_nowait(channel)

    monkeypatch.setattr(store.database, "publish", publish)
    serving = await join(sessions, Played())
    sessions.to("w", "there", session.Assign("t", 1, "echo"), epoch=2)
    async with asyncio.timeout(20):
        assert await posted.get() == "api:there"
    await end(serving)
