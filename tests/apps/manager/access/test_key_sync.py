"""Tests that the last use of a key survives an outage of the store."""

import pytest

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.keys import KeyPage
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.apps.manager.access.key_sync import KeySync
from gpu_orchestrator.apps.manager.access.keys import Keys


async def test_failed_write_keeps_the_last_uses() -> None:
    store, keys = Store(Database("unix:///nowhere/valkey.sock"), owner="one"), Keys([])
    key_sync = KeySync(store, keys, lambda: None)
    keys.used = {"a": 1, "b": 1}
    for write in (key_sync.write_used, key_sync.all):
        with pytest.raises(StoreError):
            await write()
        assert keys.used == {"a": 1, "b": 1}


async def test_later_use_wins_over_one_whose_write_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is used again while the write of the first use fails."""
    store, keys = Store(Database("unix:///nowhere/valkey.sock"), owner="one"), Keys([])
    look = store.keys.look

    async def used_meanwhile(known: int, used: list[tuple[str, int]]) -> KeyPage:
        keys.used["a"] = 2
        return await look(known, used)

    monkeypatch.setattr(store.keys, "look", used_meanwhile)
    keys.used = {"a": 1}
    with pytest.raises(StoreError):
        await KeySync(store, keys, lambda: None).write_used()
    assert keys.used == {"a": 2}
