"""Measure what reservation and backfill are worth: `make bench-backfill`.

A trace of requests of mixed sizes, each with a declared run time that is at least the real one, is played
through the real engine by a virtual clock: first come first served, without reservations, and with them. It
compares how long large requests wait, and how much of the cluster is used. It ends with one line of JSON.
"""

import argparse
import json
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.request import GangTerms, Request, request
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    NodeUpdated,
    Place,
    Placed,
    PlaceGang,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from gpu_orchestrator.policies.registry import Registry

GPUS = 8
LARGE = 8
SIZES = ((1, 1, 0.55), (2, 1, 0.17), (4, 1, 0.14), (8, 1, 0.1), (8, 2, 0.03), (8, 4, 0.01))
"""GPUs of each member, members, and how frequent that is."""
MEDIAN_S, SPREAD = 900.0, 1.3
LONGEST_S = 6 * 3600.0
MOST_DECLARED = 3.0
"""A declared run time is up to this many times the real one."""
WAYS = ("fifo", "off", "on")


@dataclass(frozen=True, slots=True)
class Job:
    key: str
    at: float
    gpus: int
    members: int
    real_s: float
    declared_s: float

    @property
    def size(self) -> int:
        return self.gpus * self.members

    def requests(self) -> list[Request]:
        if self.members == 1:
            return [request(self.key, self.gpus, run_s=self.declared_s)]
        terms = GangTerms(self.key, self.members)
        return [
            request(f"{self.key}/{each}", self.gpus, gang=terms, run_s=self.declared_s)
            for each in range(self.members)
        ]


def trace(seed: int, nodes: int, jobs: int, load: float) -> list[Job]:
    """Return jobs that arrive at random and ask for `load` times what the cluster has, in the mean."""
    rng, made, now = random.Random(seed), list[Job](), 0.0
    drawn = [_drawn(rng) for _ in range(jobs)]
    work = sum(gpus * members * real_s for gpus, members, real_s in drawn)
    every_s = work / jobs / (nodes * GPUS * load)
    for number, (gpus, members, real_s) in enumerate(drawn):
        now += rng.expovariate(1.0 / every_s)
        declared_s = real_s * rng.uniform(1.0, MOST_DECLARED)
        made.append(Job(f"j{number}", now, gpus, members, real_s, declared_s))
    return made


def _drawn(rng: random.Random) -> tuple[int, int, float]:
    ((gpus, members, _),) = rng.choices(SIZES, [each[2] for each in SIZES])
    return gpus, members, min(MEDIAN_S * rng.lognormvariate(0.0, SPREAD), LONGEST_S)


