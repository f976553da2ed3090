"""The disk of the data directory is full in the middle of work: people are told, nothing that was
acknowledged is lost, and work goes on by itself when there is room."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cli.test_server import only_line, start
from tests.support import warm
from tests.support.command_line import COMMAND
from tests.support.fleet import Fleet, eventually, fleet
from tests.support.nemesis import children_of, name_of
from tests.support.workers import compiled

pytestmark = pytest.mark.real
SIZE = 32 << 20
LEFT = 1 << 20
"""Less than a twentieth of the disk, more than an eightieth: nearly full."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A data directory with a disk of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a disk of a test's own needs the right to mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Fill the disk up to the last `left` bytes, and return the file to remove."""
    filler = disk / "filler"
    with filler.open("ab") as file:
        while (free := shutil.disk_usage(disk).free) > left:
            with suppress(OSError):
                file.write(b"x" * min(free - left, 1 << 20))
                file.flush()
    return filler


class Up(Fleet):
    """`up` instead of `server`: the screen is its output, and it has a worker of its own."""

    async def start(self) -> None:
        with (self.folder / "screen").open("ab") as screen:
            self.server = warm.Popen(
                [
                    COMMAND,
                    "up",
                    "--simulate",
                    "1",
                    "--port",
                    str(self.port),
                    "--data",
                    str(self.folder / "data"),
                ],
                cwd=self.folder,
                env=self.env,
                stdout=screen,
                stderr=screen,
            )
        await eventually(self._is_ready, 60.0)
        self.key = (self.folder / "data" / "client.json").read_text().split('"key": "')[1].split('"')[0]
        self._http = self._client()

    @property
    def screen(self) -> str:
        return (self.folder / "screen").read_text()

    async def health(self) -> Any:
        return (await self.call("GET", "/health"))[1]


async def test_full_disk_is_told_and_nothing_is_lost(small_disk: Path, tmp_path: Path) -> None:
    async with Up(tmp_path, compiled()) as running:
        await eventually(lambda: all_done(running, 8), 60.0)
        accepted = [await running.submit("sleep", {"seconds": 1 + number / 4}) for number in range(8)]

        filler = fill(small_disk, LEFT)
        await eventually(lambda: says(running, "degraded", "is nearly full: "), 60.0)
        status, refused = await running.call(
            "POST", "/tasks", {"task_type": "echo", "resources": {"gpus": 0}}
        )
        assert (status, refused["error"]["code"]) == (503, "store_full")
        assert f"the disk of {small_disk}" in refused["error"]["message"]

        fill(small_disk, 0)
        await eventually(lambda: says(running, "unhealthy", "is full: "), 60.0)
        await eventually(lambda: shows(running, f"! the disk of {small_disk}"), 60.0)

        filler.unlink()
        await eventually(lambda: says(running, "healthy", "ok"), 60.0)
        await eventually(lambda: all_done(running, 16), 120.0)
        for task in accepted:
            assert (await running.wait(task))["status"] == "completed"
        after = await running.submit("echo", {"all": "well"})
        assert (await running.wait(after))["result"] == {"all": "well"}
        await eventually(lambda: shows(running, "all is well again"), 60.0)
        fill(small_disk, 0)
        assert running.server is not None
        running.server.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(running.server.wait, 60) == 0, "it ends on a full disk, too"
        assert running.screen.endswith("stopped\n")
    for log in (tmp_path / "screen", small_disk / "manager.log", small_disk / "worker.log"):
        assert "Traceback" not in log.read_text(), log


async def all_done(running: Fleet, count: int) -> bool:
    with suppress(aiohttp.ClientError):
        status, shown = await running.call("GET", "/cluster/status")
        return status == 200 and shown["tasks"].get("completed") == count
    return False


async def says(running: Up, status: str, words: str) -> bool:
    found = await running.health()
    return found["status"] == status and words in " ".join(found["dependencies"].values())


async def shows(running: Up, words: str) -> bool:
    return words in running.screen


async def test_store_that_cannot_write_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """Where a test may not mount a disk, the kernel can still refuse the store's writes: a file of this size
    may not grow. The store dies of it, and its successor has no such limit."""
    async with fleet(tmp_path) as running:
        await running.worker("a", "--max-concurrent", "8")
        store = store_of(running)
        written = sum(each.stat().st_size for each in (tmp_path / "data" / "store").rglob("*.aof"))
        limit = written + 20_000
        resource.prlimit(store, resource.RLIMIT_FSIZE, (limit, limit))
        accepted: list[str] = []
        async with asyncio.timeout(60):
            while os.path.exists(f"/proc/{store}"):  # noqa: ASYNC240 - a process sends no event
                body = {"task_type": "echo", "parameters": {"text": "x" * 500}, "resources": {"gpus": 0}}
                status, answer = await running.call("POST", "/tasks", body)
                assert status in (202, 503), answer
                accepted += [answer["task_id"]] if status == 202 else []
        assert accepted
        await eventually(lambda: is_healthy(running), 60.0)
        for task in accepted:
            assert (await running.wait(task))["status"] == "completed"
        assert store_of(running) != store
    assert "the embedded store ended and is started again" in (tmp_path / "server.log").read_text()


async def is_healthy(running: Fleet) -> bool:
    _, found = await running.call("GET", "/health")
    return bool(found["status"] == "healthy")


def store_of(running: Fleet) -> int:
    assert running.server is not None
    (found,) = [pid for pid in children_of(running.server.pid) if "valkey-server" in name_of(pid)]
    return found


def test_start_on_a_full_disk_is_refused_in_one_line(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk, 4096)
    line = only_line(start(tmp_path, "up", "--port", "0", "--data", str(small_disk)))
    assert f"the disk of {small_disk} is full: 4,096 bytes left" in line
    assert "or choose another folder with --data" in line
    assert [each.name for each in small_disk.iterdir()] == ["filler"]
