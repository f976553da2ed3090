"""Measure the time of a decision, the engine's rate and a large cluster's memory: `make bench-decide`.

Clusters are half full, of nodes with eight GPUs. Ten request shapes take turns. Every decision is placed, and
releases keep the cluster half full, so each decision finds the cluster changed by the ones before. Then an
engine takes in a stream of requests: alone, beside a backlog, and spread over queues with quota, in each of
which others wait. Last, what one end in a full queue costs in which ten thousand different requests wait. It
ends with one line of JSON.
"""

import argparse
import gc
import json
import os
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import Expression, Request, Term, request
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Event,
    NodeUpdated,
    Place,
    Placed,
    QueueUpdated,
    RequestAdded,
    RequestRemoved,
)
from gpu_orchestrator.policies.registry import STRATEGIES, Registry

SIZES = (500, 1213, 5000, 20_000)
ISLANDS = {(a, b): 600 for half in (range(4), range(4, 8)) for a in half for b in half if a < b}
GIB = 1 << 30
MOST_PER_QUEUE = 64
"""GPUs: more than a queue uses of the stream by far, so that what waits for all of it goes on waiting."""
MOST_HELD = 8
"""GPUs of the queue in which many different requests wait."""
REGISTRY = Registry()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of nodes")
    parser.add_argument("--decisions", type=int, default=4000, help="decisions timed per strategy and size")
    parser.add_argument("--queues", type=int, default=1000, help="queues with quota")
    parser.add_argument("--waiting", type=int, default=10_000, help="different requests in one full queue")
    args = parser.parse_args()
    times = {n: {name: decision_times(n, name, args.decisions) for name in STRATEGIES} for n in args.sizes}
    alone, beside, queued, ratio = engine_rates(
        min(5000, max(args.sizes)), backlog=10_000, queues=args.queues
    )
    result: dict[str, Any] = {
        "median_us": {n: {name: _us(median(each)) for name, each in row.items()} for n, row in times.items()},
        "p99_us": {
            n: {name: _us(quantiles(each, n=100)[98]) for name, each in row.items()}
            for n, row in times.items()
        },
        "copy_us": {n: _us(copy_time(n)) for n in args.sizes},
        "engine_per_s": round(alone),
        "engine_with_backlog_per_s": round(beside),
        "engine_with_queues_per_s": round(queued),
        "ratio_queues": round(ratio, 3),
        "held_back_ms": {gpus: held_back_ms(args.waiting, gpus) for gpus in (1, MOST_HELD)},
        "memory_mb": {max(args.sizes): round(memory_mb(max(args.sizes)), 1)},
        "load": [round(each, 2) for each in os.getloadavg()],
    }
    show(result)
    print(json.dumps(result))


def decision_times(nodes: int, strategy: str, decisions: int) -> list[float]:
    """Return the seconds of each decision, on a half-full cluster that stays half full."""
    policy, rng = REGISTRY.policy(strategy), random.Random(1)
    cluster, held = half_full(nodes, rng)
    stream = numbered(ten_shapes())
    for _ in range(20 * len(ten_shapes())):  # every shape is known before the clock runs
        _turn(cluster, held, next(stream), policy, rng)
    gc.collect()
    return [_turn(cluster, held, next(stream), policy, rng) for _ in range(decisions)]


def _turn(
    cluster: Cluster, held: list[Placement], request_to_place: Request, policy: Policy, rng: random.Random
) -> float:
    """Decide and place one request, then release as many GPUs. Only the decision is timed."""
    start = perf_counter()
    answer = decide(request_to_place, cluster, policy, rng)
    took = perf_counter() - start
    if isinstance(answer, Placement):
        cluster.place(answer)
        held.append(answer)
        owed = _milli(answer)
        while owed > 0 and held:
            owed -= _milli(released := _swap_out(held, rng))
            cluster.release(released)
    return took


