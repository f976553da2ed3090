"""A partly restored backup cannot be used."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.errors import Unfit
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import backup, migrations
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded


async def test_store_with_interrupted_restore_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "all.backup"
    async with embedded(tmp_path / "old") as server, Store(Database(server.url), owner="one") as store:
        await migrations.prepare(store.database, {})
        await store.tasks.submit([NewTask("t", '{"task_type":"echo"}', "null")])
        await backup.save(store.database, file, {})
    async with embedded(tmp_path / "new") as server, Database(server.url) as database:
        restore = database.restore

        async def interrupted(rows: Sequence[tuple[str, int, bytes]]) -> None:
            await restore(rows)
            raise asyncio.CancelledError

        monkeypatch.setattr(database, "restore", interrupted)
        with pytest.raises(asyncio.CancelledError):
            await backup.load(database, file)
        monkeypatch.undo()
        for use in (
            migrations.prepare(database, {}),
            backup.load(database, file),
            backup.save(database, tmp_path / "part.backup", {}),
        ):
            with pytest.raises(Unfit, match="restoring a backup into this store did not finish"):
                await use
    assert not (tmp_path / "part.backup").exists()
