"""From `kubectl create` to Scheduled: the operator at 1,000 nodes and 1,000 workloads. `make bench-operator`.

A real API server with kube-controller-manager and kube-scheduler, static nodes of eight GPUs, two replicas of
the operator with leader election under its shipped ServiceAccount. Workloads come at a steady rate; a watch
tells when each is first seen as Scheduled. At the end the leader is killed. Ends with one line of JSON.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.table import show
from controlplane.cluster import Cluster, free_port
from gpu_orchestrator.adapters.kube import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.watch import Watch
from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload

ROOT = Path(__file__).parents[1]
USER = f"system:serviceaccount:{names.NAMESPACE}:{names.OPERATOR}"
SHAPES = (1, 1, 2, 4)
STRATEGIES = ("leastLoaded", "binPack", "random", "costOptimized")
WAIT_S = 120.0


def main() -> None:
    options = _options()
    parts = ("kube-controller-manager", "kube-scheduler")
    with Cluster.start(parts=parts, node_lifecycle=False) as cluster:
        cluster.gpu_nodes(options.nodes, static=True)
        cluster.kubectl("apply", "-k", str(ROOT / "config" / "default"))
        cluster.kubectl("delete", "deployment", "--all", "-n", names.NAMESPACE)
        account = cluster.service_account_kubeconfig(names.NAMESPACE, names.OPERATOR)
        with replica(account) as leader, replica(account) as standby:
            results = asyncio.run(measure(cluster, options, leader, standby))
    _report(options, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=100.0, help="workloads created per second")
    return parser.parse_args()


class Replica:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int, probes: int) -> None:
        self.process, self._port, self._probes = process, port, probes

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def reconcile_p99_s(self) -> float:
        """From the histogram of passes that wrote something, by interpolation inside the bucket."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics").read().decode()
        name = r"warp_gpuworkload_reconcile_duration_seconds_bucket"
        found = re.findall(rf'{name}{{le="([^"]+)",result="done"}} (\S+)', text)
        buckets = [(float(le), float(count)) for le, count in found]
        return _quantile(buckets, 0.99)

    def is_ready(self) -> bool:
        with suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self._probes}/readyz").status == 200)
        return False


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def replica(kubeconfig: Path) -> Iterator[Replica]:
    port, probes = free_port(), free_port()
    command = [
        str(Path(sys.executable).parent / "gpu-orchestrator"),
        "operator",
        f"--kubeconfig={kubeconfig}",
        f"--metrics-bind-address=127.0.0.1:{port}",
        f"--health-probe-bind-address=127.0.0.1:{probes}",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        made = Replica(process, port, probes)
        while not made.is_ready():
            time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(20)


class Seen:
    """When each workload was first seen as Scheduled, or further."""

    def __init__(self, watch: Watch[GPUWorkload]) -> None:
        self.at: dict[str, float] = {}
        self._news = asyncio.Event()
        watch.on_change(self._look)

    def _look(self, _: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if new and new.status.assigned_node and new.metadata.name not in self.at:
            self.at[new.metadata.name] = time.monotonic()
            self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.at) < count:
                self._news.clear()
                await self._news.wait()


async def measure(
    cluster: Cluster, options: argparse.Namespace, leader: Replica, standby: Replica
) -> dict[str, float]:
    async with Client.open(config.load(cluster.kubeconfig)) as client, asyncio.TaskGroup() as group:
        watch = Watch(client, GPU_WORKLOADS)
        watching = group.create_task(watch.run())
        await watch.synced()
        seen = Seen(watch)
        await _create(client, "warm-0", 0)
        await seen.until(1)
        before, busy = writes(cluster), leader.cpu_s()
        others = {name: part.cpu_s for name, part in cluster.parts.items()}
        created = await _load(client, options, group)
        await seen.until(1 + options.workloads)
        waits = sorted(seen.at[name] - at for name, at in created.items())
        spent = await _settled(cluster) - before
        results = {
            "scheduled_p50_s": statistics.median(waits),
            "scheduled_p99_s": waits[int(len(waits) * 0.99)],
            "reconcile_p99_s": leader.reconcile_p99_s(),
            "rss_mb": leader.rss_mb(),
            "standby_rss_mb": standby.rss_mb(),
            "writes_per_workload": spent / options.workloads,
            # The kube-scheduler did not agree with a node we chose: never, unless we miscounted.
            "decided_anew": cluster.audit.requests()[USER, "delete", "jobs"],
            "cpu_ms_per_workload": (leader.cpu_s() - busy) / options.workloads * 1000,
            "rate": options.workloads / (max(seen.at.values()) - min(created.values())),
            **{f"cpu_s {name}": part.cpu_s - others[name] for name, part in cluster.parts.items()},
            "failover_s": await _failover(client, leader, seen),
        }
        watching.cancel()
    return results


async def _settled(cluster: Cluster) -> int:
    """All that was written, once the events that were still on their way have come."""
    while True:
        before = writes(cluster)
        await asyncio.sleep(2)
        if writes(cluster) == before:
            return before


async def _load(client: Client, options: argparse.Namespace, group: asyncio.TaskGroup) -> dict[str, float]:
    created: dict[str, float] = {}
    began = time.monotonic()
    for number in range(options.workloads):
        await asyncio.sleep(max(0.0, began + number / options.rate - time.monotonic()))
        name = f"w-{number}"
        created[name] = time.monotonic()
        group.create_task(_create(client, name, number))
    return created


async def _create(client: Client, name: str, number: int) -> None:
    spec = {
        "modelName": f"model-{number % 20}",
        "gpuCount": SHAPES[number % len(SHAPES)],
        "schedulingStrategy": STRATEGIES[number % len(STRATEGIES)],
    }
    await client.create(GPU_WORKLOADS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


async def _failover(client: Client, leader: Replica, seen: Seen) -> float:
    leader.process.kill()
    killed = time.monotonic()
    await _create(client, "after-the-leader", 0)
    await seen.until(len(seen.at) + 1)
    return seen.at["after-the-leader"] - killed


def writes(cluster: Cluster) -> int:
    """What the operator has written so far, without its Lease."""
    asked = cluster.audit.requests()
    verbs = ("create", "patch", "update", "delete")
    return sum(
        count
        for (user, verb, what), count in asked.items()
        if user == USER and verb in verbs and what != "leases"
    )


def _quantile(buckets: list[tuple[float, float]], part: float) -> float:
    wanted, low, below = buckets[-1][1] * part, 0.0, 0.0
    for high, count in buckets:
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return low + (min(high, 2 * low or high) - low) * inside
        low, below = high, count
    return low


def _report(options: argparse.Namespace, results: dict[str, float]) -> None:
    goals = {"scheduled_p99_s": "≤ 1", "rss_mb": "≤ 100", "decided_anew": "0", "failover_s": "≤ 20"}
    rows = [[name, f"{value:.3g}", goals.get(name, "")] for name, value in results.items()]
    title = f"{options.nodes} nodes, {options.workloads} workloads at {options.rate:.0f}/s"
    show(title, ["measured", "value", "goal"], rows)
    facts = {"nodes": options.nodes, "workloads": options.workloads, "load": os.getloadavg()[0]}
    print(json.dumps({**facts, **{name: round(value, 4) for name, value in results.items()}}))


if __name__ == "__main__":
    main()
