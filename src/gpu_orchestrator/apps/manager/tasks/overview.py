"""A view of the whole cluster: the workers, their devices, and whether a task could ever fit.

Read from the store, so every process gives the same answer; cached for a second, so that many calls are
cheap. A refresh reads the stamps of all workers, and the rows of those that changed, some at a time: other
requests are served in between.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from time import monotonic

from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Counts
from gpu_orchestrator.adapters.store.valkey.facts import Room
from gpu_orchestrator.adapters.store.workers import Stamp
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.fleet_view import FleetView, HeldCluster, Totals
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.gang import Gang, GangRefusal, PolicyOf, decide_gang
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import GangTerms, Request, Shape

FRESH_S = 1.0
NEVER = float("-inf")
MOST_GANGS = 1000
SHARE_FOR_NEW = 0.9
"""New tasks may fill this part of the store; the rest is for results of those that were accepted."""


class Overview:
    def __init__(self, store: Store, memory: MemoryPolicy, most_store_mb: float = 0.0) -> None:
        self._store = store
        self._most_bytes, self._room = int(most_store_mb * MIB), Room(0, 0)
        self._reserved_bytes = self._accepted_bytes = 0
        self._refreshed_at = self._expired_at = NEVER
        self._refreshing, self._filling = asyncio.Lock(), asyncio.Lock()
        self.counts: Counts | None = None
        self._stamps: dict[str, Stamp] = {}
        self._fleet, self._held = FleetView(memory), HeldCluster(memory)
        self._misfits: dict[Shape, Refusal | None] = {}
        self._gang_misfits: dict[object, GangRefusal | None] = {}
        self._hopeful: Cluster | None = None
        self.model_types: frozenset[str] = frozenset()
        """The task types of the workers that load models."""
        self._task_types: set[str] = set()
        self._loaded: tuple[float, frozenset[str]] = (NEVER, frozenset())

    @property
    def workers(self) -> dict[str, WorkerState]:
        return self._fleet.workers

    @property
    def totals(self) -> Totals:
        return self._fleet.totals

    async def refresh(self, *, at_most_old_s: float = FRESH_S) -> None:
        """Read the store if the view is older than this. Concurrent callers share one refresh."""
        called_at = monotonic()
        if called_at - self._refreshed_at < at_most_old_s:
            return
        async with self._refreshing:
            if self._refreshed_at < called_at:
                await self._refresh()

    async def _refresh(self) -> None:
        started_at = monotonic()
        self.counts = await self._store.tasks.counts()
        room, logs = await self._store.database.room(self._most_bytes), await self._store.logs.size()
        # Logs give way to tasks, see `task_logs`.
        self._room, self._accepted_bytes = Room(max(room.used - logs, 0), room.most), 0
        self._stamps = await self._store.workers.stamps(self.counts.workers)
        if await self._read_workers(self._stamps):
            self._misfits, self._gang_misfits, self._hopeful = {}, {}, None
            workers = self.workers.values()
            self.model_types = frozenset(name for each in workers for name in each.hello.model_types)
            self._task_types = {name for each in workers for name in each.hello.task_types}
        if started_at > self._expired_at:
            self._refreshed_at = started_at

    async def _read_workers(self, stamps: dict[str, Stamp]) -> bool:
        """Read the workers that changed; return whether any is another node than before."""
        changed = self._fleet.keep_only(stamps)
        async for part in self._store.workers.rows(self._fleet.outdated(stamps)):
            for row in part:
                if "spec" in row:
                    changed |= self._fleet.put(rows.worker_state_of(row), stamps[row["name"]].row)
        for name, stamp in stamps.items():
            if name in self.workers:
                changed |= self._fleet.rescore(name, stamp.done, stamp.failed)
        return changed

    def expire(self) -> None:
        """Drop the cached view because a worker joined. A refresh that is running may have missed the worker,
        so its result counts as expired too."""
        self._refreshed_at, self._expired_at = NEVER, monotonic()

    async def never_fits(self, shape: Shape, policy: Policy) -> Refusal | None:
        """Return why no worker could ever take this shape; None if one could, or if no worker has registered
        yet."""
        if monotonic() - self._refreshed_at >= FRESH_S:
            await self.refresh()
        if self._lookup(shape, policy) is None:
            return None
        await self.refresh(at_most_old_s=0.0)  # a worker may have joined just now
        return self._lookup(shape, policy)

    async def gang_never_fits(
        self, terms: GangTerms, members: Sequence[Request], policy_of: PolicyOf
    ) -> GangRefusal | None:
        """Return why these members could never start together; None if they could if all workers were there
        and nothing ran, or if no worker has registered yet."""
        await self.refresh()
        if self._gang_lookup(terms, members, policy_of) is None:
            return None
        await self.refresh(at_most_old_s=0.0)  # a worker may have joined just now
        return self._gang_lookup(terms, members, policy_of)

    def reserve_memory(self, size: int) -> Room | None:
        """Reserve memory of the store for a request of `size` bytes. If too little is left, return the room
        and reserve nothing. Only the leader forgets ended tasks to make room, see `retention`."""
        used, most = self._room.used + self._reserved_bytes + self._accepted_bytes, self._room.most
        if used + size > SHARE_FOR_NEW * most > 0:
            return Room(used, most)
        self._reserved_bytes += size
        return None

    def release_memory(self, size: int, kept: int) -> None:
        """Release a reservation of `size` bytes. The store kept `kept` of them, which the next refresh will
        show."""
        self._reserved_bytes -= size
        self._accepted_bytes += kept

    def loaded_models(self) -> frozenset[str]:
        """Return the models that any worker has loaded; computed once for each refresh."""
        at, names = self._loaded
        if at != self._refreshed_at:
            online = (each for each in self.workers.values() if each.online)
            names = frozenset(copy.model for each in online for copy in each.copies if copy.is_loaded)
            self._loaded = self._refreshed_at, names
        return names

    def task_types(self) -> set[str]:
        return self._task_types

    def wait_s(self, average_s: float) -> float:
        """Estimate how long a task submitted now will wait, from the average duration of recent tasks."""
        return self.drain_s(self.counts.states.get("queued", 0) if self.counts else 0, average_s)

    def drain_s(self, tasks: int, average_s: float) -> float:
        """Estimate how long the workers need for this many tasks."""
        return tasks * average_s / self.totals.slots if self.totals.slots else 0.0

    async def cluster(self, *, at_most_old_s: float = 0.0) -> tuple[dict[str, WorkerState], Cluster]:
        """Return the workers, and the cluster of those that have not left, with all that runs on it."""
        await self.refresh(at_most_old_s=at_most_old_s)
        async with self._filling:
            workers, stamps = self.workers, self._stamps
            outdated = self._held.outdated(workers, stamps)
            async for part in self._store.workers.holding(outdated):
                for row, each in part:
                    if (worker := workers.get(name := row["name"])) is not None and name in stamps:
                        held = rows.placements_on(name, each.placements())
                        self._held.put(worker, stamps[name].held, held)
        here = {name: each for name, each in workers.items() if each.left or name in self._held.cluster}
        return here, self._held.cluster

    def free_mib(self, cluster: Cluster) -> int:
        """Return the memory of this cluster that can still be reserved."""
        return self._fleet.free_mib(cluster)

    def _gang_lookup(
        self, terms: GangTerms, members: Sequence[Request], policy_of: PolicyOf
    ) -> GangRefusal | None:
        if not self.workers:
            return None
        asked = terms.domain, frozenset(Counter(each.shape for each in members).items())
        if asked not in self._gang_misfits:
            if len(self._gang_misfits) > MOST_GANGS:
                self._gang_misfits.clear()
            if self._hopeful is None:
                self._hopeful = self._fleet.hopeful()
            gang = Gang(terms, tuple(members), terms.least)
            answer = decide_gang(gang, self._hopeful, policy_of, Random(0))  # noqa: S311 - settles ties
            self._gang_misfits[asked] = answer if isinstance(answer, GangRefusal) else None
        return self._gang_misfits[asked]

    def _lookup(self, shape: Shape, policy: Policy) -> Refusal | None:
        if not self.workers:
            return None
        if shape not in self._misfits:
            if len(self._misfits) > 10_000:
                self._misfits.clear()
            refusal = why_not(shape, self._fleet.empty, policy)
            self._misfits[shape] = refusal if refusal and refusal.never else None
        return self._misfits[shape]
