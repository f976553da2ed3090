"""What workers say of their attempts, brought into the store in batches and kept until the store has it.

A beginning is written a moment later, and not at all when the end has come by then: short tasks cost less.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.records import Active, Note, Outcome, Renewal
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Settled, row_of
from gpu_orchestrator.api import session, task
from gpu_orchestrator.apps.manager.fleet import rows as fleet
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.batching import BatchQueue
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.engine import backoff

log = structlog.get_logger()

NOTE_DELAY_S = 0.05
MOST, AT_ONCE = 16, 3
"""Small writes, several under way: while the store settles some, the next tasks of others are chosen. All in
one write would go round together, and everybody would wait for everybody else."""
STORE_PAUSE_S = 0.1
FIRST_RETRY_S, LONGEST_RETRY_S, RETRY_JITTER = 0.2, 30.0, 0.5
_encode = msgspec.json.Encoder().encode


Then = Callable[[Settled | None], None]
"""None if it could not be stored."""


@dataclass(frozen=True, slots=True)
class _Report:
    outcome: Outcome
    seconds: float
    then: Then


class Outcomes:
    """`waiters` are told of every task that became final."""

    def __init__(self, store: Store, metrics: Metrics, waiters: CompletionWaiters) -> None:
        self._store, self._metrics, self._waiters = store, metrics, waiters
        self._finish: BatchQueue[_Report] = BatchQueue(self._into_store, most=MOST, at_once=AT_ONCE)
        self._notes: dict[tuple[str, int], Note] = {}
        self._began: dict[tuple[str, int], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing = BackgroundTasks()

    def settle(self, by: Renewal, said: session.Outcome, seconds: float, then: Then) -> None:
        """`then` hears what the store made of it: not counted if it came too late."""
        self._notes.pop((said.task, said.attempt), None)
        outcome = _outcome(by, said, int(seconds * 1000))
        if said.task in self._waiters:
            outcome = msgspec.structs.replace(outcome, wanted=True)
        self._finish.put(_Report(outcome, seconds, then))

    def started(self, by: Renewal, name: str, attempt: int) -> None:
        self._note(by, name, attempt, began=True)

    def progressed(self, by: Renewal, name: str, attempt: int, line: str) -> None:
        self._note(by, name, attempt, line=line[:2000])

    async def assigns(self, missing: Sequence[Active]) -> list[session.Assign]:
        """The assignments of attempts that a worker should have, from the store."""
        if not missing:
            return []
        rows = await self._store.tasks.fetch([each.id for each in missing], parameters=True)
        found = []
        for each, row in zip(missing, rows, strict=True):
            if row and row["attempt"] == str(each.attempt) and row["state"] in task.ACTIVE:
                spec, grant = task.decode(row["spec"]), fleet.read_grant(row["place"])
                params, correlation = row["params"], row["correlation"]
                found.append(fleet.message_of(each.id, each.attempt, spec, grant, params, correlation))
        return found

    async def close(self) -> None:
        self._write_notes()
        await self._finish.close()
        await self._writing.finish()

    async def _into_store(self, said: list[_Report]) -> None:
        """Who waits is told first: all else has time."""
        try:
            settled = await self._settle([each.outcome for each in said])
        except Exception as error:
            for each in said:
                log.error("an outcome could not be stored", task_id=each.outcome.id, exc_info=error)
                each.then(None)
            return
        for each, became in zip(said, settled, strict=True):
            if became.counted and became.state != "queued":
                self._waiters.ended(each.outcome.id, row_of(became.row))
        asyncio.get_running_loop().call_soon(self._afterwards, said, settled)

    def _afterwards(self, said: list[_Report], settled: Sequence[Settled]) -> None:
        for each, became in zip(said, settled, strict=True):
            each.then(became)
            self._count(each, became)

    async def _settle(self, outcomes: list[Outcome]) -> Sequence[Settled]:
        """An answer that was lost is asked for again: the script counts an outcome once."""
        while True:
            try:
                return await self._store.tasks.finish(outcomes)
            except Unreachable:
                await asyncio.sleep(STORE_PAUSE_S)

    def _count(self, said: _Report, settled: Settled) -> None:
        if settled.counted:
            self._metrics.ended(settled.state, said.seconds)
            return
        self._metrics.late.inc()
        late = said.outcome
        log.info("a result came too late", task_id=late.id, attempt=late.attempt, worker_id=late.worker)

    def _note(self, by: Renewal, name: str, attempt: int, *, began: bool = False, line: str = "") -> None:
        before = self._notes.get((name, attempt))
        loop = asyncio.get_running_loop()
        if began:
            self._began[name, attempt] = loop.time()
        self._notes[name, attempt] = Note(
            name,
            attempt,
            by.name,
            by.epoch,
            0 if began or (before and before.began_ms >= 0) else -1,
            line or (before.line if before else ""),
        )
        if self._timer is None:
            self._timer = loop.call_later(NOTE_DELAY_S, self._write_notes)

    def _write_notes(self) -> None:
        self._timer = None
        notes, self._notes = list(self._notes.values()), {}
        began, self._began = self._began, {}
        if notes:
            now = asyncio.get_running_loop().time()
            aged = [
                msgspec.structs.replace(note, began_ms=int((now - at) * 1000))
                if (at := began.get((note.id, note.attempt)))
                else note
                for note in notes
            ]
            self._writing.start(self._into_rows(aged))

    async def _into_rows(self, notes: list[Note]) -> None:
        while True:
            try:
                return await self._store.tasks.note(notes)
            except Unreachable:
                await asyncio.sleep(STORE_PAUSE_S)


def _outcome(by: Renewal, said: session.Outcome, duration_ms: int) -> Outcome:
    known = (said.task, said.attempt, by.name, by.epoch)
    match said:
        case session.Done(result=result):
            return Outcome(*known, "done", bytes(result).decode(), duration_ms=duration_ms)
        case session.Failed(error=error):
            text = _encode(error).decode()
            return Outcome(*known, "failed", text, error.retryable, _retry_ms(said.attempt), duration_ms)
        case session.RunnerDied(evidence=evidence):
            return Outcome(*known, "died", evidence, True, _retry_ms(said.attempt), duration_ms)
        case session.Refused(reason=reason):
            return Outcome(*known, "refused", reason, True, _retry_ms(1))
        case session.Cancelled():
            return Outcome(*known, "cancelled")


def _retry_ms(attempt: int) -> int:
    """Doubling, with jitter: what failed together does not come back together."""
    longest_s = backoff.delay_s(attempt - 1, base_s=FIRST_RETRY_S, cap_s=LONGEST_RETRY_S)
    return int(1000 * backoff.jittered(longest_s, RETRY_JITTER, random))
