"""Random faults in a whole manager: runners, workers, hosts, the store and the server."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import aiohttp

from tests.support.fleet import Fleet
from tests.support.workers import Worker

SILENCE_S = 12.0
BUSY = 6
"""`make test` may share its machine: its time limits are the promised times multiplied by this."""
LIMIT_S = 180.0
"""The longest that any step may take, however busy the machine."""
WORKER_OPTIONS = ("--max-concurrent", "6", "--simulate", "2xL4:24GiB")


class Nemesis:
    """Injects faults. `faults` lists what was done, in order. Workers are started again with `options`."""

    def __init__(self, manager: Fleet, rng: Random, options: Sequence[str] = WORKER_OPTIONS) -> None:
        self.manager, self._rng, self._options = manager, rng, options
        self.faults: list[str] = []

    async def inject(self, faults: int, pause_s: float) -> None:
        """Inject this many faults, each kind at least once. A stopped host stays stopped while others
        follow."""
        kinds = [self.kill_runner, self.kill_worker, self.stop_host, self.kill_store, self.kill_server]
        more = self._rng.choices(kinds, weights=(4, 3, 1, 2, 2), k=max(faults - len(kinds), 0))
        chosen = [*kinds, *more]
        self._rng.shuffle(chosen)
        async with asyncio.TaskGroup() as silent:
            for fault in chosen:
                await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
                self.faults.append(fault.__name__)
                if fault == self.stop_host:
                    silent.create_task(fault())
                else:
                    await fault()

    async def kill_runner(self) -> None:
        worker = self._rng.choice(self.manager.workers)
        if below := worker.victims():
            with suppress(ProcessLookupError):
                os.kill(self._rng.choice(below), signal.SIGKILL)

    async def kill_worker(self) -> None:
        number = self._rng.randrange(len(self.manager.workers))
        worker = self.manager.workers[number]
        worker.close()
        self.manager.workers[number] = self.start(worker.name)

    async def stop_host(self) -> None:
        """Stop a host, with all that runs on it, for longer than its lease."""
        worker = self._rng.choice(self.manager.workers)
        stopped = [worker.process.pid, *worker.below()]
        send(stopped, signal.SIGSTOP)
        try:
            await asyncio.sleep(SILENCE_S)
        finally:
            send(stopped, signal.SIGCONT)

    async def kill_store(self) -> None:
        assert self.manager.server is not None
        for pid in children_of(self.manager.server.pid):
            if "valkey-server" in name_of(pid):
                send([pid], signal.SIGKILL)

    async def kill_server(self) -> None:
        assert self.manager.server is not None
        self.manager.server.kill()
        self.manager.server.wait()
        await self.manager.start()

    def start(self, name: str) -> Worker:
        """Start a worker without waiting until it is online."""
        return self.manager.started(name, *self._options)


async def submit_until_accepted(manager: Fleet, bodies: list[dict[str, object]]) -> list[str]:
    """Submit until the manager acknowledges. Each task exists once, however often it was sent."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(aiohttp.ClientError, OSError):
                status, answer = await manager.call("POST", "/tasks/batch", {"tasks": bodies})
                if status == 202:
                    return [each["task_id"] for each in answer["tasks"]]
            await asyncio.sleep(0.1)


async def ended(manager: Fleet, task: str) -> dict[str, object]:
    """Wait until a task has ended, through any failure meanwhile, and return it."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(aiohttp.ClientError, OSError):
                status, shown = await manager.call("GET", f"/tasks/{task}/wait?timeout=10")
                assert status in (200, 503), shown
                if shown.get("status") in ("completed", "failed", "dead", "cancelled"):
                    return dict(shown)
            await asyncio.sleep(0.05)


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def children_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(folder.name))
    return found


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
