"""A queue of keys to reconcile. A key is in the queue at most once, and one worker at a time handles it.

    add ──► waiting ──get──► processing ──done──► (added meanwhile? back to waiting)
    add_after, retry ──► delayed ──time──► waiting

Controllers call `add` from watch handlers and `run` with their reconcile function, whose client must not wait
long by itself (`retry.BRIEFLY_S`): a worker that waits for one object keeps all others waiting. After
`close`, `run` drains the queue and returns.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from itertools import count
from typing import Generic, TypeVar

import structlog

from gpu_orchestrator.adapters.kube.errors import Temporary, TooLarge
from gpu_orchestrator.adapters.kube.retry import Backoff

K = TypeVar("K", bound=Hashable)

AWAY_CAP_S = 15.0
"""The longest delay after a temporary error: when the server is back, nothing should wait for long."""

log = structlog.get_logger()


class Closed(Exception):  # the normal end, not an error
    """The queue is closed and empty."""


class NotYet(Exception):  # not an error either
    """The work cannot be done yet: try again later, each time later."""

    delay_s = 0.0


class WorkQueue(Generic[K]):
    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(base_s=0.1, cap_s=60.0)
        self._while_away = replace(self._backoff, cap_s=min(self._backoff.cap_s, AWAY_CAP_S))
        self._waiting: dict[K, None] = {}
        self._processing: set[K] = set()
        self._requeue: set[K] = set()
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Queue the key now, or after `done` if a worker has it. Does nothing if it is queued already."""
        if self._closed:
            return
        self._due.pop(key, None)
        if key in self._processing:
            self._requeue.add(key)
        elif key not in self._waiting:
            self._waiting[key] = None
            self._wakeup.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Queue the key after a delay. Of several delays for one key, the earliest counts."""
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + delay_s
        if key in self._waiting or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, next(self._order), key))
        self._set_timer()

    def retry(self, key: K, at_least_s: float = 0.0, *, is_away: bool = False) -> float:
        """Queue the key again, with a longer delay after each failure. Return the delay. `is_away`: the
        server failed, not the work."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        backoff = self._while_away if is_away else self._backoff
        delay_s = backoff.delay_s(failures - 1, at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the failure count after a success: the next failure starts with a short delay again."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Return the key that has waited longest; call `done` when finished. Raise Closed at the end."""
        while not self._waiting:
            if self._closed:
                raise Closed
            self._wakeup.clear()
            await self._wakeup.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        self._processing.discard(key)
        if key in self._requeue:
            self._requeue.discard(key)
            self._waiting[key] = None
            self._wakeup.set()

    def close(self) -> None:
        """Accept no more keys. Waiting keys are still handed out, delayed keys are dropped."""
        self._closed = True
        self._delayed.clear()
        self._due.clear()
        if self._timer:
            self._timer.cancel()
        self._wakeup.set()

    async def run(self, work: Callable[[K], Awaitable[None]], *, workers: int = 1) -> None:
        """Handle keys until closed and drained, or cancelled. Log a failure and retry its key."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            try:
                key = await self.get()
            except Closed:
                self._wakeup.set()  # wake the other workers, so that they end too
                return
            try:
                await work(key)
                self.forget(key)
            except (Temporary, TooLarge, NotYet) as error:
                delay_s = self.retry(key, error.delay_s, is_away=isinstance(error, Temporary))
                log.info("will try again", key=key, error=str(error), delay_s=round(delay_s, 2))
            except Exception:
                delay_s = self.retry(key)
                log.exception("work failed, will try again", key=key, delay_s=round(delay_s, 2))
            finally:
                self.done(key)

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._delayed:
            self._timer = asyncio.get_running_loop().call_at(self._delayed[0][0], self._queue_due)

    def _queue_due(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:  # else an earlier delay or an `add` has replaced it
                self.add(key)
        self._set_timer()
