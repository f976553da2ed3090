"""Writes what attempts print to the store, in batches, wakes the clients that follow a log, and keeps all
logs together within their bound.

Logs give way to tasks: they get what tasks leave free of the store's memory, up to TASK_LOGS_MB. When that is
full or gets less, the oldest logs of the owner with most are dropped, so one owner's flood leaves the logs of
others alone. While the store's disk is nearly full, no text is stored: what is left of it is for the results
of tasks.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import structlog

from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.store.errors import Full, Rejected, StoreError, Unreachable
from gpu_orchestrator.adapters.store.logs import LogPiece
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.tasks.followers import Followers

log = structlog.get_logger()

WRITE_DELAY_S = 0.05
STORE_PAUSE_S, MOST_REJECTIONS = 0.1, 50
TIDY_S = 10.0
BATCH_BYTES = 1 << 20
MOST_WAITING_BYTES = 16 << 20
"""Text that waits in this process while the store does not answer. Beyond it the oldest text is dropped."""
SHARE_OF_STORE = 0.9

Key = tuple[str, int]
"""The id of a task and the number of an attempt."""


class TaskLogs:
    """Pieces are written in the order in which they came. `in` tells whether pieces of an attempt wait.
    `followers` are woken when this process has stored more of their task's log."""

    def __init__(
        self,
        store: Store,
        most_mb: float,
        most_store_mb: float = 0.0,
        disk_shortage: Callable[[], str] = str,
    ) -> None:
        """`disk_shortage` returns what is wrong with the store's disk, empty if there is room."""
        self._store, self._disk_shortage = store, disk_shortage
        self._most_bytes = self._allowed_bytes = int(most_mb * MIB)
        self._most_store_bytes = int(most_store_mb * MIB)
        self._waiting: deque[LogPiece] = deque()
        self._waiting_bytes = 0
        self._unwritten: dict[Key, int] = {}
        self._then: dict[Key, list[Callable[[], None]]] = {}
        self._writing = BackgroundTasks()
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self.followers = Followers()

    def __contains__(self, key: Key) -> bool:
        return key in self._unwritten

    def add(self, piece: LogPiece) -> None:
        key = (piece.id, piece.attempt)
        self._waiting.append(piece)
        self._waiting_bytes += len(piece.text)
        self._unwritten[key] = self._unwritten.get(key, 0) + 1
        while self._waiting_bytes > MOST_WAITING_BYTES:
            self._written([self._next()])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_DELAY_S, self._start_writing)

    def when_stored(self, key: Key, then: Callable[[], None]) -> None:
        """Call `then` once all pieces of this attempt, of which some wait now, are in the store."""
        self._then.setdefault(key, []).append(then)
        self._start_writing()

    async def close(self) -> None:
        """Wait until all pieces are written."""
        self._start_writing()
        await self._writing.finish()

    async def run(self) -> None:
        """Forget expired logs, and see how much room tasks leave, until cancelled."""
        skip = 0
        while True:
            await asyncio.sleep(TIDY_S)
            with contextlib.suppress(StoreError):
                await self.measure()
                skip = await self._store.logs.trim(self._allowed_bytes, skip)

    def allowed_bytes(self) -> int:
        """Return how many bytes all logs may have, as last measured."""
        return self._allowed_bytes

    async def measure(self) -> int:
        """Set and return how many bytes all logs may have now."""
        room = await self._store.database.room(self._most_store_bytes)
        by_others = room.used - await self._store.logs.size()
        left = int(room.most * SHARE_OF_STORE) - by_others
        self._allowed_bytes = max(min(self._most_bytes, left), 0)
        return self._allowed_bytes

    # --- writing -------------------------------------------------------------------------------------------

    def _start_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and not self._is_writing:
            self._is_writing = True
            self._writing.start(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch = [self._next()]
                size = len(batch[0].text)
                while self._waiting and size < BATCH_BYTES:
                    batch.append(self._next())
                    size += len(batch[-1].text)
                await self._store_batch(batch)
                self._written(batch)
        finally:
            self._is_writing = False

    async def _store_batch(self, batch: list[LogPiece]) -> None:
        """Store pieces; retry until the store answers. That is safe: the script counts each byte once. Give
        up if the store goes on rejecting them, or if it or its disk is full: outcomes wait behind this, and
        they are what makes room."""
        rejected = 0
        while not self._disk_shortage():
            try:
                await self._store.logs.append(batch, self._allowed_bytes)
                return
            except Unreachable as error:
                rejected += isinstance(error, Rejected)
                if rejected == MOST_REJECTIONS or isinstance(error, Full):
                    log.error("output of tasks could not be stored", pieces=len(batch), error=str(error))
                    return
                await asyncio.sleep(STORE_PAUSE_S)

    def _next(self) -> LogPiece:
        piece = self._waiting.popleft()
        self._waiting_bytes -= len(piece.text)
        return piece

    def _written(self, pieces: list[LogPiece]) -> None:
        """Continue what waited for these pieces, whether they were stored or dropped."""
        for piece in pieces:
            key = (piece.id, piece.attempt)
            left = self._unwritten.pop(key) - 1
            if left:
                self._unwritten[key] = left
            else:
                for then in self._then.pop(key, ()):
                    then()
            self.followers.wake(piece.id)
