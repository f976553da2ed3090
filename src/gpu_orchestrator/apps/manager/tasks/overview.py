"""Questions about the whole: which workers there are, what could fit at all, and why a task waits.

Answered from the store, so every process gives the same answer; kept for a second, so many may ask.
"""

from collections.abc import Iterable
from time import monotonic

import numpy as np
from prometheus_client.metrics_core import Metric

from gpu_orchestrator.adapters.store.records import Remembered
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Counts, Row
from gpu_orchestrator.adapters.store.valkey.database import Room
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.fleet import rows as fleet
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
        self._most_store, self._room, self._coming, self._came = int(most_store_mb * MIB), Room(0, 0), 0, 0
        self._looked = self._changed = NEVER
        self.counts: Counts | None = None
        self.workers: dict[str, WorkerState] = {}
        self._slots = 0
        self._empty = Cluster()
        self._never: dict[Shape, Refusal | None] = {}

    async def refresh(self, *, at_most_old_s: float = FRESH_S) -> None:
        if monotonic() - self._looked < at_most_old_s:
            return
        looked = monotonic()
        self.counts = await self._store.tasks.counts()
        self._room, self._came = await self._store.database.room(self._most_store), 0
        workers = await fleet.load(self._store, self.counts.workers)
        if workers != self.workers:
            self.workers, self._never = workers, {}
            self._slots = sum(each.hello.max_concurrent for each in workers.values() if each.online)
            self._empty = fleet.cluster_of(workers, self._memory, ())
        if looked > self._changed:
            self._looked = looked

    def expire(self) -> None:
        """A worker came: look anew when asked, also if just now somebody looks, who may have missed it."""
        self._looked, self._changed = NEVER, monotonic()

    async def never_fits(self, shape: Shape, policy: Policy) -> Refusal | None:
        """Why no worker there is could ever take this; None if one could, or if there is no worker yet."""
        await self.refresh()
        if self._lookup(shape, policy) is None:
            return None
        await self.refresh(at_most_old_s=0.0)  # a worker may have joined just now
        return self._lookup(shape, policy)

    def take_room(self, size: int) -> Room | None:
        """Counts so many bytes as under way; the store's room, if that is too little."""
        used, most = self._room.used + self._coming + self._came, self._room.most
        if used + size > most > 0:
            return Room(used, most)
        self._coming += size
        return None

    def took_room(self, size: int, kept: int) -> None:
        """Of so many bytes that were under way the store has kept these; it shows them at the next look."""
        self._coming -= size
        self._came += kept

    def task_types(self) -> set[str]:
        return {name for worker in self.workers.values() for name in worker.hello.task_types}

    def wait_s(self, average_s: float) -> float:
        """How long a task submitted now may wait, by what the last ones took."""
        return self.drain_s(self.counts.states.get("queued", 0) if self.counts else 0, average_s)

    def drain_s(self, tasks: int, average_s: float) -> float:
        """How long it takes to work off so many."""
        return tasks * average_s / self._slots if self._slots else 0.0

    async def cluster(self) -> tuple[dict[str, WorkerState], Cluster]:
        """The workers and all that runs on them, now."""
        await self.refresh(at_most_old_s=0.0)
        page = await self._store.tasks.page(states=("assigned", "running"), offset=0, limit=MOST_ACTIVE)
        rows = await self._store.tasks.fetch(page.ids)
        active = [_remembered(name, row) for name, row in zip(page.ids, rows, strict=True) if row]
        return self.workers, fleet.cluster_of(self.workers, self._memory, active)

    def device_gauges(self, workers: dict[str, WorkerState], cluster: Cluster) -> Iterable[Metric]:
        labels = ["worker", "device"]
        alerts = [
            ([name, str(each.device), each.kind], 1.0)
            for name, worker in workers.items()
            for each in worker.alerts
        ]
        yield gauge("gpu_alert", "1 while an alert stands", [*labels, "kind"], alerts)
        used, free, reserved = [], [], []
        for name, worker in workers.items():
            if name not in cluster:
                continue
            readings = {each.index: each for each in worker.readings}
            promised = fleet.reserved_on(worker, self._memory, cluster.held_on(name).values())
            left = cluster.usage.free_mib[cluster.row(name)]
            for at, device in enumerate(worker.hello.devices):
                named = [name, str(device.index)]
                reading = readings.get(device.index)
                used.append((named, float(reading.used_mib * MIB if reading else 0)))
                free.append((named, float(np.maximum(left[at], 0)) * MIB))
                mib = promised[device.index].mib if device.index in promised else 0
                reserved.append((named, float(mib * MIB)))
        yield gauge("gpu_memory_used_bytes", "Used, by the driver", labels, used)
        yield gauge("gpu_memory_free_bytes", "What may still be promised", labels, free)
        yield gauge("gpu_memory_reserved_bytes", "Promised to tasks", labels, reserved)

    def _lookup(self, shape: Shape, policy: Policy) -> Refusal | None:
        if not self.workers:
            return None
        if shape not in self._never:
            if len(self._never) > 10_000:
                self._never.clear()
            refusal = why_not(shape, self._empty, policy)
            self._never[shape] = refusal if refusal and refusal.never else None
        return self._never[shape]


def _remembered(name: str, row: Row) -> Remembered:
    return Remembered(
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
