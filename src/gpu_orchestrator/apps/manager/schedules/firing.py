"""The leader's chore of queueing the tasks of schedules whose moment has come.

What is due is read, decided here, and performed by one script that checks the leader's fence and the
schedule's next moment. So a leader that is killed, or hears no answer, leaves nothing half done: the next one
reads what is due now.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import structlog
from msgspec import MsgspecError

from gpu_orchestrator.adapters.store.errors import Rejected, StoreError
from gpu_orchestrator.adapters.store.records import Unit
from gpu_orchestrator.adapters.store.schedules import Fired, Firing, ScheduleRow
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.schedules import cron, moments, template
from gpu_orchestrator.apps.manager.schedules.moments import Missed
from gpu_orchestrator.apps.manager.views import when

log = structlog.get_logger()

AT_ONCE = 50
MOST_TASKS = 500
"""Schedules and tasks of one call to the store: other clients wait meanwhile."""
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Chore:
    """`unit_of` returns the limits of an owner. `shortage` is why no task can be queued now, or empty."""

    store: Store
    metrics: Metrics
    unit_of: Callable[[str], Unit]
    shortage: Callable[[], str]

    async def do(self) -> bool:
        """Fire what is due; return whether more is left for the next round. What goes wrong here keeps the
        leader from nothing else."""
        try:
            return not self.shortage() and await self._fire()
        except Rejected as error:
            log.warning("schedules cannot be fired now", error=str(error))
        except StoreError:
            raise  # the next round would not reach the store either
        except Exception:
            log.exception("schedules cannot be fired")
        return False

    async def _fire(self) -> bool:
        for _ in range(ROUNDS):
            due = await self.store.schedules.due(AT_ONCE)
            firings = [each for row in due.rows if (each := await self._decided(row, due.now_ms))]
            if not due.rows or (firings and not await self._fired(_part(firings))):
                return False
        return True

    async def _decided(self, row: ScheduleRow, now_ms: int) -> Firing | None:
        """Decide; pause a schedule that cannot be read any more, because others wait behind it."""
        try:
            return decided(row, now_ms, self.unit_of(row.owner))
        except (cron.BadSchedule, MsgspecError) as error:
            log.warning("a schedule cannot be read", schedule=row.id, error=str(error))
            await self.store.schedules.change(row.id, "pause", owner="", by=f"the server: {error}")
            return None

    async def _fired(self, firings: list[Firing]) -> bool:
        """Return False if this process does not lead any more."""
        told = await self.store.schedules.fire(firings)
        for firing, each in zip(firings, told, strict=False):
            self._count(firing, each)
        return bool(told)

    def _count(self, firing: Firing, told: Fired) -> None:
        counter = self.metrics.schedule_moments
        if told.outcome in ("moved on", "stopped", "no room"):
            counter.labels(told.outcome.replace(" ", "_")).inc()
            if told.outcome == "stopped":
                log.warning("a schedule stopped, because its key is over", schedule=firing.id)
            return
        counter.labels("fired").inc(told.tasks)
        counter.labels("overlap").inc(len(firing.tasks) - told.tasks)
        counter.labels("missed").inc(firing.passed_over)


def decided(row: ScheduleRow, now_ms: int, unit: Unit) -> Firing:
    """Return what to do about a schedule that is due."""
    at = cron.read(row.schedule, row.zone)
    due = moments.due(at, row.next_ms, now_ms - row.delay_ms, cast(Missed, row.missed))
    return Firing(
        row.id,
        row.next_ms,
        due.following,
        due.run[-1] if due.run else row.last_ms,
        tuple(template.at_moment(row, moment) for moment in due.run),
        tuple(when(moment) or "" for moment in due.run),
        unit,
        due.passed_over,
    )


def _part(firings: list[Firing]) -> list[Firing]:
    """Return as many of these as one call may have tasks."""
    tasks, count = 0, 0
    for firing in firings:
        tasks += len(firing.tasks)
        if count and tasks > MOST_TASKS:
            break
        count += 1
    return firings[:count]
