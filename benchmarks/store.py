"""Measure our client of the store against valkey-py and valkey-glide, on the same scripts and one Valkey.

    make bench-store [ARGS="--rounds 5 --calls 3000"]

`read` is a script that reads, `submit` one that stores a task and waits for the disk (appendfsync always).
Each is called by one caller, one call after another, and by 64 at once. End to end is the whole server on
each library: `tasks posted` over HTTP by 16 clients and then run, and `round trips` of a caller that waits
for each result; CPU is then the server's. Libraries take turns within each round, every measurement in its
own process. A ratio compares neighbours of the same round and is above 1 where ours is better; CPU is what
other load on the machine disturbs least.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from cyclopts import run

from benchmarks import tasks_ours
from benchmarks.store_clients import LIBRARIES, OPERATIONS, OURS, PACKAGES
from benchmarks.table import show
from benchmarks.tasks import cpu_s, valkey
from benchmarks.tasks_ours import Ours

AT_ONCE = (1, 64)
POSTED, TRIP = "tasks posted", "round trips"
CHILD = (sys.executable, "-m", "benchmarks.store_clients")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Ticks per second, the unit in which the kernel counts CPU time."""
Row = dict[str, float]


@dataclass
class Figures:
    """The measurements, one row per round, by operation and by library."""

    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict)

    def note(self, what: str, library: str, row: Row) -> None:
        self.rows.setdefault((what, library), []).append(row)

    def middle(self, what: str, library: str, name: str) -> float | None:
        rows = [row[name] for row in self.rows[what, library] if name in row]
        return statistics.median(rows) if rows else None

    def ratios(self, what: str, library: str, name: str) -> list[float]:
        """Return the ratio of ours to the other library in each round, above 1 where ours is better."""
        pairs = zip(self.rows[what, OURS], self.rows[what, library], strict=True)
        both = [(ours[name], theirs[name]) for ours, theirs in pairs]
        return [ours / theirs if name == "per_s" else theirs / ours for ours, theirs in both]


def main(
    *, rounds: int = 5, calls: int = 3000, posts: int = 2000, libraries: str = ",".join(LIBRARIES)
) -> None:
    """Measure the given libraries (comma-separated). If `calls` is 0, measure only the whole server; if
    `posts` is 0, only single calls."""
    if not PACKAGES.exists():
        sys.exit("the peers are not installed; run `make bench-store`")
    chosen = libraries.split(",")
    figures = uvloop.run(measure(rounds, calls, posts, chosen))
    report(figures, chosen)


async def measure(rounds: int, calls: int, posts: int, libraries: list[str]) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory() as name:
        async with valkey(Path(name)) as port:
            for number in range(rounds if calls else 0):
                for library in _in_turn(libraries, number):
                    await measure_calls(library, port, calls, figures)
            if posts:
                await measure_served(libraries, port, rounds, posts, figures)
    return figures


async def measure_calls(library: str, port: int, calls: int, figures: Figures) -> None:
    for operation in OPERATIONS:
        for at_once in AT_ONCE:
            words = (library, "measure", f"redis://127.0.0.1:{port}/15", operation, str(calls), str(at_once))
            child = await asyncio.create_subprocess_exec(*CHILD, *words, stdout=asyncio.subprocess.PIPE)
            output, _ = await child.communicate()
            if child.returncode:
                raise SystemExit(f"{library} could not {operation}")
            figures.note(f"{operation}, {at_once} at once", library, json.loads(output))


async def measure_served(libraries: list[str], port: int, rounds: int, posts: int, figures: Figures) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(_served(name, port)) for name in libraries}
        for number in range(rounds):
            for name in _in_turn(libraries, number):
                await measure_server(servers[name], name, posts, figures)


async def measure_server(server: Ours, library: str, posts: int, figures: Figures) -> None:
    before_s = cpu_s(server.process.pid)
    per_s = await server.posts(posts, usual=False)
    used_s = max(cpu_s(server.process.pid) - before_s, TICK_S)
    figures.note(POSTED, library, {"per_s": per_s, "cpu_us": used_s / posts * 1e6})
    trips = max(posts // 10, 10)
    before_s = cpu_s(server.process.pid)
    times_ms = sorted(await server.trips(trips))
    used_s = max(cpu_s(server.process.pid) - before_s, TICK_S)
    middle, late = times_ms[trips // 2], times_ms[int(trips * 0.99)]
    row = {"per_s": 1000 * trips / sum(times_ms), "p50_us": middle * 1000, "p99_us": late * 1000}
    figures.note(TRIP, library, {**row, "cpu_us": used_s / (trips + tasks_ours.WARM) * 1e6})


@contextlib.asynccontextmanager
async def _served(library: str, port: int) -> AsyncIterator[Ours]:
    """Start a server and its workers, with a database of its own."""
    database = LIBRARIES.index(library)
    with tempfile.TemporaryDirectory() as folder:
        server = (*CHILD, library, "serve")
        async with tasks_ours.ours(Path(folder), port, database=database, command=server) as us:
            yield us


def _in_turn(libraries: list[str], number: int) -> list[str]:
    return libraries if number % 2 == 0 else libraries[::-1]


def report(figures: Figures, libraries: list[str]) -> None:
    names = ("per_s", "p50_us", "p99_us", "cpu_us", "rss_mb")
    done = list(dict.fromkeys(what for what, _ in figures.rows))
    rows = []
    for what in done:
        for library in libraries:
            cells = (figures.middle(what, library, name) for name in names)
            rows.append([what, library, *("-" if cell is None else f"{cell:.0f}" for cell in cells)])
    columns = ("calls", "library", "per second", "p50 µs", "p99 µs", "CPU µs", "MB")
    show(f"load {os.getloadavg()[0]:.1f}", columns, rows)
    print(json.dumps({"benchmark": "store", **summary(figures, libraries)}))


def summary(figures: Figures, libraries: list[str]) -> dict[str, Any]:
    """Return the ratios by library, operation and figure: median, minimum and maximum of all rounds."""
    found: dict[str, Any] = {library: {} for library in libraries if library != OURS}
    for (what, library), rows in figures.rows.items():
        if library != OURS:
            found[library][what] = {name: _spread(figures.ratios(what, library, name)) for name in rows[0]}
    return found


def _spread(ratios: list[float]) -> list[float]:
    return [round(each, 2) for each in (statistics.median(ratios), min(ratios), max(ratios))]


if __name__ == "__main__":
    run(main)
