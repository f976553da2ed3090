"""Who leads, and what it does while the store is away."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.database import Database
from gpu_orchestrator.adapters.store.embedded import embedded
from gpu_orchestrator.adapters.store.store import Store, Terms
from gpu_orchestrator.adapters.store.values import Gone, Leading, Newcomer, Told
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.cluster import fleet, policies
from gpu_orchestrator.apps.cluster.dispatch import Means
from gpu_orchestrator.apps.cluster.leader import STORE_PAUSE_S, Leader, StoreClock
from gpu_orchestrator.apps.cluster.metrics import Metrics
from gpu_orchestrator.apps.cluster.owners import Owners
from gpu_orchestrator.apps.cluster.reaper import Guard
from gpu_orchestrator.apps.cluster.translate import Memory


def leader_of(store: Store) -> Leader:
    clock = StoreClock()
    means = Means(
        store,
        lambda *_: None,
        policies.registry("balanced"),
        Memory(),
        Metrics(),
        clock.now,
        Owners(Settings()),
    )
    return Leader(means, clock, Guard(1000))


@pytest.mark.looptime
async def test_a_store_that_is_away_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(Database("unix:///nowhere/valkey.sock"), owner="one", terms=Terms())
    strive, asked = store.leadership.strive, 0

    async def counted() -> Leading:
        nonlocal asked
        asked += 1
        if asked > 100:  # a leader that never pauses would not even let the test end
            raise asyncio.CancelledError
        return await strive()

    monkeypatch.setattr(store.leadership, "strive", counted)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 * STORE_PAUSE_S):
            await leader_of(store).run()
    assert 5 <= asked <= 11


async def test_doubt_that_comes_up_while_news_is_read_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Somebody's write is given up just then: the next round looks at everything anew."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one") as store:
        leader, rounds = leader_of(store), 0

        async def read(most: int = 1000) -> list[Told]:
            nonlocal rounds
            rounds += 1
            if rounds > 1:
                return []
            leader._doubt()
            return [Gone("t")]

        monkeypatch.setattr(store.leadership, "news", read)
        with capture_logs() as logs, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await leader.run()
        assert rounds > 1
        assert [each["event"] for each in logs if each["log_level"] == "error"] == []


async def test_a_lease_that_a_new_term_prolonged_is_not_over(tmp_path: Path) -> None:
    """Nobody led for longer than it lasted. The worker may have lived on, and is not said to be taken off."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="two") as store:
        async with Store(Database(server.url), owner="one", terms=Terms(lease_ms=1)) as before:
            hello = fleet.encode(session.Hello("w", "i"))
            await before.workers.register(Newcomer("w", "i", hello, "two", "c"))
        await asyncio.sleep(0.01)
        leader = leader_of(store)
        with capture_logs() as logs, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await leader.run()
        (row,) = await store.workers.fetch(["w"])
        assert row is not None
        assert row["state"] == "online"
        assert "worker taken off" not in {each["event"] for each in logs}
        assert not leader.guard.taken_ms