def half_full(nodes: int, rng: random.Random) -> tuple[Cluster, list[Placement]]:
    cluster, stream, policy = big_cluster(nodes), numbered(ten_shapes(), "first"), REGISTRY.policy("random")
    held: list[Placement] = []
    used, half = 0, nodes * 8 * 1000 // 2
    while used < half:
        answer = decide(next(stream), cluster, policy, rng)
        if isinstance(answer, Placement):
            cluster.place(answer)
            held.append(answer)
            used += _milli(answer)
    return cluster, held


def engine_rates(
    nodes: int, *, backlog: int, queues: int, slices: int = 20
) -> tuple[float, float, float, float]:
    """Return requests per second from added to placed, confirmed and removed, without IO: alone, beside a
    backlog of `backlog` requests that never fit, and spread over queues; last, the third by the first. They
    take turns, slice by slice, so that other load on the machine disturbs all."""
    plain, laden, queued = _Run(nodes), _Run(nodes), _Run(nodes, queues)
    for i in range(backlog):
        laden.engine.handle(RequestAdded(request(f"never-{i}", 16 + i % 100)), 0.0)
    rates = [(plain.rate(), laden.rate(), queued.rate()) for _ in range(slices)]
    alone, beside, spread = (median(column) for column in zip(*rates, strict=True))
    return alone, beside, spread, median(each[2] / each[0] for each in rates)


class _Run:
    """One engine under a steady stream of requests. Of `queues`, each gets its part of the stream, and one
    request waits in each for all that it may use."""

    def __init__(self, nodes: int, queues: int = 0) -> None:
        self.engine = Engine(REGISTRY.policy_of, random.Random(1))
        self.stream, self.rng, self.nodes = numbered(ten_shapes()), random.Random(2), nodes
        self.held: list[str] = []
        self.queues, self.now = [f"queue-{i}" for i in range(queues)], 0.0
        for i in range(nodes):
            self.engine.handle(NodeUpdated(_node(i)), 0.0)
        most = {"*": MOST_PER_QUEUE * 1000}
        terms = [QueueTerms(name, "all", limit=most) for name in self.queues]
        self.engine.handle_all([QueueUpdated(each) for each in (QueueTerms("all"), *terms)], 0.0)
        self.rate(2 * nodes)
        for name in self.queues:
            self._tell(RequestAdded(request(f"waits-{name}", MOST_PER_QUEUE, queue=name)))

    def rate(self, requests: int = 1000) -> float:
        start = perf_counter()
        for _ in range(requests):
            self._one()
        return requests / (perf_counter() - start)

    def _one(self) -> None:
        asked = next(self.stream)
        if self.queues:
            asked = replace(asked, queue=self.rng.choice(self.queues))
        self._tell(RequestAdded(asked))
        if len(self.held) > self.nodes:
            self._tell(RequestRemoved(self.held.pop(self.rng.randrange(len(self.held)))))

    def _tell(self, event: Event) -> None:
        self.now += 0.001
        for action in self.engine.handle(event, self.now):
            if isinstance(action, Place):
                self.engine.handle(Placed(action.request.key), self.now)
                self.held.append(action.request.key)


def held_back_ms(waiting: int, gpus: int) -> float:
    """Return the milliseconds that the end of one request of a GPU costs, in a full queue in which as many
    different ones wait for this number of GPUs: one of them starts, or none."""
    engine, limit = Engine(REGISTRY.policy_of, random.Random(1)), {"*": 1000 * MOST_HELD}
    engine.handle_all([NodeUpdated(_node(i)) for i in range(100)], 0.0)
    engine.handle(QueueUpdated(QueueTerms("full", guaranteed=limit, limit=limit)), 0.0)
    running = [f"run-{i}" for i in range(MOST_HELD)]
    engine.handle_all([RequestAdded(request(key, 1, queue="full")) for key in running], 0.0)
    engine.handle_all([Placed(key) for key in running], 0.0)
    for i in range(waiting):
        engine.handle(RequestAdded(request(f"wait-{i}", gpus, memory_mib=1 + i, queue="full")), 0.0)
    times = []
    for number, key in enumerate(running[: MOST_HELD - 1], 1):
        start = perf_counter()
        placed = engine.handle(RequestRemoved(key), float(number))
        engine.handle_all(
            [Placed(each.request.key) for each in placed if isinstance(each, Place)], float(number)
        )
        times.append(perf_counter() - start)
    return round(median(times) * 1e3, 2)


