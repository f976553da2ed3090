"""Periodic work of the leader: delete list entries of old tasks, record samples for the history."""

from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic

from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.events import history
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState

TRIM_EVERY_S = 5.0
TRIM_ROUNDS = 10
RECORD_EVERY_S = 10.0


@dataclass(slots=True)
class Maintenance:
    store: Store
    _trim_at: float = 0.0
    _record_at: float = 0.0

    async def do(self, workers: Iterable[WorkerState]) -> None:
        """Run the jobs that are due."""
        now = monotonic()
        if now >= self._trim_at:
            self._trim_at = now + (TRIM_EVERY_S if await self._trim() else 0.0)
        if now >= self._record_at:
            self._record_at = now + RECORD_EVERY_S
            await self.store.history.record(history.measure(workers))

    async def _trim(self) -> bool:
        """Trim in rounds; return True if nothing is left. One round trims only part of a busy minute's tasks,
        and the leader must not be held up for long, so the rest waits for the next call."""
        for _ in range(TRIM_ROUNDS):
            if not await self.store.tasks.trim():
                return True
        return False
