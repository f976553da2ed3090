"""Measure the manager with 1,000 workers and a long queue of tasks that are all a little different.

    make bench-scale [ARGS="--workers 1000 --queued 100000,400000 --shapes 10000"]

The queue is written to the store first; then the server starts, so its first term has to load all of it.
Workers are simulated, many per process, and speak the real protocol. They hold what they get until all have
joined; from then on they complete tasks at once, while clients go on submitting. `term_s` is from the
election until the leader places tasks; the workers are up before and join afterwards, so that it is the
server's own time. Requests are timed until the response is read, without its decoding here. The first
`GET /workers` reads all workers, later ones those that changed: `list_workers_ms` is the median of several,
`first_list_ms` is the first.
`completion_ms` is the engine alone, with 2,000 and 10,000 shapes; with `off` without reservations, and with
`large` while a place is kept for a task of all GPUs of a worker.
"""

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from cyclopts import run

from benchmarks.scale_engine import completion_ms
from benchmarks.table import show
from benchmarks.tasks import at
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.engine.reservation_rules import OFF
from tests.support.fleet import Fleet, eventually

BATCH, SLOTS, OWNERS = 500, 8, 20
PRIORITIES = (25, 50, 50, 75)
JOIN_S, CALLS, POST_EVERY_S = 300.0, 5, 0.02
GOALS = {"term_s": "≤ 2 at 100,000", "completion_ms_2000": "≤ 1", "list_workers_ms": "≤ 100"}


@dataclass(frozen=True, slots=True)
class Size:
    workers: int
    queued: int
    shapes: int
    per_process: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    workers: int
    queued: int
    dispatch_per_s: float
    post_p99_ms: float
    term_s: float
    server_mb: float
    store_mb: float
    list_workers_ms: float
    first_list_ms: float
    join_s: float


async def measure(size: Size) -> Figures:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = await stack.enter_async_context(embedded(folder))
        store = await stack.enter_async_context(Store(Database(server.url), owner="bench"))
        await fill(store, size)
        many = str(10 * (size.queued + size.workers))
        settings = {"REDIS_URL": server.url, "MAX_WORKERS": str(size.workers), "MAX_QUEUED_TASKS": many}
        fleet = Fleet(folder / "fleet", settings)
        processes = await stack.enter_async_context(simulated(fleet, size))
        await stack.enter_async_context(fleet)
        stack.push_async_callback(end, processes)  # before the server: it would say goodbye to them
        log = folder / "fleet" / "server.log"
        await eventually(lambda: _has_begun(log), JOIN_S)
        joined_s = await joined(fleet, processes)
        listing = [await timed_ms(fleet, "GET", "/workers") for _ in range(CALLS)]
        per_s, posts = await dispatched(fleet, store, processes, size.seconds)
        assert fleet.server is not None
        return Figures(
            size.workers,
            size.queued,
            round(per_s, 1),
            round(at(posts, 0.99), 1),
            load_s(log),
            rss_mb(fleet.server.pid),
            await store_mb(store),
            round(statistics.median(listing), 1),
            round(listing[0], 1),
            round(joined_s, 1),
        )


async def fill(store: Store, size: Size) -> None:
    """Write the queue directly to the store, before any process leads."""
    for first in range(0, size.queued, BATCH):
        numbers = range(first, min(first + BATCH, size.queued))
        await store.tasks.submit([_task(number, size.shapes) for number in numbers])


def _task(number: int, shapes: int) -> NewTask:
    priority, tenant = PRIORITIES[number % len(PRIORITIES)], f"owner-{number % OWNERS}"
    spec = TaskSpec("echo", priority=priority, memory_mib=100 + number % shapes, tenant=tenant)
    return NewTask(uuid4().hex, task.encode(spec), "null", tenant=tenant, level=task.level(priority))


