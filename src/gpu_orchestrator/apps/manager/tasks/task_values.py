"""Writes what attempts send before their end to the store, in batches, and tells their workers what was
taken.

Nothing is kept here for long: a worker keeps what was not taken, and sends it again. So a reader that is
behind, or a store that does not answer, makes the task wait and costs this process nothing. While the store
or its disk is full, values are taken and dropped: readers see a gap, and tasks go on, whose ends make room.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import Full, Unreachable
from gpu_orchestrator.adapters.store.records import Renewal
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.values import ValuesPiece, Verdict
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.tasks.followers import Followers

log = structlog.get_logger()

WRITE_DELAY_S = 0.005
"""Values of several tasks then share a write."""
BATCH_BYTES, BATCH_PIECES = 1 << 20, 500
"""Of one call to the store, which serves nobody else meanwhile."""
MOST_WAITING_BYTES = 8 << 20
"""Values that wait here for the store. Beyond it they are refused for now."""

Answer = Callable[[session.Message], None]
"""Sends a message to the worker."""


class _Waiting(NamedTuple):
    piece: ValuesPiece
    answer: Answer


class TaskValues:
    """`followers` are woken when this process has stored values of their task."""

    def __init__(
        self, store: Store, most_of_all: Callable[[], int], disk_shortage: Callable[[], str]
    ) -> None:
        """`most_of_all` returns how many bytes logs and values of all tasks may have now, and `disk_shortage`
        what is wrong with the store's disk, empty if there is room."""
        self._store, self._most_of_all, self._disk_shortage = store, most_of_all, disk_shortage
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._writing = BackgroundTasks()
        self._is_writing = False
        self.followers = Followers()

    def add(self, by: Renewal, sent: session.Values, answer: Answer) -> None:
        """Store values, in the order of calls, and answer the worker with `Taken`."""
        # JSON that somebody else wrote may have line ends between its parts
        text = b"\n".join([bytes(each).replace(b"\n", b" ").replace(b"\r", b" ") for each in sent.values])
        if self._waiting_bytes + len(text) > MOST_WAITING_BYTES:
            answer(session.Taken(sent.task, sent.attempt, 0, later=True))
            return
        piece = ValuesPiece(
            sent.task,
            sent.attempt,
            by.name,
            by.epoch,
            sent.at,
            len(sent.values),
            sent.taken,
            text.decode(errors="replace"),
        )
        self._waiting.append(_Waiting(piece, answer))
        self._waiting_bytes += len(piece.text)
        if not self._is_writing:
            self._is_writing = True
            self._writing.start(self._write())

    async def close(self) -> None:
        """Wait until all that came is written."""
        await self._writing.finish()

    async def _write(self) -> None:
        try:
            await asyncio.sleep(WRITE_DELAY_S)
            while self._waiting:
                batch = self._next_batch()
                for each, verdict in zip(batch, await self._stored(batch), strict=True):
                    self._tell(each, verdict)
        finally:
            self._is_writing = False

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and size < BATCH_BYTES and len(batch) < BATCH_PIECES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].piece.text)
        self._waiting_bytes -= size
        return batch

    async def _stored(self, batch: list[_Waiting]) -> list[Verdict]:
        pieces = [each.piece for each in batch]
        dropped = [Verdict(each.at + each.count, 0) for each in pieces]
        if self._disk_shortage():
            return dropped
        try:
            return list(await self._store.values.append(pieces, self._most_of_all()))
        except Full as error:
            log.error("partial results could not be stored", pieces=len(batch), error=str(error))
            return dropped
        except Unreachable:
            return [Verdict(0, 1)] * len(batch)

    def _tell(self, waiting: _Waiting, verdict: Verdict) -> None:
        """Answer the worker. Values of an attempt that it does not hold are of no use to anybody."""
        piece = waiting.piece
        taken = verdict.taken if verdict.taken >= 0 else piece.at + piece.count
        waiting.answer(session.Taken(piece.id, piece.attempt, taken, bool(verdict.later)))
        if not verdict.later:
            self.followers.wake(piece.id)
