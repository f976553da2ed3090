"""Writes what workers report about their attempts to the store, in batches, and keeps it until the store has
it.

The start of an attempt is written with a small delay, and skipped if the attempt has ended by then, so short
tasks cost less. What an attempt printed is written before its outcome: after that nobody may add to its log.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.logs import LogPiece
from gpu_orchestrator.adapters.store.records import Active, Note, Outcome, Renewal
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import FinishResult, row_of
from gpu_orchestrator.api import session, task
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.batching import BatchQueue
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.apps.manager.tasks.task_logs import TaskLogs
from gpu_orchestrator.engine import backoff

log = structlog.get_logger()

NOTE_DELAY_S = 0.05
MOST, AT_ONCE = 16, 3
"""Small writes, several in flight: while the store handles some outcomes, the dispatcher places the next
tasks for others. With one large write all workers would wait for each other."""
STORE_PAUSE_S = 0.1
FIRST_RETRY_S, LONGEST_RETRY_S, RETRY_JITTER = 0.2, 30.0, 0.5
OUT_OF_MEMORY_S = 2.0
"""Memory is seldom free again at once; the same device is tried at most twice within a second."""
_encode = msgspec.json.Encoder().encode


Then = Callable[[FinishResult | None], None]
"""Called with the store's answer, or with None if the outcome could not be stored."""


@dataclass(frozen=True, slots=True)
class _Report:
    outcome: Outcome
    seconds: float
    then: Then


class Outcomes:
    """Stores outcomes and notes; resolves `waiters` for every task that became final."""

    def __init__(self, store: Store, metrics: Metrics, waiters: CompletionWaiters, logs: TaskLogs) -> None:
        self._store, self._metrics, self._waiters, self._logs = store, metrics, waiters, logs
        self._finish: BatchQueue[_Report] = BatchQueue(self._store_outcomes, most=MOST, at_once=AT_ONCE)
        self._notes: dict[tuple[str, int], Note] = {}
        self._started_at: dict[tuple[str, int], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing = BackgroundTasks()

    def record(self, by: Renewal, reported: session.Outcome, seconds: float, then: Then) -> None:
        """Store an outcome and call `then` with the store's answer. An outcome that came too late does not
        count."""
        key = (reported.task, reported.attempt)
        note = self._notes.pop(key, None)
        outcome = _outcome(by, reported, int(seconds * 1000))
        if reported.task in self._waiters:
            outcome = msgspec.structs.replace(outcome, wanted=True)
        if note is not None and note.line:
            outcome = msgspec.structs.replace(outcome, line=note.line)
        report = _Report(outcome, seconds, then)
        if key in self._logs:
            self._logs.when_stored(key, partial(self._finish.put, report))
        else:
            self._finish.put(report)

    def started(self, by: Renewal, name: str, attempt: int) -> None:
        self._note(by, name, attempt, began=True)

    def progressed(self, by: Renewal, name: str, attempt: int, line: str) -> None:
        self._note(by, name, attempt, line=line[:2000])

    def logged(self, by: Renewal, log: session.Log) -> None:
        self._logs.add(LogPiece(log.task, log.attempt, by.name, by.epoch, log.at, log.text))

    async def assigns(self, missing: Sequence[Active]) -> list[session.Assign]:
        """Read from the store the assignments of attempts that a worker should have."""
        if not missing:
            return []
        stored = await self._store.tasks.fetch([each.id for each in missing], parameters=True)
        found = []
        for each, row in zip(missing, stored, strict=True):
            if row and row["attempt"] == str(each.attempt) and row["state"] in task.ACTIVE:
                spec, grant = task.decode(row["spec"]), rows.read_grant(row["place"])
                params, correlation = row["params"], row["correlation"]
                found.append(rows.message_of(each.id, each.attempt, spec, grant, params, correlation))
        return found

    async def close(self) -> None:
        self._write_notes()
        await self._logs.close()
        await self._finish.close()
        await self._writing.finish()

    async def _store_outcomes(self, reports: list[_Report]) -> None:
        """Store a batch. Callers that wait for a task come first; everything else can wait."""
        try:
            results = await self._finish_in_store([each.outcome for each in reports])
        except Exception as error:
            for each in reports:
                log.error("an outcome could not be stored", task_id=each.outcome.id, exc_info=error)
                each.then(None)
            return
        for each, result in zip(reports, results, strict=True):
            if result.counted and result.state != "queued":
                self._waiters.ended(each.outcome.id, row_of(result.row))
        asyncio.get_running_loop().call_soon(self._afterwards, reports, results)

    def _afterwards(self, reports: list[_Report], results: Sequence[FinishResult]) -> None:
        for each, result in zip(reports, results, strict=True):
            each.then(result)
            self._count(each, result)

    async def _finish_in_store(self, outcomes: list[Outcome]) -> Sequence[FinishResult]:
        """Store outcomes; retry until the store answers. That is safe: the script counts an outcome once."""
        while True:
            try:
                return await self._store.tasks.finish(outcomes)
            except Unreachable:
                await asyncio.sleep(STORE_PAUSE_S)

    def _count(self, report: _Report, result: FinishResult) -> None:
        if result.counted:
            self._metrics.ended(result.state, report.seconds)
            return
        self._metrics.late.inc()
        late = report.outcome
        log.info("a result came too late", task_id=late.id, attempt=late.attempt, worker_id=late.worker)

    def _note(self, by: Renewal, name: str, attempt: int, *, began: bool = False, line: str = "") -> None:
        before = self._notes.get((name, attempt))
        loop = asyncio.get_running_loop()
        if began:
            self._started_at[name, attempt] = loop.time()
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
        began, self._started_at = self._started_at, {}
        if notes:
            now = asyncio.get_running_loop().time()
            aged = [
                msgspec.structs.replace(note, began_ms=int((now - at) * 1000))
                if (at := began.get((note.id, note.attempt)))
                else note
                for note in notes
            ]
            self._writing.start(self._store_notes(aged))

    async def _store_notes(self, notes: list[Note]) -> None:
        while True:
            try:
                return await self._store.tasks.note(notes)
            except Unreachable:
                await asyncio.sleep(STORE_PAUSE_S)


def _outcome(by: Renewal, reported: session.Outcome, duration_ms: int) -> Outcome:
    known = (reported.task, reported.attempt, by.name, by.epoch)
    match reported:
        case session.Done(result=result):
            return Outcome(*known, "done", bytes(result).decode(), duration_ms=duration_ms)
        case session.Failed(error=error):
            text = _encode(error).decode()
            first_s = OUT_OF_MEMORY_S if error.type == "OutOfMemory" else FIRST_RETRY_S
            delay_ms = _retry_ms(reported.attempt, first_s)
            return Outcome(*known, "failed", text, error.retryable, delay_ms, duration_ms)
        case session.RunnerDied(evidence=evidence):
            return Outcome(*known, "died", evidence, True, _retry_ms(reported.attempt), duration_ms)
        case session.Refused(reason=reason):
            return Outcome(*known, "refused", reason, True, _retry_ms(1))
        case session.Cancelled():
            return Outcome(*known, "cancelled")


def _retry_ms(attempt: int, first_s: float = FIRST_RETRY_S) -> int:
    """Return a delay that doubles with each attempt. Jitter spreads out tasks that failed together."""
    longest_s = backoff.delay_s(attempt - 1, base_s=first_s, cap_s=LONGEST_RETRY_S)
    return int(1000 * backoff.jittered(longest_s, RETRY_JITTER, random))
