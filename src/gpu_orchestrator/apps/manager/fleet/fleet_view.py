"""A copy of the fleet that is updated worker by worker: the workers, their sums, and clusters built of them.

`tasks/overview.py` keeps one and tells it which workers changed. What did not change costs nothing. The sums
are counters: `put` subtracts what a worker was and adds what it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpu_orchestrator.adapters.store.workers import Stamp
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState, node_of, shown_score
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster

MILLIONTHS = 1_000_000


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the workers that are online. Whole numbers, so that no error adds up."""

    online: int = 0
    slots: int = 0
    memory_mib: int = 0
    devices_read: int = 0
    utilization_millionths: int = 0

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        return Totals(
            self.online + sign * other.online,
            self.slots + sign * other.slots,
            self.memory_mib + sign * other.memory_mib,
            self.devices_read + sign * other.devices_read,
            self.utilization_millionths + sign * other.utilization_millionths,
        )

    @property
    def utilization(self) -> float:
        """The mean of all devices that were read; 0 if none was."""
        return self.utilization_millionths / MILLIONTHS / self.devices_read if self.devices_read else 0.0


NOTHING = Totals()


def totals_of(worker: WorkerState) -> Totals:
    if not worker.online:
        return NOTHING
    return Totals(
        online=1,
        slots=worker.hello.max_concurrent,
        memory_mib=sum(device.memory_mib for device in worker.hello.devices),
        devices_read=len(worker.readings),
        utilization_millionths=sum(round(each.utilization * MILLIONTHS) for each in worker.readings),
    )


@dataclass(slots=True)
class FleetView:
    """`empty` is the cluster with nothing on it; `put` returns whether it changed."""

    memory: MemoryPolicy
    workers: dict[str, WorkerState] = field(default_factory=dict)
    totals: Totals = NOTHING
    empty: Cluster = field(default_factory=Cluster)
    _stamps: dict[str, str] = field(default_factory=dict)

    def outdated(self, stamps: Mapping[str, Stamp]) -> list[str]:
        return [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp.row]

    def put(self, worker: WorkerState, stamp: str) -> bool:
        name = worker.hello.name
        before, self._stamps[name] = self.workers.get(name), stamp
        if worker == before:
            return False
        if before is not None:
            self.totals = self.totals.plus(totals_of(before), -1)
        self.totals = self.totals.plus(totals_of(worker))
        self.workers[name] = worker
        return self.empty.set_node(node_of(worker, self.memory, {}))

    def rescore(self, name: str, done: int, failed: int) -> bool:
        """Take in how a worker's tasks ended; this changes nothing unless its score, as shown, does."""
        worker, score = self.workers[name], rows.score_of(done, failed)
        if shown_score(score) == shown_score(worker.score):
            return False
        return self.put(replace(worker, score=score), self._stamps[name])

    def keep_only(self, names: Iterable[str]) -> bool:
        """Drop all other workers; return whether there were any."""
        gone = self.workers.keys() - set(names)
        for name in gone:
            self.totals = self.totals.plus(totals_of(self.workers.pop(name)), -1)
            del self._stamps[name]
            self.empty.remove_node(name)
        return bool(gone)

    def hopeful(self) -> Cluster:
        """Return the cluster as it would be if all workers were there, took tasks, and had nothing to do."""
        cluster = Cluster()
        for each in self.workers.values():
            at_best = replace(each, online=True, cordoned=False, draining=False, cordoned_devices=frozenset())
            cluster.set_node(node_of(replace(at_best, left=False, readings=(), circuit=""), self.memory, {}))
        return cluster

    def free_mib(self, cluster: Cluster) -> int:
        """Return the memory that can still be reserved on workers that are online."""
        names = (name for name, worker in self.workers.items() if worker.online and name in cluster)
        at = [cluster.row(name) for name in names]
        return int(np.maximum(cluster.usage.free_mib[at], 0).sum()) if at else 0


@dataclass(slots=True)
class HeldCluster:
    """A cluster of the workers that have not left, with all that runs on it."""

    memory: MemoryPolicy
    cluster: Cluster = field(default_factory=Cluster)
    _seen: dict[str, tuple[WorkerState, str]] = field(default_factory=dict)

    def outdated(self, workers: Mapping[str, WorkerState], stamps: Mapping[str, Stamp]) -> list[str]:
        """Return the workers that changed, or whose attempts did; forget those that are gone or have left."""
        here = {name for name, worker in workers.items() if not worker.left and name in stamps}
        for name in self._seen.keys() - here:
            del self._seen[name]
            self.cluster.remove_node(name)
        return [name for name in here if not self._is_current(name, workers[name], stamps[name].held)]

    def put(self, worker: WorkerState, stamp: str, held: Iterable[Placement]) -> None:
        name, cluster, held = worker.hello.name, self.cluster, list(held)
        now = {each.key: each for each in (*held, *rows.pins_on(worker, held))}
        before = cluster.held_on(name) if name in cluster else {}
        for key, placement in before.items():
            if now.get(key) != placement:
                cluster.release(placement)
        cluster.set_node(node_of(worker, self.memory, rows.reserved_on(worker, self.memory, now.values())))
        for key, placement in now.items():
            if before.get(key) != placement:
                cluster.account(placement)
        self._seen[name] = worker, stamp

    def _is_current(self, name: str, worker: WorkerState, stamp: str) -> bool:
        known = self._seen.get(name)
        return known is not None and known[0] is worker and known[1] == stamp
