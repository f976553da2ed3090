"""Measure writes of the client to a real API server: create, patch and bind. `make bench-kube-write`.

One process, many connections, a ServiceAccount's token, as a component in a cluster has it. The API server
and etcd run on the same cores, so the CPU that the client leaves them limits how many requests they serve.
Our transport and aiohttp take turns. A ratio compares neighbours in the same round and is above 1 where ours
is better: the median, the minimum and the maximum of all rounds.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import uvloop

from benchmarks.table import show
from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.transport.base import HttpTransport
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.adapters.kube.transport.pooled import PooledTransport
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json

NAMESPACE = "default"
ACCOUNT = "writer"
BLIND_PODS = ignore_answer(PODS)


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    transport: str
    per_s: float
    client_us: float
    server_us: float


OURS, PLAIN = "ours", "aiohttp"
TRANSPORTS = {OURS: PooledTransport, PLAIN: HttpTransport}
WRITES = ("creates", "patches", "binds")


def main() -> None:
    options = _options()
    with Cluster.start() as cluster:
        _prepare(cluster)
        found = config.load(cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT))
        rounds = [
            uvloop.run(_play(cluster, found, transport, f"{transport}-{number}", options))
            for number in range(options.rounds)
            for transport in (TRANSPORTS if number % 2 == 0 else reversed(TRANSPORTS))
        ]
    _report([one for measured in rounds for one in measured], options)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000, help="of each round")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _prepare(cluster: Cluster) -> None:
    for account in ("default", ACCOUNT):
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        cluster.api.request("POST", path, {"metadata": {"name": account}})
    subject = f"--serviceaccount={NAMESPACE}:{ACCOUNT}"
    cluster.kubectl("create", "clusterrolebinding", "writer", "--clusterrole=cluster-admin", subject)


async def _play(
    cluster: Cluster, found: config.Config, transport: str, prefix: str, options: Any
) -> list[Measured]:
    names = [f"{prefix}-{number}" for number in range(options.pods)]
    async with Client.open(found, TRANSPORTS[transport]) as client:
        warm = [partial(_create, client, f"warm-{prefix}-{number}") for number in range(options.in_flight)]
        await _many(warm, options.in_flight)
        bench = _Bench(cluster, transport, options.in_flight)
        creates = await bench.measure("creates", [partial(_create, client, name) for name in names])
        patches = await bench.measure("patches", [partial(_patch, client, name) for name in names])
        listing = await client.list(PODS, NAMESPACE, labels="patched=yes", fields="spec.nodeName=")
        binds = await bench.measure("binds", [partial(_bind, client, pod) for pod in listing.items])
        return [creates, patches, binds]


async def _create(client: Client, name: str) -> None:
    spec: Json = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    await client.create(BLIND_PODS, {"metadata": {"name": name}, "spec": spec}, NAMESPACE)


async def _patch(client: Client, name: str) -> None:
    await client.patch(BLIND_PODS, name, {"metadata": {"labels": {"patched": "yes"}}}, NAMESPACE)


async def _bind(client: Client, pod: Pod) -> None:
    annotations = {"gpu.scheduling/allocated": "gpu-node-0:0,1"}
    await pods.bind(client, pod, "gpu-node-0", annotations=annotations)


Action = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Bench:
    cluster: Cluster
    transport: str
    in_flight: int

    async def measure(self, name: str, actions: list[Action]) -> Measured:
        server, ours, start = self._server_cpu_s(), time.process_time(), time.perf_counter()
        await _many(actions, self.in_flight)
        took, used = time.perf_counter() - start, time.process_time() - ours
        server = self._server_cpu_s() - server
        count = len(actions)
        return Measured(name, self.transport, count / took, 1e6 * used / count, 1e6 * server / count)

    def _server_cpu_s(self) -> float:
        return sum(self.cluster.parts[name].cpu_s for name in ("kube-apiserver", "etcd"))


async def _many(actions: Iterable[Action], in_flight: int) -> None:
    """Run all actions, `in_flight` at a time."""
    waiting = iter(actions)

    async def lane() -> None:
        for action in waiting:
            await action()

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(lane())


def _report(measured: list[Measured], options: Any) -> None:
    rows: list[tuple[str, ...]] = []
    figures: Json = {"benchmark": "kube-write", "pods": options.pods, "in_flight": options.in_flight}
    for name in WRITES:
        runs = {
            transport: [one for one in measured if (one.name, one.transport) == (name, transport)]
            for transport in TRANSPORTS
        }
        for transport, those in runs.items():
            per_s = median(one.per_s for one in those)
            client, server = median(one.client_us for one in those), median(one.server_us for one in those)
            rows.append((name, transport, f"{per_s:.0f}", f"{client:.0f}", f"{server:.0f}"))
            prefix = name if transport == OURS else f"{transport}_{name}"
            figures |= {f"{prefix}_per_s": round(per_s), f"{prefix}_cpu_us": round(client)}
        pairs = list(zip(runs[OURS], runs[PLAIN], strict=True))
        figures[f"ratio_{name}"] = _spread([ours.per_s / plain.per_s for ours, plain in pairs])
        figures[f"ratio_{name}_cpu"] = _spread([plain.client_us / ours.client_us for ours, plain in pairs])
    title = (
        f"{options.pods} of each, {options.rounds} rounds, {options.in_flight} in flight, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    show(title, ("writes", "transport", "per second", "client CPU µs each", "servers' CPU µs each"), rows)
    print(json.dumps(figures))


def _spread(ratios: list[float]) -> list[float]:
    return [round(each, 2) for each in (median(ratios), min(ratios), max(ratios))]


if __name__ == "__main__":
    main()
