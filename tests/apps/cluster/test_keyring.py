"""When keys were used last is known also after the store was away."""

import pytest

from gpu_orchestrator.adapters.store.database import Database
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.cluster.keyring import Keyring
from gpu_orchestrator.apps.cluster.keys import Keys


async def test_a_use_that_could_not_be_written_down_is_not_forgotten() -> None:
    store, keys = Store(Database("unix:///nowhere/valkey.sock"), owner="one"), Keys([])
    keyring = Keyring(store, keys, lambda: None)
    keys.used = {"a": 1, "b": 1}
    for write in (keyring.write_used, keyring.all):
        with pytest.raises(StoreError):
            await write()
        assert keys.used == {"a": 1, "b": 1}
