"""The embedded store: acknowledged writes survive, it dies with its owner, and its errors say what is
wrong."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.errors import Unfit, Unreachable
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.address import Address, redact
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded, embedded
from gpu_orchestrator.adapters.store.valkey.facts import Facts, _unprotected
from tests.support import stores
from tests.support.workers import is_alive

pytestmark = pytest.mark.real

OWNER = """
import asyncio, sys
from pathlib import Path
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded

async def main():
    server = Embedded(Path(sys.argv[1]))
    await server.start()
    print(server.process.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def check(url: str, *, strict: bool = False) -> Facts:
    async with Database(url, strict=strict) as database:
        return await database.check()


async def test_acknowledged_writes_survive_kill_9(tmp_path: Path) -> None:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="a") as store:
        names = [f"t{number}" for number in range(500)]
        await store.tasks.submit([NewTask(name, "{}", "{}") for name in names])
        server.kill()
        with pytest.raises(Unreachable, match="did not run `counts`"):
            await store.tasks.counts()
        await server.start()
        assert (await store.tasks.counts()).states["queued"] == 500


async def test_killed_server_is_restarted(tmp_path: Path) -> None:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="a") as store:
        keeping = asyncio.create_task(server.keep())
        assert server.process is not None
        first = server.process.pid
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while server.process.pid == first or not await answers(store):  # noqa: ASYNC110 - a process sends no event
                await asyncio.sleep(0.01)
        keeping.cancel()


async def test_server_that_starts_slowly_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read a large file for longer than START_S by now. Another one could not start beside it."""
    monkeypatch.setattr("gpu_orchestrator.adapters.store.valkey.embedded.START_S", 0.05)
    server = Embedded(tmp_path)
    with suppress(Unreachable):
        await server.start()
    assert server.process is not None
    late = server.process.pid
    async with asyncio.timeout(20):
        await server._start_again(0)
    assert (server.trouble, server.process.pid) == ("", late)
    await check(server.url)
    await server.stop()


async def answers(store: Store) -> bool:
    try:
        await store.database.ping()
    except Unreachable:
        return False
    return True


async def test_server_ends_with_its_owner_and_restart_finds_the_data(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert owner.stdout is not None
    pid = int(await asyncio.to_thread(owner.stdout.readline))
    async with Store(Database(Embedded(tmp_path).url), owner="a") as store:
        await store.tasks.submit([NewTask("t", "{}", "{}")])
    owner.kill()
    await asyncio.to_thread(owner.wait)
    async with embedded(tmp_path) as again, Store(Database(again.url), owner="b") as store:
        assert not is_alive(pid)
        assert (await store.tasks.counts()).states["queued"] == 1
    owner.stdout.close()


async def test_socket_is_private_to_its_user(tmp_path: Path) -> None:
    async with embedded(tmp_path / "store") as server:
        assert (tmp_path / "store").stat().st_mode & 0o077 == 0
        assert server.socket.stat().st_mode & 0o177 == 0o000
        facts = await check(server.url)
    assert facts.durable == ""


async def test_folder_with_long_path_works(tmp_path: Path) -> None:
    async with embedded(tmp_path / ("long" * 30)) as server:
        await check(server.url)


async def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unfit, match=r"cannot write to the data directory .*; choose another with --data"):
        await Embedded(tmp_path / "file" / "store").start()


async def test_store_that_evicts_keys_is_refused(tmp_path: Path) -> None:
    async with stores.external(tmp_path, maxmemory_policy="allkeys-lru") as url:
        with pytest.raises(Unfit, match="maxmemory-policy is allkeys-lru, which discards tasks"):
            await check(url)


async def test_store_without_append_only_file_is_refused_by_strict(tmp_path: Path) -> None:
    async with stores.external(tmp_path) as url:
        assert "no append-only file" in (await check(url)).durable
        with pytest.raises(Unfit, match="DURABILITY=strict needs an append-only file"):
            await check(url, strict=True)


async def test_strict_store_accepts_writes_on_disk(tmp_path: Path) -> None:
    async with stores.external(tmp_path, appendonly="yes", appendfsync="everysec") as url:
        assert "everysec" in (await check(url)).durable
        async with Store(Database(url, strict=True), owner="a") as store:
            await store.tasks.submit([NewTask("t", "{}", "{}")])
            assert (await store.tasks.counts()).states["queued"] == 1


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("redis://127.0.0.1:6379", True),
        ("redis://:secret@db.example:6379", True),
        ("rediss://db.example:6379", True),
        ("redis://db.example:6379", False),
    ],
)
def test_remote_store_must_require_a_password(url: str, fits: bool) -> None:
    assert (_unprotected(Address.of(url)) == []) is fits


def test_password_is_redacted() -> None:
    assert redact("redis://:secret@db:6379/0") == "redis://:***@db:6379/0"
