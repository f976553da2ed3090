"""One run of `takeover`: fill the stores of the watches, let a new leader begin, and print what it cost.

This file is also run with the code of other checkouts: it calls little of it, and nothing that is new.
"""

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.parse_ours import resident_mb
from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.informer.interning import intern_strings
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api.kubernetes import LEASES, NODES, PODS
from gpu_orchestrator.api.wire import Resource, key
from gpu_orchestrator.apps.scheduler.informers import Watches
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.apps.scheduler.scheduler import Scheduler
from gpu_orchestrator.apps.scheduler.settings import Settings
from gpu_orchestrator.policies.registry import Registry

GPUS = 8
LIMIT_S = 300.0
SYSTEM = "gpu-orchestrator-system"
SINCE = "2026-01-01T00:00:00.000000Z"


class Silence:
    """A server that never answers. `asked` is set by the first write: the lease of the first bind."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.first_s = 0.0

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        if request.method == "POST" and not self.asked.is_set():
            self.first_s = time.process_time()
            self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("never set")

    @asynccontextmanager
    async def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AsyncIterator[Stream]:
        await asyncio.Event().wait()
        yield Stream(200, {}, _nothing())

    async def close(self) -> None: ...


async def _nothing() -> AsyncIterator[bytes]:
    for nothing in list[bytes]():
        yield nothing


class Shares:
    """CPU time by part. Other tasks run in between, which hardly use any here."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time_handlers(self, watch: Watch[Any], name: str) -> None:
        """Measure each handler that this watch replays its objects to."""
        original = watch.on_change_in_slices

        async def timed(handler: Callable[..., None], breath: Breath) -> None:
            owner = type(getattr(handler, "__self__", None)).__name__
            await self.add(f"{name} {owner}.{handler.__name__}", original(handler, breath))

        watch.on_change_in_slices = timed  # type: ignore[method-assign]  # of this watch alone

    async def add(self, name: str, work: Awaitable[None]) -> None:
        began = time.process_time()
        await work
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument(
        "--profile", default="", help="write cProfile's results there; the figures are useless"
    )
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.nodes, options.profile))))


async def measure(nodes: int, profile: str) -> dict[str, Any]:
    client, clock, silence = Client(made := Silence()), asyncio.get_running_loop().time, made
    watches = Watches(client, SYSTEM)
    scheduler = Scheduler(
        client,
        Settings(namespace=SYSTEM),
        watches,
        Recorder(client, "gpu-scheduler", capacity=10, writers=1),
        Metrics(),
        pacer=Pacer(clock),
        registry=Registry(),
        rng=random.Random(1),
        may_write=lambda: True,
    )
    fill(watches, nodes)
    shares = Shares()
    for name, watch in vars(watches).items():
        if isinstance(watch, Watch):
            shares.time_handlers(watch, name)
    _time_steps(shares)
    before_mb = resident_mb()
    began = time.process_time()
    profiler = _profiler() if profile else None
    async with asyncio.timeout(LIMIT_S):
        work = asyncio.create_task(scheduler.work())
        await silence.asked.wait()
    if profiler:
        profiler.disable()
        profiler.dump_stats(profile)
    work.cancel()
    await asyncio.wait({work})
    cluster = scheduler.coordinator.engine.cluster
    assert sum(cluster.free_gpus(f"node-{number}") for number in range(nodes)) == GPUS - 1
    return {
        "cpu_s": silence.first_s - began,
        "grown_mb": resident_mb() - before_mb,
        "frozen": gc.get_freeze_count(),
        "parts": shares.seconds,
    }


def _profiler() -> Any:
    import cProfile

    profiler = cProfile.Profile(time.process_time)
    profiler.enable()
    return profiler


def _time_steps(shares: Shares) -> None:
    """Measure what is done step by step after the handlers."""
    original = Breath.through

    async def timed(self: Breath, steps: Iterable[object]) -> None:
        await shares.add(getattr(steps, "__name__", "steps"), original(self, steps))

    Breath.through = timed  # type: ignore[method-assign]


def fill(watches: Watches, nodes: int) -> None:
    """Store nodes of which all but the first are full, and one pod that waits."""
    names = [f"node-{number}" for number in range(nodes)]
    devices = [(name, device) for name in names[1:] for device in range(GPUS)]
    _store(watches.nodes, NODES, (_node(name) for name in names))
    _store(watches.leases, LEASES, (_lease(*each) for each in devices))
    _store(watches.pods, PODS, (_pod(*each) for each in [*devices, ("", 0)]))


def _store(watch: Watch[Any], resource: Resource[Any], objects: Iterable[dict[str, Any]]) -> None:
    """Decode the objects from what the server would send, and store them as the watch does."""
    for each in objects:
        obj = codec.decode(resource, json.dumps(each).encode())
        intern_strings(obj)
        watch.store.put(obj)
    assert all(key(each) in watch.store for each in watch.store)


def _meta(name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {
        "name": name,
        **where,
        "uid": f"0c9e7a52-1b6f-4d43-{name}",
        "resourceVersion": "4711",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **more,
    }


def _node(name: str) -> dict[str, Any]:
    given = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": _meta(name, labels=labels),
        "spec": {},
        "status": {"capacity": given, "allocatable": given, "conditions": [ready]},
    }


def _pod(node: str, device: int) -> dict[str, Any]:
    bound = {"nodeName": node} if node else {}
    given = {"gpu.scheduling/allocated": f"{node}:{device}"} if node else {}
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "imagePullPolicy": "Always",
    }
    lasting = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "metadata": _meta(_pod_name(node, device), "team", annotations={"gpu.scheduling/gpus": "1", **given}),
        "spec": {
            "schedulerName": "gpu-scheduler",
            "containers": [container],
            "nodeSelector": {"stage": "team"} if node else {},
            "tolerations": [
                {"key": f"node.kubernetes.io/{reason}", **lasting} for reason in ("not-ready", "unreachable")
            ],
            "restartPolicy": "Always",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            **bound,
        },
        "status": {"phase": "Pending"},
    }


def _pod_name(node: str, device: int) -> str:
    return f"runs-{node}-{device}" if node else "waits"


def _lease(node: str, device: int) -> dict[str, Any]:
    pod = _meta(_pod_name(node, device))
    labels = {"gpu.scheduling/managed": "true", "gpu.scheduling/pod-uid": pod["uid"]}
    about = {
        "gpu.scheduling/node": node,
        "gpu.scheduling/pod": pod["name"],
        "gpu.scheduling/namespace": "team",
    }
    return {
        "metadata": _meta(f"gpu-{node}-{device}", SYSTEM, labels=labels, annotations=about),
        "spec": {"holderIdentity": pod["uid"], "acquireTime": SINCE, "renewTime": SINCE},
    }


if __name__ == "__main__":
    main()
