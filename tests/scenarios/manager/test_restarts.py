"""Servers are stopped and started as planned, links are slow, messages are lost: no running task starts over.

At test scale leases are short, so that a restart of seconds is longer than one.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support.fleet import Fleet, fleet
from tests.support.scale import Scale
from tests.support.slow_link import slow_link
from tests.support.workers import Worker

pytestmark = pytest.mark.real
Figure = Callable[[str], None]
LARGE = 8_300_000
"""Nearly the largest request: eight of them in one frame are more than a worker ever took."""


async def stop(manager: Fleet) -> None:
    assert manager.server is not None
    manager.server.send_signal(signal.SIGTERM)
    await asyncio.to_thread(manager.server.wait, 60)


async def test_planned_restart_starts_no_task_over(
    tmp_path: Path, scale: Scale, figure: Figure, executor: str
) -> None:
    """The server stays away for longer than a lease, and longer than the grace after a lost connection."""
    lease: dict[str, str] = scale(test={"WORKER_LEASE": "6"}, accept={})
    workers: int = scale(test=2, accept=6)
    async with fleet(tmp_path, EXECUTOR=executor, **lease) as manager:
        for number in range(workers):
            await manager.worker(f"w{number}", "--simulate", "1xL4:24GiB", "--max-concurrent", "2")
        gpu = {"resources": {"gpus": 1}}
        tasks = [await manager.submit("sleep", {"seconds": 250}, **gpu) for _ in range(workers)]
        for task in tasks:
            await manager.running(task)
        pids = [worker.below() for worker in manager.workers]
        for away_s in scale(test=(6.2,), accept=(5.0, 20.0, 5.0)):
            began = time.monotonic()
            await stop(manager)
            await asyncio.sleep(away_s)
            await manager.start()
            for worker in manager.workers:
                await manager.back(worker.name)
            figure(f"server away for {time.monotonic() - began:.1f} s, {workers} workers resumed")
        await asyncio.sleep(scale(test=1.0, accept=5.0))  # the leader's second round would take workers off
        for task in tasks:
            _, shown = await manager.call("GET", f"/tasks/{task}")
            assert (shown["status"], shown["attempt"], shown["deaths"]) == ("running", 1, [])
        assert [worker.below() for worker in manager.workers] == pids, "the same processes run"


async def test_worker_that_keeps_its_tasks_runs_on_past_its_lease(
    tmp_path: Path, scale: Scale, executor: str
) -> None:
    """The only server is killed and stays away for longer than a lease: one worker ends its task and starts
    it over, the other one runs on. Neither loses an attempt."""
    async with fleet(tmp_path, EXECUTOR=executor, WORKER_LEASE=scale(test="6", accept="3")) as manager:
        tasks: dict[str, str] = {}
        before: dict[str, list[int]] = {}
        for way in ("keep", "stop"):
            worker = await manager.worker(way, "--max-concurrent", "2", "--on-disconnect", way)
            tasks[way] = await manager.submit("sleep", {"seconds": 250})
            assert (await manager.running(tasks[way])).name == way
            before[way] = worker.below()
            await manager.call("POST", f"/workers/{way}/cordon")
        assert manager.server is not None
        manager.server.kill()
        manager.server.wait()
        await asyncio.sleep(scale(test=6.2, accept=20.0))
        await manager.start()
        for worker in manager.workers:
            await manager.call("POST", f"/workers/{worker.name}/uncordon")
            await manager.back(worker.name)
            shown = await manager.until(tasks[worker.name], status="running")
            assert (shown["attempt"], shown["deaths"]) == (1, [])
            assert (worker.below() == before[worker.name]) == (worker.name == "keep")
            _, listed = await manager.call("GET", f"/workers/{worker.name}")
            assert listed["on_disconnect"] == worker.name


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_large_tasks_and_results_reach_a_worker_and_come_back(
    tmp_path: Path, scale: Scale, figure: Figure
) -> None:
    """Nine waiting tasks go to one worker at once. Then one goes over a slow link, both ways, which takes
    longer than a worker waits for the answer to a renewal; at full scale many times as long as a lease."""
    link_s: float = scale(test=2.0, accept=60.0)
    async with fleet(tmp_path, WORKER_LEASE=scale(test="5", accept="10")) as manager:
        size: int = scale(test=1_000_000, accept=LARGE)
        tasks = [await manager.submit("echo", "a" * size) for _ in range(9)]
        began = time.monotonic()
        worker = await manager.worker("w", "--max-concurrent", "16")
        for task in tasks:
            ended = await manager.wait(task, 60.0)
            assert (ended["status"], ended["attempt"]) == ("completed", 1)
        figure(f"nine tasks of {size} bytes done after {time.monotonic() - began:.1f} s")
        assert scale(test=1, accept=joined(worker)) == 1, worker.log.read_text()
        worker.close()
        large: int = scale(test=300_000, accept=LARGE)
        async with slow_link(manager.port, large / link_s) as port:
            token = (tmp_path / "data" / "worker-token").read_text()
            slow = Worker(f"http://127.0.0.1:{port}", tmp_path / "slow.log", token=token, name="slow")
            manager.workers.append(slow)
            await manager.back("slow")
            began = time.monotonic()
            task = await manager.submit("echo", "a" * large)
            ended = await manager.wait(task, 60.0 + 4 * link_s)
            assert (ended["status"], ended["attempt"]) == ("completed", 1)
            figure(
                f"{large} bytes each way over a link of {large / link_s:.0f} B/s: "
                f"{time.monotonic() - began:.1f} s"
            )
            assert scale(test=1, accept=joined(slow)) == 1, slow.log.read_text()


class Pair:
    """Two servers on one store."""

    def __init__(self, one: Fleet, two: Fleet, store: str) -> None:
        self.one, self.two, self.store = one, two, store

    async def worker(self, name: str, *options: str) -> None:
        await self.one.worker(name, "--server", self.two.url, *options)


@asynccontextmanager
async def two_servers(folder: Path, **settings: str) -> AsyncIterator[Pair]:
    token = folder / "token"
    token.write_text("t" * 64)
    async with embedded(folder / "store") as store:
        shared = {
            "REDIS_URL": store.url,
            "API_KEY": "k" * 64,
            "WORKER_TOKEN_FILE": str(token),
            "QUOTA_QUEUED_TASKS": "0",
            "TASK_SOFT_TIME_LIMIT": "7000",
            **settings,
        }
        async with Fleet(folder / "one", env=shared) as one, Fleet(folder / "two", env=shared) as two:
            yield Pair(one, two, store.url)


async def test_rolling_restart_of_two_servers_costs_no_attempt(
    tmp_path: Path, scale: Scale, figure: Figure, executor: str
) -> None:
    """Tasks come all the time while one server after the other is restarted. Before that, a wish of an
    operator is lost on its way from one server to the other: the worker learns of it all the same."""
    async with two_servers(tmp_path, EXECUTOR=executor) as pair:
        for name in ("a", "b"):
            await pair.worker(name, "--max-concurrent", "8")
        told = await ask_unheard(pair)
        long = await pair.one.submit("sleep", {"seconds": 3600}, timeout=7200)
        await pair.one.running(long)
        load = Load(pair, per_s=scale(test=20, accept=50))
        submitting = asyncio.create_task(load.run())
        end = time.monotonic() + scale(test=2.0, accept=600.0)
        rounds = 0
        while rounds == 0 or time.monotonic() < end:
            for manager in (pair.one, pair.two):
                await stop(manager)
                await asyncio.sleep(scale(test=0.0, accept=5.0))
                await manager.start()
            rounds += 1
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        shown = [await pair.one.wait(task, 60.0) for task in load.accepted]
        figure(f"{rounds} rolling restarts, {len(shown)} tasks, {load.refused} requests repeated")
        assert len(shown) > 10
        assert {(each["status"], each["attempt"]) for each in shown} == {("completed", 1)}
        _, running = await pair.one.call("GET", f"/tasks/{long}")
        assert (running["status"], running["attempt"]) == ("running", 1)
        assert (await asyncio.to_thread(told.process.wait, 30)) == 0


async def ask_unheard(pair: Pair) -> Worker:
    """Ask the server that does not have the worker to restart it, while its message cannot arrive."""
    await pair.worker("c")
    async with Database(pair.store) as database:
        await database._execute("CLIENT", "KILL", "TYPE", "pubsub")
        status, _ = await pair.two.call("POST", "/workers/c/restart")
    assert status == 200
    return next(each for each in pair.one.workers if each.name == "c")


def joined(worker: Worker) -> int:
    """Count how often a worker joined."""
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if line.startswith("{")]
    return sum(line["message"] == "joined" for line in lines)


class Load:
    """Submits short tasks to whichever server answers; the same idempotency key until one does."""

    def __init__(self, pair: Pair, per_s: float) -> None:
        self._urls, self._pause_s = (pair.one.url, pair.two.url), 1 / per_s
        self._headers = {"Authorization": f"Bearer {pair.one.key}"}
        self.accepted: list[str] = []
        self.refused = 0

    async def run(self) -> None:
        async with aiohttp.ClientSession(headers=self._headers) as http, asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._submit(http))
                await asyncio.sleep(self._pause_s)

    async def _submit(self, http: aiohttp.ClientSession) -> None:
        body: dict[str, object] = {
            "task_type": "sleep",
            "parameters": {"seconds": 0.02},
            "resources": {"gpus": 0},
        }
        body["idempotency_key"] = uuid4().hex
        while True:
            for url in self._urls:
                try:
                    async with http.post(f"{url}/tasks", json=body) as answer:
                        if answer.status == 202:
                            self.accepted.append((await answer.json())["task_id"])
                            return
                except aiohttp.ClientError:
                    pass
                self.refused += 1
            await asyncio.sleep(0.1)
