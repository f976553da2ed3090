"""What the promised versions of the store differ in: docs/compatibility.md. All other contracts run on each
of them in `make accept`, which gets them; this file runs in `make test` on those that are there."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.errors import Unfit
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import migrations
from gpu_orchestrator.adapters.store.valkey.backup import BadBackup, load, save
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support import debian_stores, stores
from tests.support.scale import Scale

pytestmark = pytest.mark.real
READ_BY_EMBEDDED = {"redis-7.0", "valkey-8.0", "valkey-8.1"}
"""Whose backups the embedded store reads; it is newer than all of them, so none reads its own."""


@pytest.fixture(params=debian_stores.STORES)
def kind(request: pytest.FixtureRequest, scale: Scale) -> str:
    name: str = request.param
    if scale.tier == "test" and debian_stores.find(name) is None:
        pytest.skip("make accept gets it")
    debian_stores.get_or_skip(name)
    return name


@pytest.fixture
async def other(kind: str, tmp_path: Path) -> AsyncIterator[Database]:
    (tmp_path / kind).mkdir()
    async with stores.server(kind, tmp_path / kind) as url, Database(url) as database:
        yield database


async def test_version_is_known_and_strict_needs_waitaof(kind: str, other: Database) -> None:
    facts = await other.check()
    assert facts.version.startswith(kind.partition("-")[2])
    async with Database(other.url, strict=True) as strict:
        if kind == "redis-7.0":
            with pytest.raises(Unfit, match=r"DURABILITY=strict needs 7\.2 or newer"):
                await strict.check()
        else:
            await strict.check()


async def test_backup_is_restored_or_refused_before_anything_is_written(
    kind: str, other: Database, tmp_path: Path
) -> None:
    async with embedded(tmp_path) as server, Database(server.url) as ours:
        await one_task(other)
        await save(other, tmp_path / "theirs", {})
        if kind in READ_BY_EMBEDDED:
            assert (await load(ours, tmp_path / "theirs")).tasks == 1
        else:
            with pytest.raises(BadBackup, match=r"made on a store of version 8\.0.*of version 9"):
                await load(ours, tmp_path / "theirs")
            assert [names async for names in ours.scan(9)] == [[]]


async def test_backup_of_a_newer_store_leaves_an_older_one_empty(other: Database, tmp_path: Path) -> None:
    async with embedded(tmp_path) as server, Database(server.url) as ours:
        await one_task(ours)
        await save(ours, tmp_path / "ours", {})
    with pytest.raises(BadBackup, match=r"made on a store of version 9.*cannot read it; restore it on"):
        await load(other, tmp_path / "ours")
    assert [names async for names in other.scan(9)] == [[]]


async def one_task(database: Database) -> None:
    store = Store(database, owner="one")
    await migrations.prepare(database, {})
    await store.tasks.submit([NewTask("t", '{"task_type":"echo"}', "null")])
