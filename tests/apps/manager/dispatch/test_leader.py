"""The election loop, and its behaviour while the store is down."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import Rejected, Unreachable
from gpu_orchestrator.adapters.store.records import (
    ElectionResult,
    Gone,
    NewsItem,
    NewTask,
    Registration,
    Snapshot,
    UnfinishedTask,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.leader import STORE_PAUSE_S, Leader, StoreClock
from gpu_orchestrator.apps.manager.dispatch.reaper import Reaper
from gpu_orchestrator.apps.manager.fleet import rows, strategies
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy
from gpu_orchestrator.apps.manager.metrics import Metrics
from tests.support.patience import PATIENCE_S


def leader_of(store: Store) -> Leader:
    clock = StoreClock()
    deps = DispatcherDeps(
        store,
        lambda *_: None,
        strategies.registry("balanced"),
        MemoryPolicy(),
        Metrics(),
        clock.now,
        Quotas(Settings()),
    )
    return Leader(deps, clock, Reaper(1000))


@contextlib.asynccontextmanager
async def running(leader: Leader) -> AsyncIterator[None]:
    task = asyncio.ensure_future(leader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_round(leader: Leader) -> None:
    """Wait until the leader begins its next round."""
    leader.wake()
    while leader._wake.is_set():  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(0.01)


@pytest.mark.looptime
async def test_unreachable_store_is_polled_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Database("unix:///nowhere/valkey.sock"), owner="one", timeouts=StoreTimeouts())
    campaign, calls = store.leadership.campaign, 0

    async def counted() -> ElectionResult:
        nonlocal calls
        calls += 1
        if calls > 100:  # a leader that never pauses would not even let the test end
            raise asyncio.CancelledError
        return await campaign()

    monkeypatch.setattr(store.leadership, "campaign", counted)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 * STORE_PAUSE_S):
            await leader_of(store).run()
    assert 5 <= calls <= 11


async def test_lost_answer_to_a_leaders_write_ends_its_term(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The write may have been made, and its news is lost: what the leader knows may be wrong."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one") as store:
        leader = leader_of(store)
        running = asyncio.ensure_future(leader.run())
        while not leader.leads:  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0.01)

        async def lost(*_: object) -> None:
            raise Unreachable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(store.database, "call", lost)
            with pytest.raises(Unreachable):
                await store.tasks.finish([])
            assert store.fenced.fence == 0
            assert leader.dispatcher is None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_invalidation_while_reading_news_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A caller gives up its write at that moment: the next round loads a new snapshot."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one") as store:
        leader, rounds, again = leader_of(store), 0, asyncio.Event()

        async def read(most: int = 1000) -> list[NewsItem]:
            nonlocal rounds
            rounds += 1
            if rounds > 1:
                again.set()
                return []
            leader._invalidate()
            return [Gone("t")]

        monkeypatch.setattr(store.leadership, "news", read)
        with capture_logs() as logs:
            async with running(leader), asyncio.timeout(PATIENCE_S):
                await again.wait()
        assert [each["event"] for each in logs if each["log_level"] == "error"] == []


async def test_lease_extended_by_new_term_does_not_expire(tmp_path: Path) -> None:
    """No process led for longer than the lease. The worker may be alive, so it is not removed."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="two") as store:
        async with Store(Database(server.url), owner="one", timeouts=StoreTimeouts(lease_ms=1)) as before:
            hello = rows.encode(session.Hello("w", "i"))
            await before.workers.register(Registration("w", "i", hello, "two", "c"))
        await asyncio.sleep(0.01)
        leader = leader_of(store)
        with capture_logs() as logs:
            async with running(leader), asyncio.timeout(PATIENCE_S):
                for _ in range(3):  # the first begins the term, the others look for expired leases
                    await next_round(leader)
                assert leader.leads
        (row,) = await store.workers.fetch(["w"])
        assert row is not None
        assert row["state"] == "online"
        assert "worker taken off" not in {each["event"] for each in logs}
        assert not leader.reaper.removed_ms


async def test_leader_keeps_its_lease_while_it_loads_a_long_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The load lasts two leases: the other process never leads, and what came meanwhile is not lost."""
    timeouts, number = StoreTimeouts(leader_ms=1000), 0
    async with (
        embedded(tmp_path) as server,
        Store(Database(server.url), owner="one", timeouts=timeouts) as store,
        Store(Database(server.url), owner="two", timeouts=timeouts) as other,
    ):
        await other.tasks.submit([NewTask(f"t{each}", '{"task_type":"echo"}', "{}") for each in range(40)])
        pages = store.snapshots.pages

        async def slow_pages(snapshot: Snapshot) -> AsyncGenerator[tuple[UnfinishedTask, ...], None]:
            nonlocal number
            async for page in pages(snapshot, 10):
                number += 1
                await asyncio.sleep(0.4)
                if number == 4:
                    await store.tasks.submit([NewTask("mine", '{"task_type":"echo"}', "{}")])
                    await other.tasks.submit([NewTask("theirs", '{"task_type":"echo"}', "{}")])
                    await other.tasks.cancel(["t0"])
                yield page

        monkeypatch.setattr(store.snapshots, "pages", slow_pages)
        leader = leader_of(store)
        async with running(leader):
            async with asyncio.timeout(PATIENCE_S):
                while not leader.leads:
                    leads = (await other.leadership.campaign()).fence if store.fenced.fence else 0
                    assert leads == 0
                    await asyncio.sleep(0.05)
            assert leader.dispatcher is not None
            wanted = {*(f"t{each}" for each in range(1, 40)), "mine", "theirs"}
            async with asyncio.timeout(PATIENCE_S):
                while set(leader.dispatcher.tasks) != wanted:  # noqa: ASYNC110 - it sets no event
                    await asyncio.sleep(0.01)
            assert number >= 6


async def test_failing_job_does_not_end_the_term(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the leader knows is right, whatever becomes of old list entries."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one") as store:
        leader, tried = leader_of(store), asyncio.Event()

        async def refused(*_: object) -> int:
            tried.set()
            raise Rejected("ERR user_script: too many results to unpack")

        monkeypatch.setattr(store.tasks, "trim", refused)
        async with running(leader), asyncio.timeout(PATIENCE_S):
            await tried.wait()
            fence, dispatcher = store.fenced.fence, leader.dispatcher
            await next_round(leader)
            assert dispatcher is not None
            assert (store.fenced.fence, leader.dispatcher) == (fence, dispatcher)
