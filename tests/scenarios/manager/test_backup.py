"""Back up, wipe and restore a working server with the commands that an operator uses: everything is back."""

import asyncio
import gzip
import re
import shutil
import signal
import subprocess
from pathlib import Path

import aiohttp
import pytest

from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import backup
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support import stores
from tests.support.fleet import COMMAND, Fleet
from tests.support.scale import Scale

pytestmark = pytest.mark.real


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60)


async def stop(running: Fleet) -> None:
    assert running.server is not None
    running.server.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.server.wait, 20) == 0


async def test_backup_wipe_restore_brings_everything_back(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "all.backup"
    async with Fleet(tmp_path) as running:
        await running.worker("a", "--max-concurrent", "2")
        done = [await running.submit("echo", {"n": number}) for number in range(20)]
        results = {name: (await running.wait(name))["result"] for name in done}
        status, key = await running.call("POST", "/keys", {"name": "alice", "scopes": ["submit"]})
        assert status == 201, key
        runs = await running.submit("sleep", {"seconds": 120})
        await running.running(runs)
        waits = [await running.submit("sleep", {"seconds": 0}, priority="low") for _ in range(5)]
        command = await asyncio.to_thread(call, "backup", str(file), "--data", str(data))
        assert command.returncode == 0, command.stderr
        assert f"{20 + 1 + 5} tasks" in command.stdout
        refused = await asyncio.to_thread(call, "restore", str(file), "--data", str(data))
        assert (refused.returncode, "is in use" in refused.stderr) == (1, True)
        for worker in running.workers:
            worker.close()
        running.workers.clear()
        await stop(running)
        kept = {name: (data / name).read_bytes() for name in ("client.json", "worker-token", "secrets-key")}
        shutil.rmtree(data)
        command = await asyncio.to_thread(call, "restore", str(file), "--data", str(data))
        assert command.returncode == 0, command.stderr
        for name, content in kept.items():
            (data / name).write_bytes(content)
        await running.start()
        assert {name: (await running.wait(name))["result"] for name in done} == results
        headers = {"Authorization": f"Bearer {key['key']}"}
        async with aiohttp.ClientSession(running.url, headers=headers) as http, http.get("/tasks") as answer:
            assert answer.status == 200, "a key created before is known"
        await running.worker("a", "--max-concurrent", "8")
        for name in waits:
            assert (await running.wait(name))["status"] == "completed"
        assert (await running.running(runs)).name == "a", "the running task runs again"
        full = await asyncio.to_thread(call, "restore", str(file), "--data", str(data))
        assert full.returncode == 1
        await running.call("DELETE", f"/tasks/{runs}")


async def test_backup_is_consistent_while_tasks_change(tmp_path: Path, scale: Scale) -> None:
    """Tasks end while the backup reads their rows; each is restored in one state and only in that list."""
    count = scale(test=2000, accept=50_000)
    async with stores.external(tmp_path, appendonly="no") as url, Store(Database(url), owner="x") as store:
        await store.tasks.submit([NewTask(f"{number}", "{}", "null", tenant="me") for number in range(count)])
        ids = [str(number) for number in range(count)]
        cancelling = asyncio.create_task(_cancel_all(store, ids))
        made = await backup.save(store.database, tmp_path / "b", {})
        await cancelling
        assert made.tasks == count
    async with embedded(tmp_path / "other") as fresh, Store(Database(fresh.url), owner="y") as store:
        backup.check(tmp_path / "b")
        assert (await backup.load(store.database, tmp_path / "b")).tasks == count
        rows = await store.tasks.fetch(ids, results=True)
        states = [row["state"] for row in rows if row]
        assert len(states) == count
        for owner in ("", "me"):
            listed = {
                state: (await store.tasks.page(states=[state], owner=owner, offset=0, limit=1)).total
                for state in ("queued", "cancelled")
            }
            assert listed == {state: states.count(state) for state in ("queued", "cancelled")}
        with pytest.raises(backup.BadBackup, match="not empty"):
            await backup.load(store.database, tmp_path / "b")


async def _cancel_all(store: Store, ids: list[str]) -> None:
    for first in range(0, len(ids), 20):
        await store.tasks.cancel(ids[first : first + 20])


async def test_damaged_backup_is_refused_before_any_change(tmp_path: Path) -> None:
    async with embedded(tmp_path / "s") as server, Store(Database(server.url), owner="x") as store:
        await store.tasks.submit([NewTask(f"{number}", "{}", "null") for number in range(50)])
        await backup.save(store.database, tmp_path / "b", {})
    whole = (tmp_path / "b").read_bytes()
    plain = gzip.decompress(whole)
    bad = {
        "cut": whole[: len(whole) // 2],
        "cut inside": gzip.compress(plain[: len(plain) // 2]),
        "flipped": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "nothing": b"",
        "not a backup": b"hello",
        "another format": gzip.compress(plain.replace(b"backup 1", b"backup 9")),
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(backup.BadBackup, match=re.escape(str(tmp_path / name))):
            backup.check(tmp_path / name)
    command = await asyncio.to_thread(call, "restore", str(tmp_path / "cut"), "--data", str(tmp_path / "new"))
    assert (command.returncode, len(command.stderr.strip().splitlines())) == (1, 1)
    assert not (tmp_path / "new" / "store").exists()
