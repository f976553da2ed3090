"""Who leads, and what it does while the store is away."""

import asyncio
import contextlib

import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.database import Database
from gpu_orchestrator.adapters.store.store import Store, Terms
from gpu_orchestrator.adapters.store.values import Leading
from gpu_orchestrator.apps.cluster import policies
from gpu_orchestrator.apps.cluster.leader import STORE_PAUSE_S, Leader, StoreClock
from gpu_orchestrator.apps.cluster.means import Means
from gpu_orchestrator.apps.cluster.metrics import Metrics
from gpu_orchestrator.apps.cluster.owners import Owners
from gpu_orchestrator.apps.cluster.reaper import Guard
from gpu_orchestrator.apps.cluster.translate import Memory


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
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 * STORE_PAUSE_S):
            await Leader(means, clock, Guard(1000)).run()
    assert 5 <= asked <= 11
