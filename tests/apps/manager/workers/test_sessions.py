"""Sessions over scripted transports, on a real store: a stalled worker blocks no other, and only a worker
with a live session counts as connected."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.records import Departure, Registration
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.adapters.store.workers import RegisterResult
from gpu_orchestrator.api import pieces, session
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.apps.manager.tasks.outcomes import Outcomes
from gpu_orchestrator.apps.manager.tasks.results import Results
from gpu_orchestrator.apps.manager.tasks.task_logs import TaskLogs
from gpu_orchestrator.apps.manager.tasks.task_values import TaskValues
from gpu_orchestrator.apps.manager.workers.session_config import SessionConfig
from gpu_orchestrator.apps.manager.workers.sessions import Sessions
from gpu_orchestrator.apps.manager.workers.transports import Polls
from tests.support import scripted_worker
from tests.support.store_calls import give, task


class ScriptedTransport:
    """A transport whose worker has sent Hello; clear `reads` to make it stop reading."""

    def __init__(self, name: str = "w", **rest: object) -> None:
        self.name = name
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._frames.put_nowait(session.frame(scripted_worker.hello(name, **rest)))
        self._changed = asyncio.Condition()
        self.received: list[session.ToWorker] = []
        self.reads, self.welcomed, self.assigned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reads.set()

    async def receive(self) -> bytes | str:
        return await self._frames.get()

    def put(self, frame: bytes) -> None:
        self._frames.put_nowait(frame)

    async def says(self, *messages: session.Message) -> None:
        self._frames.put_nowait(session.frame(*messages))

    async def gets(self, expected: session.Message) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: expected in self.received)

    async def send(self, frame: bytes) -> None:
        await self.reads.wait()
        self.received += session.read_by_worker(frame)
        if any(isinstance(each, session.Welcome) for each in self.received):
            self.welcomed.set()
        if any(isinstance(each, session.Assign) for each in self.received):
            self.assigned.set()
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        await self.reads.wait()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="here") as opened:
        yield opened


def outcomes_of(store: Store) -> Outcomes:
    logs, results = TaskLogs(store, 1), Results(Settings(), sync=False)
    values = TaskValues(store, logs.allowed_bytes, str)
    return Outcomes(store, Metrics(), CompletionWaiters(), logs, results, values)


@pytest.fixture
def sessions(store: Store) -> Sessions:
    return Sessions(
        store,
        outcomes_of(store),
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


async def test_close_hands_workers_over_and_accepts_no_more(sessions: Sessions, store: Store) -> None:
    """A worker that is told that the server ends connects again at once, while the socket still listens."""
    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    await sessions.close()
    await serving
    assert transport.received[-1] == session.Goodbye("the server ends", hold_s=60.0)
    (row,) = await store.workers.fetch(["w"])
    assert row is not None
    assert (row["state"], row["connection"]) == ("suspect", "")
    again = ScriptedTransport(resume_epoch=1)
    await sessions.serve(again, "w")
    assert again.received == [session.Goodbye("the server ends")], "and the term of the restart still holds"


async def test_goodbye_promises_no_term_that_the_store_does_not_have(
    sessions: Sessions, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(_: object) -> None:
        raise Unreachable("gone")

    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    monkeypatch.setattr(store.workers, "hand_over", unreachable)
    await sessions.close()
    await serving
    assert transport.received[-1] == session.Goodbye("the server ends")


async def test_wish_of_an_operator_is_repeated_until_the_worker_leaves(
    sessions: Sessions, store: Store
) -> None:
    """The message that another process published was lost."""
    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    await store.workers.control("w", {"leaving": "1"})
    for number in (1, 2):
        await transport.says(session.Renew(number))
        await transport.gets(session.Renewed(number))
    drains = [each for each in transport.received if isinstance(each, session.Drain)]
    assert drains == [session.Drain(leave=True)] * len(drains)
    assert len(drains) >= 1
    await end(serving)


async def test_uncordon_does_not_call_back_a_worker_that_leaves(sessions: Sessions, store: Store) -> None:
    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    await transport.says(session.Leaving(), session.Renew(1))
    await transport.gets(session.Renewed(1))
    await store.workers.control("w", {"leaving": "0"})
    await transport.says(session.Renew(2))
    await transport.gets(session.Renewed(2))
    await transport.says(session.Renew(3))
    await transport.gets(session.Renewed(3))
    (row,) = await store.workers.fetch(["w"])
    assert row is not None
    assert row["leaving"] == "1"
    await end(serving)


async def test_removed_worker_is_told_at_its_next_renewal(sessions: Sessions, store: Store) -> None:
    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    await store.workers.leave([Departure("w", 1, "removed")])
    await store.workers.control("w", {}, forget=True)
    await transport.says(session.Renew(1))
    await serving
    assert transport.received[-1] == session.Goodbye("removed", fenced=True, retry=False)


async def test_run_that_is_no_longer_the_workers_own_is_stopped(sessions: Sessions) -> None:
    """The store lost the assignment in a failover, or the worker kept running past its lease."""
    before = await join(sessions, ScriptedTransport())
    await end(before)
    back = ScriptedTransport(resume_epoch=1, running=(session.Attempt("lost", 1),))
    serving = await join(sessions, back)
    await back.gets(session.Cancel("lost", 1))
    await end(serving)


async def test_large_message_for_another_process_is_not_published(
    sessions: Sessions, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store would drop the listener's connection. The other process reads the task from the store."""
    published: asyncio.Queue[bytes] = asyncio.Queue()

    async def publish(channel: str, message: bytes) -> None:
        published.put_nowait(message)

    monkeypatch.setattr(store.database, "publish", publish)
    large = session.Assign("t", 1, "echo", msgspec.Raw(b'"' + b"x" * (1 << 20) + b'"'))
    sessions.send("w", "there", large, epoch=1)
    async with asyncio.timeout(20):
        message = await published.get()
    assert len(message) < 100
    transport = ScriptedTransport()
    serving = await join(sessions, transport)
    await store.leadership.campaign()
    await store.tasks.submit([task("t")])
    await give(store, "t", "w", 1)
    sessions.deliver(message)
    async with asyncio.timeout(20):
        await transport.assigned.wait()
    await end(serving)


