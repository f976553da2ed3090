"""Writes what workers report about their attempts to the store, in batches, and keeps it until the store has
it.

The start of an attempt is written with a small delay, and skipped if the attempt has ended by then, so short
tasks cost less. What an attempt printed is written before its outcome: after that nobody may add to its log.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import structlog
from msgspec import structs

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import NotDurable, Unreachable
from gpu_orchestrator.adapters.store.logs import LogPiece
from gpu_orchestrator.adapters.store.records import Active, Note, Outcome, Renewal
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import FinishResult, row_of
from gpu_orchestrator.api import session, task
from gpu_orchestrator.api.cutting import cut
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.batching import BatchQueue
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from gpu_orchestrator.apps.manager.tasks.inputs import Inputs
from gpu_orchestrator.apps.manager.tasks.results import Results
from gpu_orchestrator.apps.manager.tasks.task_logs import TaskLogs
from gpu_orchestrator.apps.manager.tasks.task_values import TaskValues
from gpu_orchestrator.engine import backoff

log = structlog.get_logger()

NOTE_DELAY_S = 0.05
MOST, AT_ONCE = 16, 3
"""Small writes, several in flight: while the store handles some outcomes, the dispatcher places the next
tasks for others. With one large write all workers would wait for each other."""
STORE_PAUSE_S = 0.1
LONGEST_LINE, LONGEST_TYPE, LONGEST_MESSAGE, LONGEST_EVIDENCE = 2000, 200, 8192, 4000
"""Characters of what a worker may say of an attempt; more is cut, with a mark."""
FIRST_RETRY_S, LONGEST_RETRY_S, RETRY_JITTER = 0.2, 30.0, 0.5
OUT_OF_MEMORY_S = 2.0
"""Memory is seldom free again at once; the same device is tried at most twice within a second."""
_encode = msgspec.json.Encoder().encode


Then = Callable[[FinishResult | None], None]
"""Called with the store's answer, or with None if the outcome could not be stored."""


class _Report(NamedTuple):
    outcome: Outcome
    seconds: float
    then: Then


