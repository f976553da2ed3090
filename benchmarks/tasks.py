"""Measure tasks per second and round trips: ours, Celery, dramatiq, taskiq; one Valkey, one worker each.

    make bench-tasks [ARGS="--rounds 3 --seconds 3"]

Every acknowledged write is on disk (appendfsync always) for all of them. The task is a no-op with a stored
result. They take turns within each round; a ratio is the median of the rounds' ratios. `run` submits while
the worker works (ours in batches; the peers have no batches), `drained` is the worker alone on a queue filled
before. A round trip is a caller that submits one task and waits for its result: for the peers through their
own clients, for ours through a bare socket, and again through aiohttp.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from cyclopts import run
from rich.console import Console
from rich.table import Table

from benchmarks import tasks_ours, tasks_peers
from benchmarks.tasks_ours import MANY, ONE, Ours
from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.valkey.database import Database, wait_until_up
from gpu_orchestrator.adapters.store.valkey.embedded import binary

OURS, ONE_SLOT, HTTP, USUAL = "ours", "ours, 1 slot", "ours, HTTP", "ours, aiohttp client"
AT_ONCE = {
    OURS: "1 runner, 64 slots",
    ONE_SLOT: "1 runner, 1 slot",
    HTTP: "1 runner, 64 slots",
    USUAL: "1 runner, 64 slots",
    **{peer.name: peer.at_once for peer in tasks_peers.ALL},
}
FIRST = {"celery": 150, "dramatiq": 500, ONE_SLOT: 500, OURS: 3000, HTTP: 3000}
"""The maximum number of tasks in the first round; later rounds last as long as requested."""


@dataclass
class Figures:
    """Figures by system, one value per round; the round trips of all rounds together."""

    run: dict[str, list[float]] = field(default_factory=dict)
    drained: dict[str, list[float]] = field(default_factory=dict)
    trips_ms: dict[str, list[float]] = field(default_factory=dict)
    posts: dict[str, list[float]] = field(default_factory=dict)
    batches: list[float] = field(default_factory=list)
    idle_mb: float = 0.0
    idle_cpu: float = 0.0

    def ratio(self, peer: str, ours: str = OURS) -> dict[str, float]:
        both = {"run": self.run, "drained": self.drained}
        return {
            name: round(statistics.median(a / b for a, b in zip(found[ours], found[peer], strict=True)), 2)
            for name, found in both.items()
            if ours in found
        }


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many tasks take about `seconds`, learned from the previous round."""

    seconds: float
    known: dict[str, int]

    def of(self, name: str) -> int:
        return self.known.get(name, min(FIRST.get(name, 500), int(self.seconds * 1000)))

    def learn(self, name: str, per_s: float) -> None:
        self.known[name] = max(int(per_s * self.seconds), 100)


def main(*, rounds: int = 3, seconds: float = 3.0, trips: int = 300, peers: str = "") -> None:
    """Measure the given peers (comma-separated); all by default."""
    if not tasks_peers.installed():
        sys.exit("the peers are not installed; run `make bench-tasks`")
    chosen = [peer for peer in tasks_peers.ALL if not peers or peer.name in peers.split(",")]
    show(uvloop.run(measure(rounds, Sizes(seconds, {}), trips, chosen)))


async def measure(rounds: int, sizes: Sizes, trips: int, peers: list[tasks_peers.Peer]) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        async with valkey(Path(folder)) as port, tasks_ours.ours(Path(folder), port) as us:
            await idle(us, figures, min(5.0, 2 * sizes.seconds))
            for _ in range(rounds):
                for peer in peers:
                    await measure_peer(peer, port, sizes, trips, figures)
                await measure_ours(us, sizes, trips, figures)
    return figures