@asynccontextmanager
async def simulated(fleet: Fleet, size: Size) -> AsyncIterator[list[Process]]:
    """Run the processes of the workers until the end; return when all can join."""
    processes: list[Process] = []
    try:
        for first in range(0, size.workers, size.per_process):
            number = min(size.per_process, size.workers - first)
            words = ("-m", "benchmarks.scale_workers", fleet.url, str(first), str(number), str(SLOTS))
            process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE)
            processes.append(process)
        await _all_say(processes, b"ready\n")
        yield processes
    finally:
        await end(processes)


async def end(processes: list[Process]) -> None:
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def joined(fleet: Fleet, processes: list[Process]) -> float:
    """Let all workers join; return how many seconds that took."""
    began = time.monotonic()
    token = (fleet.folder / "data" / "worker-token").read_text()
    for process in processes:
        _say(process, token)
    await _all_say(processes, b"joined\n")
    return time.monotonic() - began


async def _all_say(processes: list[Process], line: bytes) -> None:
    async with asyncio.timeout(JOIN_S):
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == line, "a process of workers ended early"


def _say(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.strip().encode() + b"\n")


async def dispatched(
    fleet: Fleet, store: Store, processes: list[Process], seconds: float
) -> tuple[float, list[float]]:
    """Let the workers complete tasks; return how many a second, and the ms of each `POST /tasks` then."""
    posts: list[float] = []
    for process in processes:
        _say(process, "go")
    began, before = time.monotonic(), await _completed(store)
    while time.monotonic() - began < seconds:
        body = {"task_type": "echo", "parameters": None, "resources": {"gpu_memory": "1GB"}}
        posts.append(await timed_ms(fleet, "POST", "/tasks", body))
        await asyncio.sleep(POST_EVERY_S)
    return (await _completed(store) - before) / (time.monotonic() - began), posts


async def timed_ms(fleet: Fleet, method: str, path: str, body: object = None) -> float:
    assert fleet._http is not None
    began = time.monotonic()
    async with fleet._http.request(method, path, json=body) as answer:
        shown = await answer.read()
    assert answer.status in (200, 202), shown
    return (time.monotonic() - began) * 1000


async def _completed(store: Store) -> int:
    return (await store.tasks.counts()).states.get("completed", 0)


async def _has_begun(log: Path) -> bool:
    return "load_s" in await asyncio.to_thread(log.read_text)


def load_s(log: Path) -> float:
    """Return how long the term took to begin, by the server's own log. A second term means that it failed."""
    found = re.findall(r'"load_s": ?([0-9.]+)', log.read_text())
    assert len(found) == 1, f"{len(found)} terms, see {log.read_text()[-2000:]}"
    return float(found[0])


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


async def store_mb(store: Store) -> float:
    said = await store.database._execute("INFO", "memory")
    text = said.decode() if isinstance(said, bytes) else str(said)
    return round(int(text.split("used_memory:")[1].split()[0]) / 1e6, 1)


def main(
    *,
    workers: int = 1000,
    queued: str = "100000,400000",
    shapes: int = 10_000,
    per_process: int = 250,
    seconds: float = 20.0,
) -> None:
    sizes = [Size(workers, int(each), shapes, per_process, seconds) for each in queued.split(",")]
    found = [asdict(asyncio.run(measure(size))) for size in sizes]
    engine = {f"completion_ms_{number}": round(completion_ms(number), 2) for number in (2000, shapes)}
    engine["completion_ms_off"] = round(completion_ms(shapes, rules=OFF), 2)
    engine["completion_ms_large"] = round(completion_ms(shapes, large=True), 2)
    rows = [[name, *(str(each[name]) for each in found), GOALS.get(name, "")] for name in found[0]]
    rows += [[name, *[str(value)] * len(found), GOALS.get(name, "")] for name, value in engine.items()]
    show(
        f"{workers} workers, {shapes} shapes",
        ["", *(f"{each['queued']} queued" for each in found), "goal"],
        rows,
    )
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({**found[-1], **engine, "load": load, "sizes": found}))


if __name__ == "__main__":
    run(main)
