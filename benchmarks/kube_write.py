"""How fast the client writes to a real API server: creates, patches and binds. `make bench-kube-write`.

One process, many connections, a ServiceAccount's token, as a component in a cluster has it. The API server
and etcd run on the same cores, so what the client leaves them decides how many requests they take.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks.table import show
from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.kube import config, pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.codec import blind
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import Json

NAMESPACE = "default"
ACCOUNT = "writer"
BLIND_PODS = blind(PODS)


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    per_s: float
    client_us: float
    server_us: float


def main() -> None:
    options = _options()
    with Cluster.start() as cluster:
        _prepare(cluster)
        kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT)
        measured = uvloop.run(_play(cluster, config.load(kubeconfig), options.pods, options.in_flight))
    _report(measured, options)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=64)
    return parser.parse_args()


def _prepare(cluster: Cluster) -> None:
    for account in ("default", ACCOUNT):
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        cluster.api.request("POST", path, {"metadata": {"name": account}})
    subject = f"--serviceaccount={NAMESPACE}:{ACCOUNT}"
    cluster.kubectl("create", "clusterrolebinding", "writer", "--clusterrole=cluster-admin", subject)


async def _play(cluster: Cluster, found: config.Config, count: int, in_flight: int) -> list[Measured]:
    names = [f"pod-{number}" for number in range(count)]
    async with Client.open(found) as client:
        await _many((lambda n=n: _create(client, f"warm-{n}") for n in range(in_flight)), in_flight)  # type: ignore[misc]
        bench = _Bench(cluster, in_flight)
        return [
            await bench.measure("creates", [lambda n=n: _create(client, n) for n in names]),  # type: ignore[misc]
            await bench.measure("patches", [lambda n=n: _patch(client, n) for n in names]),  # type: ignore[misc]
            await bench.measure("binds", [lambda p=p: _bind(client, p) for p in await _all(client)]),  # type: ignore[misc]
        ]


async def _create(client: Client, name: str) -> None:
    spec: Json = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
    await client.create(BLIND_PODS, {"metadata": {"name": name}, "spec": spec}, NAMESPACE)


async def _patch(client: Client, name: str) -> None:
    await client.patch(BLIND_PODS, name, {"metadata": {"labels": {"patched": "yes"}}}, NAMESPACE)


async def _bind(client: Client, pod: Pod) -> None:
    annotations = {"gpu.scheduling/allocated": "gpu-node-0:0,1"}
    await pods.bind(client, pod, "gpu-node-0", annotations=annotations)


async def _all(client: Client) -> list[Pod]:
    listing = await client.list(PODS, NAMESPACE, labels="patched=yes")
    return list(listing.items)


Action = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Bench:
    cluster: Cluster
    in_flight: int

    async def measure(self, name: str, actions: list[Action]) -> Measured:
        server, ours, start = self._server_cpu_s(), time.process_time(), time.perf_counter()
        await _many(actions, self.in_flight)
        took, used = time.perf_counter() - start, time.process_time() - ours
        server = self._server_cpu_s() - server
        count = len(actions)
        return Measured(name, count / took, 1e6 * used / count, 1e6 * server / count)

    def _server_cpu_s(self) -> float:
        return sum(self.cluster.parts[name].cpu_s for name in ("kube-apiserver", "etcd"))


async def _many(actions: Iterable[Action], in_flight: int) -> None:
    """All of them, so many at a time."""
    waiting = iter(actions)

    async def lane() -> None:
        for action in waiting:
            await action()

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(lane())


def _report(measured: list[Measured], options: Any) -> None:
    rows = [
        (one.name, f"{one.per_s:.0f}", f"{one.client_us:.0f}", f"{one.server_us:.0f}") for one in measured
    ]
    title = f"{options.pods} of each, {options.in_flight} in flight, load {os.getloadavg()[0]:.1f}"
    show(title, ("writes", "per second", "client CPU µs each", "API server + etcd CPU µs each"), rows)
    figures: Json = {"benchmark": "kube-write", "pods": options.pods, "in_flight": options.in_flight}
    for one in measured:
        figures[f"{one.name}_per_s"] = round(one.per_s)
        figures[f"{one.name}_cpu_us"] = round(one.client_us)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
