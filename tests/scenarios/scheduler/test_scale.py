"""Throughput beside many pods that do not fit, latency of a steady stream, and start in a large cluster."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from controlplane.api import Json
from tests.support.object_history import Change, History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

pytestmark = pytest.mark.open  # they measure the scheduler, not the API server

Figure = Callable[[str], None]


def test_unfit_pods_do_not_slow_fitting_pods(
    new_bare_stage: Callable[[], Stage], scale: Scale, figure: Figure
) -> None:
    """Two equal clusters, one with the backlog, take turns, so that other load affects both."""
    backlog, fitting = scale(test=300, accept=10_000), scale(test=60, accept=500)
    alone, beside = new_bare_stage(), new_bare_stage()
    for each in (alone, beside):
        each.gpu_nodes(fitting // 8 + 1, gpus=8)
        each.scheduler(leaderElect=False, releaseSeconds=0)
    create_backlog(beside, backlog)
    turns = [(bind_all(alone, fitting), bind_all(beside, fitting)) for _ in range(scale(test=3, accept=21))]
    rate = statistics.median(there.rate / here.rate for here, there in turns)
    cost = statistics.median(there.cost / here.cost for here, there in turns)
    per_s = ", ".join(f"{there.rate:.0f}:{here.rate:.0f}" for here, there in turns)
    figure(
        f"beside {backlog} unfit pods: {rate:.2f} of the throughput (pods/s {per_s}), "
        f"{cost:.2f} of the CPU per pod"
    )
    assert rate > 0.9 or scale.tier == "test"
    assert cost < scale(test=3.0, accept=1.3)


def create_backlog(stage: Stage, count: int) -> None:
    """Create pods that fit nowhere, in their own namespace, so that they are not listed with the others."""
    waiting = replace(stage, namespace="backlog", running=[], nodes=[])
    stage.cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "backlog"}})
    here = {"stage": stage.namespace}
    waiting.create(*(pod(f"unfit-{n}", gpus=64, nodeSelector=here) for n in range(count)))
    until(lambda: with_reason(waiting) == count, "each pod has its reason", 240)


@dataclass(frozen=True)
class Turn:
    """Pods per second and CPU seconds per pod."""

    rate: float
    cost: float


def bind_all(stage: Stage, count: int) -> Turn:
    """Create and bind the pods; return the rates. The scheduler is paused until all pods exist, or the test
    would measure their creation. A watch shows when they are bound, or the test would measure how fast the
    server lists ten thousand."""
    (scheduler,), pods = stage.running, [f"fit-{n}" for n in range(count)]
    scheduler.pause()
    stage.create(*(pod(each, gpus=1) for each in pods))
    with History(stage.cluster, stage.namespace) as history:
        began, cpu_s = time.monotonic(), scheduler.cpu_s
        scheduler.resume()
        took_s = history.wait_for("pods", is_bound, count=count, within_s=120) - began
        cost = (scheduler.cpu_s - cpu_s) / count
    stage.delete(*pods, force=True)
    until(lambda: not stage.leases(), "the devices are free again", 60)
    return Turn(count / took_s, cost)


def is_bound(each: Json) -> bool:
    return bool(each["spec"].get("nodeName"))


def with_reason(stage: Stage) -> int:
    """Return how many pods carry the reason why they wait."""
    reasons = [
        each
        for found in stage.pods().values()
        for each in found["status"].get("conditions", [])
        if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
    ]
    return len(reasons)


def test_steady_stream_is_bound_within_the_limit(bare_stage: Stage, scale: Scale, figure: Figure) -> None:
    """50 pods per second; measured from a pod's creation to its bind, as a watch shows both."""
    seconds = scale(test=2, accept=60)
    bare_stage.gpu_nodes(50 * seconds // 8 + 1, gpus=8)
    bare_stage.scheduler()
    with History(bare_stage.cluster, bare_stage.namespace) as history:
        start = time.monotonic()
        for number in range(50 * seconds):
            time.sleep(max(0.0, start + number / 50 - time.monotonic()))
            bare_stage.create(pod(f"p{number}", gpus=1))
        bare_stage.wait_bound(within_s=60)
    waits = latencies(history.changes)
    p99_s = statistics.quantiles(waits, n=100)[98]
    figure(f"{len(waits)} pods at 50/s: median {statistics.median(waits):.3f} s, p99 {p99_s:.3f} s")
    assert len(waits) == 50 * seconds
    assert p99_s <= scale(test=25.0, accept=1.0)


def latencies(changes: list[Change]) -> list[float]:
    created: dict[str, float] = {}
    waits: dict[str, float] = {}
    for change in changes:
        if change.kind == "pods" and not change.gone:
            uid = change.object["metadata"]["uid"]
            created.setdefault(uid, change.at)
            if change.object["spec"].get("nodeName"):
                waits.setdefault(uid, change.at - created[uid])
    return list(waits.values())


def test_cold_start_in_a_large_cluster(bare_stage: Stage, scale: Scale, figure: Figure) -> None:
    """Measure memory and the time from start to first bind, with many nodes and bound pods."""
    nodes, pods = scale(test=50, accept=5000), scale(test=300, accept=50_000)
    names = bare_stage.gpu_nodes(nodes, gpus=8)
    bare_stage.create(*(ordinary(number, names[number % nodes]) for number in range(pods)))
    bare_stage.create(pod("first", gpus=8))
    began = time.monotonic()
    process = bare_stage.scheduler(leaderElect=False)
    until(lambda: bare_stage.pod("first")["spec"].get("nodeName"), "the first pod is bound", 60)
    took_s = time.monotonic() - began
    figure(f"{nodes} nodes, {pods} pods: {process.memory_mb:.0f} MB, first bind after {took_s:.1f} s")
    assert took_s <= scale(test=60, accept=10)
    assert process.memory_mb <= 400


def ordinary(number: int, node: str) -> Json:
    """Return another scheduler's bound pod, of typical size."""
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    labels = {"app": f"app-{number % 500}", "pod-template-hash": f"{number % 5000:x}", "tier": "back"}
    made = pod(f"other-{number}", meta={"labels": labels}, resources=resources, nodeName=node)
    made["spec"]["schedulerName"] = "default-scheduler"
    return made