async def measure_peer(peer: tasks_peers.Peer, port: int, sizes: Sizes, trips: int, figures: Figures) -> None:
    count = sizes.of(peer.name)
    times, per_s = await asyncio.to_thread(tasks_peers.trips_and_rate, peer, port, trips // 3, count)
    drained = await asyncio.to_thread(tasks_peers.drained, peer, port, count)
    figures.trips_ms.setdefault(peer.name, []).extend(times)
    figures.run.setdefault(peer.name, []).append(per_s)
    figures.drained.setdefault(peer.name, []).append(drained)
    sizes.learn(peer.name, min(per_s, drained))


async def measure_ours(us: Ours, sizes: Sizes, trips: int, figures: Figures) -> None:
    figures.drained.setdefault(ONE_SLOT, []).append(await us.drained(sizes.of(ONE_SLOT), ONE))
    figures.run.setdefault(ONE_SLOT, []).append(await us.direct(sizes.of(ONE_SLOT)))
    figures.drained.setdefault(OURS, []).append(await us.drained(sizes.of(OURS), MANY))
    figures.run.setdefault(OURS, []).append(per_s := await us.direct(sizes.of(OURS)))
    sizes.learn(OURS, per_s)
    accepted, completed = await us.batches(sizes.of(HTTP))
    figures.batches.append(accepted)
    figures.run.setdefault(HTTP, []).append(completed)
    for name, usual in ((HTTP, False), (USUAL, True)):
        figures.posts.setdefault(name, []).append(await us.posts(int(sizes.seconds * 1000), usual=usual))
        figures.trips_ms.setdefault(name, []).extend(await us.trips(trips, usual=usual))


async def idle(us: Ours, figures: Figures, for_s: float) -> None:
    await us.use(MANY)
    before = cpu_s(us.process.pid)
    await asyncio.sleep(for_s)
    figures.idle_cpu = 100 * (cpu_s(us.process.pid) - before) / for_s
    status = await asyncio.to_thread(Path(f"/proc/{us.process.pid}/status").read_text)
    figures.idle_mb = int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def valkey(folder: Path) -> AsyncIterator[int]:
    """Start the one Valkey server for all, on TCP, with every write on disk before it is acknowledged."""
    port = free_port()
    settings = {
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    process = subprocess.Popen([binary(), *arguments], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    database = Database(f"redis://127.0.0.1:{port}/0")
    try:
        await wait_until_up(database, 10)
        yield port
    finally:
        await database.close()
        process.terminate()
        await asyncio.to_thread(process.wait, 20)


def show(figures: Figures) -> None:
    table = Table(title="a no-op with stored result, appendfsync always, one worker process each")
    for heading in ("system", "at once", "run, tasks/s", "drained, tasks/s", "p50 / p99 ms"):
        table.add_column(heading)
    for name, at_once in AT_ONCE.items():
        times = figures.trips_ms.get(name)
        trip = f"{at(times, 0.5):.2f} / {at(times, 0.99):.2f}" if times else "-"
        table.add_row(
            name, at_once, rounds_of(figures.run.get(name)), rounds_of(figures.drained.get(name)), trip
        )
    console = Console(width=120)
    console.print(table)
    for name, values in figures.posts.items():
        console.print(f"POST /tasks by {tasks_ours.CLIENTS} clients, {name}: {rounds_of(values)} a second")
    console.print(f"POST /tasks/batch, {tasks_ours.BATCH} each: {rounds_of(figures.batches)} tasks a second")
    console.print(
        f"our server when idle: {figures.idle_mb:.0f} MB, {figures.idle_cpu:.1f} % of one core; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(json.dumps(summary(figures)))


def summary(figures: Figures) -> dict[str, float]:
    """Return the figures and ratios. A ratio without a suffix is end to end, as the systems are used; a
    suffix names another comparison."""
    found: dict[str, float] = {}
    for peer in (each.name for each in tasks_peers.ALL if each.name in figures.run):
        name = f"ratio_{peer.replace(' ', '_')}"
        ratios = figures.ratio(peer)
        found |= {name: ratios["run"], f"{name}_drained": ratios["drained"]}
    if "celery" in figures.run:
        found["ratio_celery_1_slot"] = figures.ratio("celery", ONE_SLOT)["run"]
    return found | {
        "p50_ms": round(at(figures.trips_ms[HTTP], 0.5), 2),
        "p99_ms": round(at(figures.trips_ms[HTTP], 0.99), 2),
        "p50_ms_aiohttp": round(at(figures.trips_ms[USUAL], 0.5), 2),
        "post_per_s": round(statistics.median(figures.posts[HTTP])),
        "post_per_s_aiohttp": round(statistics.median(figures.posts[USUAL])),
        "batch_per_s": round(statistics.median(figures.batches)),
        "idle_mb": round(figures.idle_mb, 1),
        "idle_cpu_percent": round(figures.idle_cpu, 2),
    }


def rounds_of(values: list[float] | None) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.0f} ({', '.join(f'{value:.0f}' for value in values)})"


def at(values: list[float] | None, part: float) -> float:
    ordered = sorted(values or [0.0])
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


if __name__ == "__main__":
    run(main)
