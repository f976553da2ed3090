"""A view of the whole cluster: the workers, their devices, and whether a task could ever fit.

Read from the store, so every process gives the same answer; cached for a second, so that many calls are
cheap.
"""

from collections.abc import Iterable
from time import monotonic

import numpy as np
from prometheus_client.metrics_core import Metric

from gpu_orchestrator.adapters.store.records import UnfinishedTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Counts, Row
from gpu_orchestrator.adapters.store.valkey.facts import Room
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import gauge
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape

FRESH_S = 1.0
NEVER = float("-inf")
MOST_ACTIVE = 100_000


class Overview:
    def __init__(self, store: Store, memory: MemoryPolicy, most_store_mb: float = 0.0) -> None:
        self._store, self._memory = store, memory
        self._most_bytes, self._room = int(most_store_mb * MIB), Room(0, 0)
        self._reserved_bytes = self._accepted_bytes = 0
        self._refreshed_at = self._expired_at = NEVER
        self.counts: Counts | None = None
        self.workers: dict[str, WorkerState] = {}
        self._slots = 0
        self._empty = Cluster()
        self._misfits: dict[Shape, Refusal | None] = {}

    async def refresh(self, *, at_most_old_s: float = FRESH_S) -> None:
        if monotonic() - self._refreshed_at < at_most_old_s:
            return
        started_at = monotonic()
        self.counts = await self._store.tasks.counts()
        room, logs = await self._store.database.room(self._most_bytes), await self._store.logs.size()
        # Logs give way to tasks, see `task_logs`.
        self._room, self._accepted_bytes = Room(max(room.used - logs, 0), room.most), 0
        workers = await rows.load(self._store, self.counts.workers)
        if workers != self.workers:
            self.workers, self._misfits = workers, {}
            self._slots = sum(each.hello.max_concurrent for each in workers.values() if each.online)
            self._empty = rows.cluster_of(workers, self._memory, ())
        if started_at > self._expired_at:
            self._refreshed_at = started_at

    def expire(self) -> None:
        """Drop the cached view because a worker joined. A refresh that is running may have missed the worker,
        so its result counts as expired too."""
        self._refreshed_at, self._expired_at = NEVER, monotonic()

    async def never_fits(self, shape: Shape, policy: Policy) -> Refusal | None:
        """Return why no worker could ever take this shape; None if one could, or if no worker has registered
        yet."""
        await self.refresh()
        if self._lookup(shape, policy) is None:
            return None
        await self.refresh(at_most_old_s=0.0)  # a worker may have joined just now
        return self._lookup(shape, policy)

    def reserve_memory(self, size: int) -> Room | None:
        """Reserve memory of the store for a request of `size` bytes. If too little is left, return the room
        and reserve nothing."""
        used, most = self._room.used + self._reserved_bytes + self._accepted_bytes, self._room.most
        if used + size > most > 0:
            return Room(used, most)
        self._reserved_bytes += size
        return None

    def release_memory(self, size: int, kept: int) -> None:
        """Release a reservation of `size` bytes. The store kept `kept` of them, which the next refresh will
        show."""
        self._reserved_bytes -= size
        self._accepted_bytes += kept

    def task_types(self) -> set[str]:
        return {name for worker in self.workers.values() for name in worker.hello.task_types}

    def wait_s(self, average_s: float) -> float:
        """Estimate how long a task submitted now will wait, from the average duration of recent tasks."""
        return self.drain_s(self.counts.states.get("queued", 0) if self.counts else 0, average_s)

    def drain_s(self, tasks: int, average_s: float) -> float:
        """Estimate how long the workers need for this many tasks."""
        return tasks * average_s / self._slots if self._slots else 0.0

    async def cluster(self) -> tuple[dict[str, WorkerState], Cluster]:
        """Return the workers, and the cluster of those that have not left, with all that runs on it; read
        now."""
        await self.refresh(at_most_old_s=0.0)
        page = await self._store.tasks.page(states=("assigned", "running"), offset=0, limit=MOST_ACTIVE)
        stored = await self._store.tasks.fetch(page.ids)
        active = [_unfinished_task(name, row) for name, row in zip(page.ids, stored, strict=True) if row]
        present = {name: worker for name, worker in self.workers.items() if not worker.left}
        return self.workers, rows.cluster_of(present, self._memory, active)

    def device_gauges(self, workers: dict[str, WorkerState], cluster: Cluster) -> Iterable[Metric]:
        labels = ["worker", "device"]
        alerts = [
            ([name, str(each.device), each.kind], 1.0)
            for name, worker in workers.items()
            for each in worker.alerts
        ]
        yield gauge("gpu_alert", "1 while an alert is active", [*labels, "kind"], alerts)
        used, free, reserved = [], [], []
        for name, worker in workers.items():
            if name not in cluster:
                continue
            readings = {each.index: each for each in worker.readings}
            reservations = rows.reserved_on(worker, self._memory, cluster.held_on(name).values())
            left = cluster.usage.free_mib[cluster.row(name)]
            for at, device in enumerate(worker.hello.devices):
                named = [name, str(device.index)]
                reading = readings.get(device.index)
                used.append((named, float(reading.used_mib * MIB if reading else 0)))
                free.append((named, float(np.maximum(left[at], 0)) * MIB))
                mib = reservations[device.index].mib if device.index in reservations else 0
                reserved.append((named, float(mib * MIB)))
        yield gauge("gpu_memory_used_bytes", "Used memory as the driver reports it", labels, used)
        yield gauge("gpu_memory_free_bytes", "Memory that can still be reserved", labels, free)
        yield gauge("gpu_memory_reserved_bytes", "Memory reserved for tasks", labels, reserved)

    def _lookup(self, shape: Shape, policy: Policy) -> Refusal | None:
        if not self.workers:
            return None
        if shape not in self._misfits:
            if len(self._misfits) > 10_000:
                self._misfits.clear()
            refusal = why_not(shape, self._empty, policy)
            self._misfits[shape] = refusal if refusal and refusal.never else None
        return self._misfits[shape]


def _unfinished_task(name: str, row: Row) -> UnfinishedTask:
    return UnfinishedTask(
        name,
        row["spec"],
        int(row["attempt"]),
        0,
        int(row["created"]),
        row.get("deaths", ""),
        row["state"],
        row.get("worker", ""),
        row.get("place", ""),
    )
