"""Measure the operator from create to Scheduled, at 1,000 nodes and 1,000 workloads. `make bench-operator`.

A real API server with kube-controller-manager and kube-scheduler, static nodes of eight GPUs, two replicas of
the operator with leader election under its shipped ServiceAccount. Workloads are created at a steady rate; a
watch shows when each is first Scheduled. At the end the leader is killed. `--before SRC` measures another
checkout's code in the same cluster; both take turns, slice by slice. It ends with one line of JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.replicas import Replica, pair
from benchmarks.table import show
from controlplane.audit import Entry
from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload

ROOT = Path(__file__).parents[1]
USER = f"system:serviceaccount:{names.NAMESPACE}:{names.OPERATOR}"
SHAPES = (1, 1, 2, 4)
STRATEGIES = ("leastLoaded", "binPack", "random", "costOptimized")
VERBS = ("create", "patch", "update", "delete")
WAIT_S = 120.0
AT_REST = 0.1  # of a core that the API server uses
GOALS = {"scheduled_p99_s": "≤ 1", "rss_mb": "≤ 100", "decided_anew": "0", "failover_s": "≤ 20"}


def main() -> None:
    options = _options()
    parts = ("kube-controller-manager", "kube-scheduler")
    with Cluster.start(parts=parts, node_lifecycle=False) as cluster:
        cluster.gpu_nodes(options.nodes, static=True)
        cluster.kubectl("apply", "-k", str(ROOT / "config" / "default"))
        cluster.kubectl("delete", "deployment", "--all", "-n", names.NAMESPACE)
        results = asyncio.run(measure(cluster, options))
    _report(options, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0, help="workloads created per second")
    parser.add_argument("--before", default="", help="src folder of another checkout, measured in turn")
    parser.add_argument("--profile", type=Path, help="where to write sampled stacks of the leader")
    parser.add_argument("--slices", type=int, default=2, help="turns of each with --before")
    return parser.parse_args()


class Seen:
    """When each workload was first seen as Scheduled or in a later phase."""

    def __init__(self, watch: Watch[GPUWorkload]) -> None:
        self.at: dict[str, float] = {}
        self._changed = asyncio.Event()
        watch.on_change(self._on_change)

    def _on_change(self, _: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if new and new.status.assigned_node and new.metadata.name not in self.at:
            self.at[new.metadata.name] = time.monotonic()
            self._changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.at) < count:
                self._changed.clear()
                await self._changed.wait()


@dataclass
class Build:
    """One version of the code, and the measurements of it."""

    source: str
    waits: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    spent: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    facts: dict[str, float] = field(default_factory=dict)


@dataclass
class Bench:
    cluster: Cluster
    client: Client
    seen: Seen
    rate: float
    profile: Path | None = None
    number: int = 0

    async def slice(self, build: Build, count: int, leader: Replica, standby: Replica) -> None:
        await self._create(-1 - self.number)  # the leader leads, and its connections are open
        await self.seen.until(len(self.seen.at) + 1)
        await self._settled()
        written, before = writes(self.cluster), self._cpu(leader, standby)
        made = range(self.number, self.number + count)
        async with asyncio.TaskGroup() as group:
            if self.profile:
                group.create_task(asyncio.to_thread(leader.profile, self.profile, count / self.rate))
            begun = await self._load(made, build)
        await self.seen.until(len(self.seen.at) + count - len(self.seen.at.keys() & begun.keys()))
        build.waits += [self.seen.at[name] - at for name, at in begun.items()]
        build.facts["rate"] = count / (max(self.seen.at[each] for each in begun) - min(begun.values()))
        for name, spent in self._cpu(leader, standby).items():
            build.spent[name] += spent - before[name]
        await self._settled()
        build.writes += writes(self.cluster) - written
        build.facts["reconcile_p99_s"] = leader.reconcile_p99_s()
        build.facts["rss_mb"], build.facts["standby_rss_mb"] = leader.rss_mb(), standby.rss_mb()

    def _cpu(self, leader: Replica, standby: Replica) -> Counter[str]:
        ours = {"operator": leader.cpu_s(), "standby": standby.cpu_s(), "load": time.process_time()}
        return Counter({**ours, **{name: part.cpu_s for name, part in self.cluster.parts.items()}})

    async def _load(self, numbers: range, build: Build) -> dict[str, float]:
        begun: dict[str, float] = {}
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for turn, number in enumerate(numbers):
                await asyncio.sleep(max(0.0, started + turn / self.rate - time.monotonic()))
                begun[f"w-{number}"] = time.monotonic()
                group.create_task(self._timed_create(number, build))
        self.number = numbers.stop
        return begun

    async def _timed_create(self, number: int, build: Build) -> None:
        started = time.monotonic()
        await self._create(number)
        build.answers.append(time.monotonic() - started)

    async def _create(self, number: int) -> None:
        spec = {
            "modelName": f"model-{number % 20}",
            "gpuCount": SHAPES[number % len(SHAPES)],
            "schedulingStrategy": STRATEGIES[number % len(STRATEGIES)],
        }
        name = f"w-{number}" if number >= 0 else f"warm{number}"
        meta = {"name": name, "namespace": "default"}
        await self.client.create(GPU_WORKLOADS, {"metadata": meta, "spec": spec})

    async def _settled(self) -> None:
        """Wait until all components are idle: Jobs have their pods, pods their nodes, events are written."""
        server = self.cluster.parts["kube-apiserver"]
        async with asyncio.timeout(WAIT_S):
            while True:
                before = server.cpu_s
                await asyncio.sleep(2)
                if server.cpu_s - before < 2 * AT_REST:
                    return

    async def failover(self, leader: Replica) -> float:
        leader.process.kill()
        killed = time.monotonic()
        await self._create(self.number)
        await self.seen.until(len(self.seen.at) + 1)
        return self.seen.at[f"w-{self.number}"] - killed


async def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    account = cluster.service_account_kubeconfig(names.NAMESPACE, names.OPERATOR)
    now, before = Build(""), Build(options.before)
    turns = [before, now] * options.slices if options.before else [now]
    count = options.workloads * (2 if options.before else 1) // len(turns)
    async with Client.open(config.load(cluster.kubeconfig)) as client, asyncio.TaskGroup() as group:
        watch = Watch(client, GPU_WORKLOADS)
        watching = group.create_task(watch.run())
        await watch.synced()
        bench = Bench(cluster, client, Seen(watch), options.rate, options.profile)
        for turn, build in enumerate(turns):
            with ExitStack() as stack:
                leader, standby = stack.enter_context(pair(account, build.source))
                await bench.slice(build, count, leader, standby)
                if turn == len(turns) - 1:
                    now.facts["failover_s"] = await bench.failover(leader)
        watching.cancel()
    builds = {"before": before, "now": now} if options.before else {"now": now}
    served = served_ms(cluster)
    return {name: {**results(build, options.workloads), **served} for name, build in builds.items()}


def results(build: Build, workloads: int) -> dict[str, float]:
    waits, answers = sorted(build.waits), sorted(build.answers)
    ours = sum(count for what, count in build.writes.items() if not what.startswith("by "))
    return {
        "scheduled_p50_s": statistics.median(waits),
        "scheduled_p99_s": waits[int(len(waits) * 0.99)],
        "created_p99_s": answers[int(len(answers) * 0.99)],
        **build.facts,
        "writes_per_workload": ours / workloads,
        **{f"writes {what}": count / workloads for what, count in sorted(build.writes.items())},
        # kube-scheduler rejected a node that the operator chose: it happens only if the operator miscounted.
        "decided_anew": build.writes["delete jobs"],
        **{f"cpu_ms {name}": spent / workloads * 1000 for name, spent in build.spent.items()},
    }


def _ours(entry: Entry) -> bool:
    return entry.user == USER and entry.verb in VERBS and entry.resource != "leases"


def writes(cluster: Cluster) -> Counter[str]:
    """Count the operator's writes so far, without its Lease, and those of the others, which it causes work
    for."""
    return Counter(
        f"{each.verb} {each.resource}" if _ours(each) else f"by {each.user.rpartition(':')[2]}"
        for each in cluster.audit.entries()
        if each.verb in VERBS and each.resource != "leases"
    )


def served_ms(cluster: Cluster) -> dict[str, float]:
    """Return how long the API server took, on average, for each kind of write of the operator."""
    took: dict[str, list[float]] = defaultdict(list)
    for each in cluster.audit.entries():
        if _ours(each):
            took[f"served_ms {each.verb} {each.resource}"].append(each.took_s * 1000)
    return {what: statistics.mean(times) for what, times in sorted(took.items())}


def _report(options: argparse.Namespace, found: dict[str, dict[str, float]]) -> None:
    rows = [
        [name, *(f"{each[name]:.3g}" if name in each else "" for each in found.values()), GOALS.get(name, "")]
        for name in found["now"]
    ]
    title = f"{options.nodes} nodes, {options.workloads} workloads at {options.rate:.0f}/s"
    show(title, ["measured", *found, "goal"], rows)
    facts = {"nodes": options.nodes, "workloads": options.workloads, "load": os.getloadavg()[0]}
    rounded = {
        build: {name: round(value, 4) for name, value in each.items()} for build, each in found.items()
    }
    print(json.dumps({**facts, **rounded.pop("now"), **rounded}))


if __name__ == "__main__":
    main()
