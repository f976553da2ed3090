"""Measure small tasks submitted and gathered by a Python program, through our two clients and those of Celery
and dramatiq.

    make bench-client [ARGS="--tasks 10000 --rounds 3"]

All use the same Valkey, with every acknowledged write on disk (appendfsync always), and one worker process
each. They take turns within each round. A round submits all tasks, waits for them, and reads every result; a
ratio is the median of the rounds' ratios. Celery submits one by one and gathers with `ResultSet`, dramatiq
with `group`, as their guides recommend. "tuned" means the fastest settings of those tried, see `tasks_peers`.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import uvloop
from cyclopts import run
from rich.console import Console
from rich.table import Table

from benchmarks import client_ours, tasks_ours, tasks_peers
from benchmarks.tasks import rounds_of, valkey
from benchmarks.tasks_ours import MANY, Ours
from benchmarks.tasks_peers import Peer

BLOCKING, AWAITING = "Client", "AsyncClient"
PEERS = ("celery", "celery tuned", "dramatiq", "dramatiq tuned")


def main(*, tasks: int = 10_000, rounds: int = 3, peers: str = ",".join(PEERS)) -> None:
    """Measure the given peers (comma-separated) beside our two clients."""
    if not tasks_peers.installed():
        sys.exit("the peers are not installed; run `make bench-client`")
    chosen = [peer for peer in tasks_peers.ALL if peer.name in peers.split(",")]
    show(uvloop.run(measure(tasks, rounds, chosen)), tasks)


async def measure(tasks: int, rounds: int, peers: list[Peer]) -> dict[str, list[float]]:
    """Return tasks per second by system, one value per round."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with valkey(Path(folder)) as port, tasks_ours.ours(Path(folder), port) as us:
            await us.use(MANY)
            await warm_up(us)
            for _ in range(rounds):
                for peer in peers:
                    seconds = await asyncio.to_thread(tasks_peers.gathered, peer, port, tasks)
                    found.setdefault(peer.name, []).append(tasks / seconds)
                for name, seconds in (await both(us, tasks)).items():
                    found.setdefault(name, []).append(tasks / seconds)
    return found


async def warm_up(us: Ours) -> None:
    await both(us, 100)


async def both(us: Ours, tasks: int) -> dict[str, float]:
    """Return the seconds of both clients, each in a process of its own as the peers' are."""
    return {name: await client_ours.gathered(name, us.url, us.key, tasks) for name in (BLOCKING, AWAITING)}


def show(found: dict[str, list[float]], tasks: int) -> None:
    table = Table(title=f"{tasks} no-ops submitted and gathered, appendfsync always, one worker process each")
    for heading in ("client", "tasks/s: median (rounds)"):
        table.add_column(heading)
    for name, values in found.items():
        table.add_row(name, rounds_of(values))
    console = Console(width=120)
    console.print(table)
    console.print(f"load {os.getloadavg()[0]:.1f}")
    print(json.dumps(summary(found)))


def summary(found: dict[str, list[float]]) -> dict[str, float]:
    """Return the ratios of the blocking client, as the peers' clients are, and of the awaiting one."""
    figures: dict[str, float] = {
        f"{name.lower().replace(' ', '_')}_per_s": round(statistics.median(values))
        for name, values in found.items()
    }
    for peer in PEERS:
        if peer in found:
            word = f"ratio_{peer.replace(' ', '_')}"
            figures |= {
                word: ratio(found[BLOCKING], found[peer]),
                f"{word}_async": ratio(found[AWAITING], found[peer]),
            }
    return figures


def ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 2)


if __name__ == "__main__":
    run(main)