class Outcomes:
    """Stores outcomes and notes; resolves `waiters` for every task that became final."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        waiters: CompletionWaiters,
        logs: TaskLogs,
        results: Results,
        values: TaskValues,
        models: ModelBook | None = None,
    ) -> None:
        self._models = models or ModelBook()
        self._store, self._metrics, self._waiters, self._logs = store, metrics, waiters, logs
        self._values = values
        self._results, self._inputs = results, Inputs(store.tasks, results)
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
            outcome = structs.replace(outcome, wanted=True)
        if note is not None and note.line:
            outcome = structs.replace(outcome, line=note.line)
        report = _Report(outcome, seconds, then)
        if key in self._logs:
            self._logs.when_stored(key, partial(self._put, report))
        else:
            self._put(report)

    def started(self, by: Renewal, name: str, attempt: int) -> None:
        self._note(by, name, attempt, began=True)

    def progressed(self, by: Renewal, name: str, attempt: int, line: str) -> None:
        self._note(by, name, attempt, line=cut(line, LONGEST_LINE))

    def logged(self, by: Renewal, log: session.Log) -> None:
        self._logs.add(LogPiece(log.task, log.attempt, by.name, by.epoch, log.at, log.text))

    def sent(self, by: Renewal, values: session.Values, answer: Callable[[session.Message], None]) -> None:
        self._values.add(by, values, answer)

    def send_filled(
        self, by: Renewal, assign: session.Assign, send: Callable[[session.Assign], None]
    ) -> None:
        """Put the results of other tasks into the parameters, and send the task to its worker. If the store
        does not answer, the worker's next renewal does it."""
        self._writing.start(self._send_filled(by, assign, send))

    async def _send_filled(
        self, by: Renewal, assign: session.Assign, send: Callable[[session.Assign], None]
    ) -> None:
        with contextlib.suppress(Unreachable):
            if (filled := await self._filled(by, assign)) is not None:
                send(filled)

    async def _filled(self, by: Renewal, assign: session.Assign) -> session.Assign | None:
        """Return the assignment with its results; None if the attempt has failed without them."""
        filled = await self._inputs.filled(assign)
        if isinstance(filled, session.Assign):
            return filled
        self.record(by, filled, 0.0, lambda _: None)
        return None

    async def assigns(self, by: Renewal, missing: Sequence[Active]) -> list[session.Assign]:
        """Read from the store the assignments of attempts that a worker should have."""
        if not missing:
            return []
        stored = await self._store.tasks.fetch([each.id for each in missing], parameters=True)
        found = []
        for each, row in zip(missing, stored, strict=True):
            if row and row["attempt"] == str(each.attempt) and row["state"] in task.ACTIVE:
                spec, grant = task.decode(row["spec"]), rows.read_grant(row["place"])
                params, correlation = row["params"], row["correlation"]
                assign = rows.message_of(
                    each.id, each.attempt, spec, grant, params, correlation, self._models
                )
                if spec.takes_results:
                    found += [filled] if (filled := await self._filled(by, assign)) else []
                else:
                    found.append(assign)
        return found

    async def close(self) -> None:
        self._write_notes()
        await self._logs.close()
        await self._values.close()
        await self._writing.finish()
        await self._finish.close()

    def _put(self, report: _Report) -> None:
        """Store an outcome. A large result is written elsewhere first, and only its place is committed."""
        outcome = report.outcome
        if outcome.kind == "done" and len(outcome.payload) > self._results.inline_bytes // 4:
            result = outcome.payload.encode()
            if self._results.is_large(result):
                self._writing.start(self._put_large(report, result))
                return
        self._finish.put(report)

    async def _put_large(self, report: _Report, result: bytes) -> None:
        at = await self._results.write(report.outcome.id, report.outcome.attempt, result)
        self._finish.put(
            report._replace(outcome=structs.replace(report.outcome, payload="", result_at=str(at)))
        )

    async def _store_outcomes(self, reports: list[_Report]) -> None:
        """Store a batch. With DURABILITY=strict, the next batch need not wait until this one is durable."""
        try:
            history, results = await self._finish_in_store([each.outcome for each in reports])
        except Exception as error:
            for each in reports:
                log.error("an outcome could not be stored", task_id=each.outcome.id, exc_info=error)
                each.then(None)
            return
        if self._store.database.strict:
            self._writing.start(self._acknowledge_durable(reports, results, history))
        else:
            self._acknowledge(reports, results)

    async def _acknowledge_durable(
        self, reports: list[_Report], results: Sequence[FinishResult], history: str
    ) -> None:
        """Acknowledge once the outcomes are durable. If a failover may have lost them, store them again."""
        while True:
            try:
                await self._store.database.durable(history)
                return self._acknowledge(reports, results)
            except NotDurable:
                continue
            except Unreachable:
                history, results = await self._finish_in_store([each.outcome for each in reports])

    def _acknowledge(self, reports: list[_Report], results: Sequence[FinishResult]) -> None:
        """Answer the callers that wait for a task first; everything else can wait."""
        for each, result in zip(reports, results, strict=True):
            if result.counted and result.state in task.FINAL:
                self._waiters.ended(each.outcome.id, row_of(result.row))
                for other in result.others:
                    self._waiters.ended(other)
        asyncio.get_running_loop().call_soon(self._afterwards, reports, results)

    def _afterwards(self, reports: list[_Report], results: Sequence[FinishResult]) -> None:
        for each, result in zip(reports, results, strict=True):
            each.then(result)
            self._count(each, result)

    async def _finish_in_store(self, outcomes: list[Outcome]) -> tuple[str, Sequence[FinishResult]]:
        """Store outcomes; retry until the store answers. That is safe: the script counts an outcome once.
        Return the history that they are part of, and the results."""
        while True:
            try:
                history = await self._store.database.begin() if self._store.database.strict else ""
                return history, await self._store.tasks.finish(outcomes)
            except Unreachable:
                await asyncio.sleep(STORE_PAUSE_S)

    def _count(self, report: _Report, result: FinishResult) -> None:
        if result.counted:
            if result.state != "running":  # it is done, and its gang is not
                self._metrics.ended(result.state, report.seconds)
            for _ in result.others:
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
                structs.replace(note, began_ms=int((now - at) * 1000))
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
            text = _encode(_shortened(error)).decode()
            first_s = OUT_OF_MEMORY_S if error.type == "OutOfMemory" else FIRST_RETRY_S
            delay_ms = _retry_ms(reported.attempt, first_s)
            return Outcome(*known, "failed", text, error.retryable, delay_ms, duration_ms)
        case session.RunnerDied(evidence=evidence):
            return Outcome(
                *known,
                "died",
                cut(evidence, LONGEST_EVIDENCE),
                True,
                _retry_ms(reported.attempt),
                duration_ms,
            )
        case session.Refused(reason=reason):
            return Outcome(*known, "refused", cut(reason, LONGEST_LINE), True, _retry_ms(1))
        case session.Cancelled():
            return Outcome(*known, "cancelled")


def _shortened(error: session.TaskError) -> session.TaskError:
    """Return the error within the bounds of this server: a worker may have others, or none."""
    return session.TaskError(
        cut(error.type, LONGEST_TYPE), cut(error.message, LONGEST_MESSAGE), error.retryable
    )


def _retry_ms(attempt: int, first_s: float = FIRST_RETRY_S) -> int:
    """Return a delay that doubles with each attempt. Jitter spreads out tasks that failed together."""
    longest_s = backoff.delay_s(attempt - 1, base_s=first_s, cap_s=LONGEST_RETRY_S)
    return int(1000 * backoff.jittered(longest_s, RETRY_JITTER, random))
