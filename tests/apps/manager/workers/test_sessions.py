"""Sessions over scripted transports, on a real store: a stalled worker blocks no other, and only a worker
with a live session counts as connected."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.records import Registration
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.adapters.store.workers import RegisterResult
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.tasks.results import Results
from gpu_orchestrator.apps.manager.tasks.task_logs import TaskLogs
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.sessions import Sessions
from tests.support import scripted_worker


class ScriptedTransport:
    """A transport whose worker has sent Hello; clear `reads` to make it stop reading."""

    def __init__(self, name: str = "w", **rest: object) -> None:
        self.name = name
        self._frames: list[bytes] = [session.frame(scripted_worker.hello(name, **rest))]
        self.received: list[session.ToWorker] = []
        self.reads, self.welcomed, self.assigned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reads.set()

    async def receive(self) -> bytes | str:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop()

    async def send(self, frame: bytes) -> None:
        await self.reads.wait()
        self.received += session.read_by_worker(frame)
        if any(isinstance(each, session.Welcome) for each in self.received):
            self.welcomed.set()
        if any(isinstance(each, session.Assign) for each in self.received):
            self.assigned.set()

    async def close(self) -> None:
        await self.reads.wait()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="here") as opened:
        yield opened


@pytest.fixture
def sessions(store: Store) -> Sessions:
    return Sessions(
        store,
        Outcomes(store, Metrics(), CompletionWaiters(), TaskLogs(store, 1), Results(Settings(), sync=False)),
        SessionConfig.of(Settings()),
        on_registered=lambda: None,
    )


async def join(sessions: Sessions, transport: ScriptedTransport) -> "asyncio.Task[None]":
    serving = asyncio.create_task(sessions.serve(transport, transport.name))
    async with asyncio.timeout(20):
        await transport.welcomed.wait()
    return serving


async def end(*serving: "asyncio.Task[None]") -> None:
    for each in serving:
        each.cancel()
    await asyncio.gather(*serving, return_exceptions=True)


async def test_reconnecting_worker_does_not_wait_for_its_lost_connection(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_orchestrator.apps.manager.workers.sessions.GOODBYE_S", 60.0)
    lost = ScriptedTransport()
    before = await join(sessions, lost)
    lost.reads.clear()
    after = await join(sessions, ScriptedTransport(resume_epoch=1))
    lost.reads.set()
    await end(before, after)


async def test_close_disconnects_all_workers_even_if_they_do_not_read_goodbye(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_orchestrator.apps.manager.workers.sessions.GOODBYE_S", 3.0)
    lost = [ScriptedTransport(f"w{number}") for number in range(10)]
    serving = [await join(sessions, each) for each in lost]
    for each in lost:
        each.reads.clear()
    async with asyncio.timeout(20):  # one after the other it would be 30
        await sessions.close()
        await asyncio.gather(*serving)
    assert not len(sessions)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_session_that_ends_before_welcome_leaves_worker_suspect(
    sessions: Sessions, store: Store, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The store registered the worker, and the answer was lost or not awaited."""
    register, is_written = store.workers.register, asyncio.Event()

    async def answer_lost(registration: Registration) -> RegisterResult:
        registered = await register(registration)
        is_written.set()
        if is_lost:
            raise Unreachable("the answer was lost")
        await asyncio.Event().wait()
        return registered

    monkeypatch.setattr(store.workers, "register", answer_lost)
    serving = asyncio.create_task(sessions.serve(ScriptedTransport(), "w"))
    await is_written.wait()
    if is_lost:
        await serving
    await end(serving)
    (row,) = await store.workers.fetch(["w"])
    assert row is not None
    assert (row["state"], row["connection"]) == ("suspect", "")


@pytest.mark.parametrize("is_here", [True, False], ids=["sent here", "from another process"])
async def test_assignment_for_earlier_epoch_is_not_sent(sessions: Sessions, is_here: bool) -> None:
    """The worker restarts while the assignment is on its way: the store has queued the task again already."""
    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    for epoch, name in ((7, "before"), (1, "now")):
        assign = session.Assign(name, 1, "echo")
        if is_here:
            sessions.send("w", "here", assign, epoch)
        else:
            sessions.deliver(msgspec.msgpack.encode(("w", session.frame(assign), epoch)))
    async with asyncio.timeout(20):
        await transport.assigned.wait()
    assert [each.task for each in transport.received if isinstance(each, session.Assign)] == ["now"]
    await end(serving)


async def test_message_for_newer_epoch_goes_to_the_other_process(
    sessions: Sessions, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker lost its connection to this process, which has not noticed yet."""
    published: asyncio.Queue[str] = asyncio.Queue()

    async def publish(channel: str, message: bytes) -> None:
        published.put_nowait(channel)

    monkeypatch.setattr(store.database, "publish", publish)
    serving = await join(sessions, ScriptedTransport())
    sessions.send("w", "there", session.Assign("t", 1, "echo"), epoch=2)
    async with asyncio.timeout(20):
        assert await published.get() == "api:there"
    await end(serving)
