"""Compare the cluster manager of another checkout with this one: both run at once, measured in turn.

A run of its own for each would differ by more than the code does, because the machine's speed changes from
minute to minute. `--before SRC` is the `src` folder of the other checkout; without it this one is compared
with itself, which shows how far apart two equal ones are.
"""

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from cyclopts import run

from benchmarks import tasks, tasks_ours
from benchmarks.tasks_ours import Ours

BEFORE, NOW = "before", "now"
SRC = Path(__file__).parents[1] / "src"


@dataclass(slots=True)
class Figures:
    """What one checkout did: every round trip in ms, CPU of its server, and rates by round."""

    trips_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    posts: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)


def main(*, before: Path = SRC, rounds: int = 40, trips: int = 200, posts: int = 2000) -> None:
    """Measure rounds of round trips, posts and batches, each round in the other order."""
    found = uvloop.run(measure({BEFORE: before.absolute(), NOW: SRC}, rounds, trips, posts))
    for name, value in found.items():
        print(f"{name:16} {value}")
    print(json.dumps(found))


async def measure(sources: dict[str, Path], rounds: int, trips: int, posts: int) -> dict[str, float]:
    figures = {name: Figures() for name in sources}
    async with contextlib.AsyncExitStack() as stack:
        started = {name: await stack.enter_async_context(start(src)) for name, src in sources.items()}
        for number in range(rounds):
            for name in sorted(sources, reverse=bool(number % 2)):
                await measure_round(started[name], figures[name], trips, posts)
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return summary(figures[BEFORE], figures[NOW])


@contextlib.asynccontextmanager
async def start(source: Path) -> AsyncIterator[Ours]:
    """Start a store, a server and workers that run the code in this folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = ("env", f"PYTHONPATH={source}", *tasks_ours.COMMAND)
        async with (
            tasks.valkey(Path(folder)) as port,
            tasks_ours.ours(Path(folder), port, command=command) as us,
        ):
            await us.use(tasks_ours.MANY)
            await us.trips(tasks_ours.WARM, usual=False)
            yield us


async def measure_round(us: Ours, figures: Figures, trips: int, posts: int) -> None:
    began = tasks.cpu_s(us.process.pid)
    figures.trips_ms += await us.trips(trips, usual=False)
    figures.cpu_s += tasks.cpu_s(us.process.pid) - began
    figures.posts.append(await us.posts(posts, usual=False))
    figures.batches.append((await us.batches(posts))[0])


def summary(before: Figures, now: Figures) -> dict[str, float]:
    """Return the figures of both, and ratios above 1 where this checkout is better."""
    found: dict[str, float] = {}
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        then, today = tasks.at(before.trips_ms, part), tasks.at(now.trips_ms, part)
        found |= {f"{name}_ms_before": then, f"{name}_ms_now": today, f"ratio_{name}": then / today}
    found["ratio_cpu"] = before.cpu_s / max(now.cpu_s, 1e-9)
    found["ratio_posts"] = statistics.median(now.posts) / statistics.median(before.posts)
    found["ratio_batches"] = statistics.median(now.batches) / statistics.median(before.batches)
    return {name: round(value, 3) for name, value in found.items()}


if __name__ == "__main__":
    run(main)
