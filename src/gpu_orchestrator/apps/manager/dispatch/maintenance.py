"""Periodic work of the leader: delete list entries of old tasks, forget workers that left, record samples
for the history; and, at every round, queue or end the tasks whose time has come."""

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import structlog

from gpu_orchestrator.adapters.store.errors import Rejected, Unreachable
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.events import history
from gpu_orchestrator.apps.manager.fleet.nodes import OPEN, WorkerState

log = structlog.get_logger()

DUE_ROUNDS = 20
TIDY_EVERY_S = 60.0
TIDIED_AT_ONCE = 200
TRIM_EVERY_S = 5.0
TRIM_ROUNDS = 10
RECORD_EVERY_S = 10.0


class DueTasks(NamedTuple):
    """The ids of tasks that expired; whether more are due, and whether schedules are."""

    ended: tuple[str, ...]
    more: bool
    schedules: bool


@dataclass(slots=True)
class Maintenance:
    store: Store
    _trim_at: float = 0.0
    _record_at: float = 0.0
    _tidy_at: float = 0.0

    async def do(self, workers: Collection[WorkerState]) -> None:
        """Run the jobs that are due. One that fails is tried again at its next time: what the leader knows
        stays right, so it need not begin a new term."""
        now = monotonic()
        await self._done("half open", self._half_open([each for each in workers if each.circuit == OPEN]))
        if now >= self._trim_at:
            self._trim_at = now + TRIM_EVERY_S
            if await self._done("trim", self._trim()) is False:
                self._trim_at = now
        if now >= self._record_at:
            self._record_at = now + RECORD_EVERY_S
            await self._done("record", self._record(workers))
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_EVERY_S
            await self._done("tidy", self._tidy([each.hello.name for each in workers]))

    async def due(self) -> DueTasks:
        """Queue scheduled tasks whose time has come and end those that expired. Some may be left for the next
        round: the leader must not be held up for long."""
        ended: list[str] = []
        for _ in range(DUE_ROUNDS):
            found = await self.store.tasks.due()
            ended += found.ended
            if not found.more:
                break
        return DueTasks(tuple(ended), bool(found.more), bool(found.schedules))

    async def links(self) -> tuple[list[str], bool]:
        """See to the links between tasks. Return the ids of those that were cancelled, and whether more is to
        be done in the next round."""
        cancelled: list[str] = []
        for _ in range(DUE_ROUNDS):
            found = await self.store.tasks.see_to_links()
            cancelled += found.cancelled
            if not found.more:
                return cancelled, False
        return cancelled, True

    async def _done(self, job: str, work: Awaitable[bool]) -> bool | None:
        """Return what the job returns, None if it failed."""
        try:
            return await work
        except Unreachable as error:
            if not isinstance(error, Rejected):
                raise  # the next round would not reach the store either
            log.warning("a job of the leader failed", job=job, error=str(error))
        except Exception:
            log.exception("a job of the leader failed", job=job)
        return None

    async def _record(self, workers: Collection[WorkerState]) -> bool:
        await self.store.history.record(history.measure(workers))
        return True

    async def _half_open(self, resting: Collection[WorkerState]) -> bool:
        if resting:
            await self.store.workers.half_open([each.hello.name for each in resting])
        return True

    async def _tidy(self, names: list[str]) -> bool:
        """Forget workers that have been offline for long, and drop old counters of the others."""
        for start in range(0, len(names), TIDIED_AT_ONCE):
            part = names[start : start + TIDIED_AT_ONCE]
            for name in await self.store.workers.tidy(part, self.store.timeouts.worker_keep_ms):
                log.info("worker forgotten", worker_id=name, why="offline for longer than WORKER_RETENTION")
        return True

    async def _trim(self) -> bool:
        """Trim in rounds; return True if nothing is left. One round trims only part of a busy minute's tasks,
        and the leader must not be held up for long, so the rest waits for the next call."""
        for _ in range(TRIM_ROUNDS):
            if not await self.store.tasks.trim():
                return True
        return False
