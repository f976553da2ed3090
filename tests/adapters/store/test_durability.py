"""DURABILITY=strict: many writes share one wait for the disks, and nothing is acknowledged that may be
lost."""

import asyncio
import signal
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.errors import NotDurable, Unreachable
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import durability
from gpu_orchestrator.adapters.store.valkey.database import Database
from tests.support import stores
from tests.support.replicated import Replicated, answers

pytestmark = pytest.mark.real
WRITES = 300


async def write(store: Store, name: str) -> None:
    history = await store.database.begin()
    await store.tasks.submit([NewTask(name, "{}", "{}")])
    await store.database.durable(history)


async def waits(store: Store) -> int:
    """Return how often the server was asked to wait for its disk."""
    stats = (await store.database._execute("INFO", "commandstats")).decode()
    found = [line for line in stats.splitlines() if line.startswith("cmdstat_waitaof")]
    return int(found[0].partition("calls=")[2].partition(",")[0]) if found else 0


async def test_writes_share_one_wait_for_the_disk(tmp_path: Path) -> None:
    """One wait for each would take longer than any caller's patience: with everysec it lasts up to a
    second."""
    async with (
        stores.external(tmp_path, appendonly="yes", appendfsync="everysec") as url,
        Store(Database(url, strict=True), owner="a") as store,
    ):
        await asyncio.gather(*(write(store, f"t{number}") for number in range(WRITES)))
        assert (await store.tasks.counts()).states["queued"] == WRITES
        assert await waits(store) <= WRITES // 10


async def test_reads_and_elections_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    async with (
        stores.external(tmp_path, appendonly="yes", appendfsync="everysec") as url,
        Store(Database(url, strict=True), owner="a") as store,
    ):
        await store.leadership.campaign()
        await store.tasks.counts()
        assert await waits(store) == 0


async def test_write_to_a_full_store_is_acknowledged(tmp_path: Path) -> None:
    """Ends of tasks are written also then, and only an acknowledged end makes room."""
    async with (
        stores.external(tmp_path, appendonly="yes", appendfsync="always") as url,
        Store(Database(url, strict=True), owner="a") as store,
    ):
        await store.database._execute("CONFIG", "SET", "maxmemory", "1mb")
        history = await store.database.begin()
        await store.leadership.campaign()
        await store.database.durable(history)
        assert not store.database.trouble


async def test_write_without_its_replica_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "WAIT_S", 2.0)
    pair = Replicated(tmp_path, nodes=2, sentinels=0, fsync="always")
    try:
        await pair.start()
        primary, replica = pair.nodes
        async with Store(Database(primary.url, strict=True, replicas=1), owner="a") as store:
            await answers(lambda: write(store, "t1"))  # the replica writes its first file
            replica.send(signal.SIGSTOP)
            with pytest.raises(NotDurable, match="0 of 1 replicas have it on disk"):
                await write(store, "t2")
            assert "0 of 1 replicas" in store.database.trouble
            await store.leadership.campaign()  # goes on without it
            replica.send(signal.SIGCONT)
            async with asyncio.timeout(30):
                while store.database.trouble:  # noqa: ASYNC110 - cleared by a loop of the store
                    await asyncio.sleep(0.02)
            await answers(lambda: write(store, "t3"))
    finally:
        pair.close()


async def test_write_before_a_failover_is_not_acknowledged_after_it(tmp_path: Path) -> None:
    """The replica was cut off when it was promoted, so it never had the write. Its disk says that all is
    well."""
    pair = Replicated(tmp_path, nodes=2, sentinels=0, fsync="always")
    try:
        await pair.start()
        old, new = pair.nodes
        async with Store(Database(old.url, strict=True), owner="a") as store:
            history = await store.database.begin()
            await new.command("REPLICAOF", "NO", "ONE")
            await store.tasks.submit([NewTask("lost", "{}", "{}")])
            await old.command("REPLICAOF", "127.0.0.1", new.port)
            await old.is_replica_in_step()
            await old.command("REPLICAOF", "NO", "ONE")
            with pytest.raises(Unreachable, match="failed over after the write"):
                await store.database.durable(history)
            await write(store, "kept")
            assert (await store.tasks.counts()).states["queued"] == 1
    finally:
        pair.close()