async def test_no_frame_to_a_worker_is_large(sessions: Sessions) -> None:
    """Eight tasks of 8 MB in one frame were more than a worker takes: it reconnected, and got them again."""
    transport = ScriptedTransport(pieces=True)
    serving = await join(sessions, transport)
    sizes: list[int] = []
    link = pieces.FrameLink()

    async def take(frame: bytes) -> None:
        sizes.append(len(frame))
        if (whole := link.receive(frame, 0.0)) is not None:
            transport.received += session.read_by_worker(whole)
        if link.has_news and (arrived := link.next(0.0)) is not None:
            transport.put(arrived)
        async with transport._changed:
            transport._changed.notify_all()

    transport.send = take  # type: ignore[method-assign]
    sent = [session.Assign(f"t{n}", 1, "echo", msgspec.Raw(b'"%s"' % (b"x" * 1_000_000))) for n in range(9)]
    for assign in sent:
        sessions.send("w", "here", assign, 1)
    await transport.gets(sent[-1])
    assert max(sizes) <= pieces.WHOLE
    assert [each for each in transport.received if isinstance(each, session.Assign)] == sent
    await end(serving)


async def test_polling_worker_may_come_to_any_process(store: Store, tmp_path: Path) -> None:
    """A load balancer brings each heartbeat to another of two processes: none is refused, nothing is lost."""
    key = Key("k", b"", "worker", "owner", frozenset())
    polls = []
    for number in (1, 2):
        own = Store(store.database, owner=f"process-{number}")
        polls.append(Polls(Sessions(own, outcomes_of(own), SessionConfig(), lambda: None), 60.0))
    epoch = (await polls[0].register(scripted_worker.hello("w"), key)).epoch
    await store.leadership.campaign()
    await store.tasks.submit([task("t")])
    await give(store, "t", "w", epoch)
    received: list[session.ToWorker] = []
    for number in range(1, 7):
        frames = await polls[number % 2].heartbeat(
            "w", key, epoch, session.frame(session.Renew(number), session.Started("t", 1)), 5.0
        )
        received += [message for frame in frames for message in session.read_by_worker(frame)]
    kinds = [type(each) for each in received]
    assert kinds.count(session.Renewed) >= 4
    assert session.Assign in kinds
    assert session.Goodbye not in kinds
    stranger = Key("other", b"", "worker", "owner", frozenset())
    for each, its_epoch in ((key, epoch + 1), (stranger, epoch)):
        third = Polls(Sessions(store, outcomes_of(store), SessionConfig(), lambda: None), 60.0)
        with pytest.raises(errors.Conflict, match="register again"):
            await third.heartbeat("w", each, its_epoch, b"[]", 5.0)
    for process in polls:
        await end(*(poll.serving for poll in process._open.values()))