def copy_time(nodes: int) -> float:
    """Return the seconds that a copy of a half-full cluster takes."""
    cluster, _ = half_full(nodes, random.Random(1))
    times = []
    for _ in range(50):
        start = perf_counter()
        cluster.copy()
        times.append(perf_counter() - start)
    return median(times)


def memory_mb(nodes: int) -> float:
    """Return the Python and numpy memory of a half-full cluster with ten remembered shapes."""
    tracemalloc.start()
    kept = half_full(nodes, random.Random(1))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size / 1e6


def big_cluster(nodes: int) -> Cluster:
    return Cluster(_node(i) for i in range(nodes))


def _node(i: int) -> Node:
    labels = {"zone": f"zone-{i % 3}", "kubernetes.io/hostname": f"node-{i}"}
    if i % 4 == 0:
        labels |= {"gpu-orchestrator/cheap-node": "true", "gpu-orchestrator/hourly-cost": str(1 + i % 7)}
    room = {"cpu": 128_000, "memory": 1024 * GIB, "pods": 110}
    model = "A100" if i % 2 else "H100"
    return node(f"node-{i}", 8, links=ISLANDS, model=model, memory_mib=81_920, resources=room, labels=labels)


def ten_shapes() -> list[Request]:
    """Return ten shapes: 1, 2, 4 and 8 GPUs; shares; a model, a zone, a bandwidth rule, cpu and memory."""
    small = {"cpu": 4000, "memory": 16 * GIB, "pods": 1}
    in_zone = (Term((Expression("zone", "In", ("zone-1", "zone-2")),)),)
    return [
        request("one", 1, resources=small),
        request("two", 2, resources=small),
        request("four", 4, resources={"cpu": 32_000, "memory": 128 * GIB, "pods": 1}),
        request("eight", 8, resources={"cpu": 64_000, "memory": 512 * GIB, "pods": 1}),
        request("half", 1, share=500, resources=small),
        request("slice", 1, share=250, memory_mib=20_000, resources=small),
        request("h100", 1, models=("H100",), resources=small),
        request("zone", 1, affinity=in_zone, resources=small),
        request("label", 2, labels={"zone": "zone-0"}, resources=small),
        request("linked", 2, mode="Required", min_bandwidth_gbps=600, resources=small),
    ]


def numbered(shapes: list[Request], prefix: str = "r") -> Iterator[Request]:
    """Yield the shapes in turn, forever, each with a key of its own."""
    number = 0
    while True:
        yield replace(shapes[number % len(shapes)], key=f"{prefix}{number}")
        number += 1


def show(result: dict[str, Any]) -> None:
    table = Table(title="decision time, median / p99 in µs")
    table.add_column("nodes", justify="right")
    for name in STRATEGIES:
        table.add_column(name, justify="right")
    for nodes, row in result["median_us"].items():
        cells = [f"{row[name]:.0f} / {result['p99_us'][nodes][name]:.0f}" for name in STRATEGIES]
        table.add_row(f"{nodes:,}", *cells)
    console = Console()
    console.print(table)
    rates = (
        f"{result['engine_per_s']:,} requests/s, "
        f"{result['engine_with_backlog_per_s']:,} beside 10,000 parked, "
        f"{result['engine_with_queues_per_s']:,} in queues ({result['ratio_queues']} of those alone)"
    )
    console.print(f"engine without IO: {rates}")
    one, none = result["held_back_ms"].values()
    console.print(f"an end in a full queue: {one} ms if a request starts, {none} ms if none does")
    console.print(f"copy in µs by nodes {result['copy_us']}")
    console.print(f"memory in MB by nodes {result['memory_mb']}; load {result['load']}")


def _swap_out(held: list[Placement], rng: random.Random) -> Placement:
    at = rng.randrange(len(held))
    held[at], held[-1] = held[-1], held[at]
    return held.pop()


def _milli(placement: Placement) -> int:
    return len(placement.devices) * placement.milli


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


if __name__ == "__main__":
    main()
