"""Periodic work of the leader."""

import asyncio
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.apps.manager.dispatch.maintenance import Maintenance
from tests.support import stores

pytestmark = pytest.mark.real


async def test_trim_repeats_until_nothing_is_left(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(2500)]
    async with stores.server("embedded", tmp_path) as url, Database(url) as database:
        store = Store(database, owner="one", timeouts=StoreTimeouts(leader_ms=60_000, keep_ms=50))
        await store.leadership.campaign()
        await store.tasks.submit([NewTask(name, "{}", "{}", tenant="ann") for name in names])
        await store.tasks.cancel(names)
        async with asyncio.timeout(60):
            while not await store.tasks.trim():  # noqa: ASYNC110 - the store's clock must pass
                await asyncio.sleep(0.02)
        await Maintenance(store).do([])
        for owner in ("", "ann"):
            assert (await store.tasks.page(owner=owner, offset=0, limit=10)).total == 0