@dataclass
class Play:
    """One way to play the trace. `starts` are the moments at which jobs began."""

    jobs: list[Job]
    nodes: int
    rules: ReservationRules
    in_line: bool = False
    starts: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    in_between: int = 0

    def run(self) -> "Play":
        self._engine = Engine(Registry().policy_of, random.Random(1), reservations=self.rules)
        self._by_key = {job.key: job for job in self.jobs}
        self._numbers, self._events = count(), list[tuple[float, int, Any]]()
        self._line: list[Job] = []
        self._tell([NodeUpdated(node(f"n{number}", GPUS)) for number in range(self.nodes)])
        for job in self.jobs:
            self._at(job.at, job)
        while self._events:
            self.now = self._events[0][0]
            batch = list(self._due())
            self._tell([event for each in batch for event in self._events_of(each)])
        return self

    def _at(self, moment: float, what: Any) -> None:
        heappush(self._events, (moment, next(self._numbers), what))

    def _due(self) -> Iterator[Any]:
        while self._events and self._events[0][0] <= self.now:
            yield heappop(self._events)[2]

    def _events_of(self, what: Any) -> Iterable[Event]:
        if not isinstance(what, Job):
            events: list[Event] = what
            return events
        if self.in_line:
            self._line.append(what)
            return self._next() if len(self._line) == 1 else ()
        return map(RequestAdded, what.requests())

    def _next(self) -> Iterable[Event]:
        return map(RequestAdded, self._line[0].requests()) if self._line else ()

    def _tell(self, events: list[Event]) -> None:
        while True:
            actions = self._engine.handle_all(events or [Tick()], self.now)
            events = [*self._started(actions)]
            if not events:
                break
        deadline = self._engine.deadline(self.now)
        if deadline is not None and self._engine.has_waiting:
            soon = max(deadline, self.now + 0.01)
            if not self._events or soon < self._events[0][0]:
                self._at(soon, [])

    def _started(self, actions: list[Action]) -> Iterator[Event]:
        for action in actions:
            places = action.places if isinstance(action, PlaceGang) else (action,)
            placed = [each for each in places if isinstance(each, Place)]
            if not placed:
                continue
            keys = [each.request.key for each in placed]
            job = self._by_key[keys[0].partition("/")[0]]
            self.starts[job.key] = self.now
            self.in_between += placed[0].in_between
            self._at(self.now + job.real_s, [RequestRemoved(key) for key in keys])
            yield from map(Placed, keys)
            if self.in_line:
                self._line.pop(0)
                yield from self._next()

    def waits(self, *, large: bool) -> list[float]:
        return sorted(self.starts[job.key] - job.at for job in self.jobs if (job.size >= LARGE) == large)

    @property
    def utilisation(self) -> float:
        """Return how much of the cluster was used until the last job arrived, without the first tenth."""
        since, until = self.jobs[len(self.jobs) // 10].at, self.jobs[-1].at
        used = sum(
            job.size
            * max(min(self.starts[job.key] + job.real_s, until) - max(self.starts[job.key], since), 0.0)
            for job in self.jobs
        )
        return used / (self.nodes * GPUS * (until - since))


def p99(waits: list[float]) -> float:
    return waits[min(int(len(waits) * 0.99), len(waits) - 1)]


def play(way: str, jobs: list[Job], nodes: int, most: int) -> Play:
    rules = ReservationRules(most=most) if way == "on" else OFF
    return Play(jobs, nodes, rules, in_line=way == "fifo").run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3, help="traces")
    parser.add_argument("--nodes", type=int, default=16, help=f"nodes of {GPUS} GPUs")
    parser.add_argument("--jobs", type=int, default=1500, help="requests and gangs of a trace")
    parser.add_argument("--load", type=float, default=0.95, help="GPU time asked for, of what there is")
    parser.add_argument("--most", type=int, default=4, help="places kept at once")
    args = parser.parse_args()
    if args.nodes < (needed := max(members for _, members, _ in SIZES)):
        parser.error(f"--nodes {args.nodes}: the largest gang needs {needed}")
    rows = []
    for seed in range(args.seeds):
        jobs = trace(seed, args.nodes, args.jobs, args.load)
        plays = {way: play(way, jobs, args.nodes, args.most) for way in WAYS}
        rows.append(
            {
                way: {
                    "large_p99_s": p99(each.waits(large=True)),
                    "large_median_s": median(each.waits(large=True)),
                    "small_p99_s": p99(each.waits(large=False)),
                    "small_median_s": median(each.waits(large=False)),
                    "utilisation": each.utilisation,
                    "in_between": each.in_between,
                }
                for way, each in plays.items()
            }
        )
    result = summary(rows, args)
    show(rows, result)
    print(json.dumps(result))


def summary(rows: list[dict[str, dict[str, float]]], args: argparse.Namespace) -> dict[str, Any]:
    def ratio(what: str, way: str) -> float:
        return round(median(row["on"][what] / max(row[way][what], 1e-9) for row in rows), 3)

    return {
        "ratio_large_p99_to_off": ratio("large_p99_s", "off"),
        "ratio_large_p99_to_fifo": ratio("large_p99_s", "fifo"),
        "ratio_small_p99_to_off": ratio("small_p99_s", "off"),
        "ratio_utilisation_to_off": ratio("utilisation", "off"),
        "ratio_utilisation_to_fifo": ratio("utilisation", "fifo"),
        "seeds": args.seeds,
        "nodes": args.nodes,
        "jobs": args.jobs,
        "offered": args.load,
        "load": [round(each, 2) for each in os.getloadavg()],
    }


def show(rows: list[dict[str, dict[str, float]]], result: dict[str, Any]) -> None:
    table = Table(
        title=f"{result['jobs']} jobs on {result['nodes']} nodes, median of {result['seeds']} traces"
    )
    names = {"fifo": "first come first served", "off": "no reservation", "on": "reservation and backfill"}
    for head in ("", "large p99 min", "large median min", "small p99 min", "small median min", "used %"):
        table.add_column(head, justify="right" if head else "left")
    for way in WAYS:
        cells = [median(row[way][what] for row in rows) for what in list(rows[0][way])[:5]]
        table.add_row(names[way], *(f"{each / 60:.1f}" for each in cells[:4]), f"{100 * cells[4]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
