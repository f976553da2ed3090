"""The history of the cluster: what the leader measures for it, and the response that shows it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpu_orchestrator.adapters.store.history import Bucket, Ring
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager import schema, views
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState


def measure(workers: Iterable[WorkerState]) -> dict[str, float]:
    """Return what the store cannot count itself: the online workers and the readings of their devices."""
    online = [worker for worker in workers if worker.online]
    readings = [reading for worker in online for reading in worker.readings]
    return {
        "workers": len(online),
        "gpus": sum(len(worker.hello.devices) for worker in online),
        "gpu_utilization": sum(each.utilization for each in readings) / max(len(readings), 1),
        "temperature": max((each.temperature_c for each in readings), default=0.0),
        "memory_used": sum(each.used_mib for each in readings) * MIB,
        "memory_total": sum(d.memory_mib for worker in online for d in worker.hello.devices) * MIB,
    }


def body(ring: Ring, buckets: Sequence[Bucket]) -> schema.MetricsHistory:
    """Convert counters to increments per bucket. The first bucket shows 0, because nothing precedes it."""
    points = [_point(ring, before, bucket) for before, bucket in pairwise((None, *buckets)) if bucket]
    return schema.MetricsHistory(timeframe=ring.name, resolution_seconds=ring.bucket_s, points=points)


def _point(ring: Ring, before: Bucket | None, bucket: Bucket) -> schema.MetricsPoint:
    def added(name: str) -> int:
        known = before.counters.get(name, 0) if before else bucket.counters.get(name, 0)
        return max(bucket.counters.get(name, 0) - known, 0)

    return schema.MetricsPoint(
        timestamp=views.when(bucket.number * ring.bucket_ms) or "",
        queued_tasks=round(bucket.mean("queued"), 2),
        queued_tasks_max=int(bucket.greatest.get("queued", 0)),
        running_tasks=round(bucket.mean("assigned") + bucket.mean("running"), 2),
        submitted=added("submitted"),
        completed=added("completed"),
        failed=added("failed") + added("dead"),
        cancelled=added("cancelled"),
        requeued=added("requeued"),
        active_workers=round(bucket.mean("workers"), 2),
        gpus=round(bucket.mean("gpus"), 2),
        gpu_utilization=round(bucket.mean("gpu_utilization"), 2),
        temperature_max=bucket.greatest.get("temperature", 0.0),
        memory_used_bytes=int(bucket.mean("memory_used")),
        memory_total_bytes=int(bucket.mean("memory_total")),
    )
