"""Keys waiting to be worked on: each at most once in the queue and by one worker at a time.

    add ──► waiting ──get──► at work ──done──► (added meanwhile? back to waiting)
    add_after, retry ──► later ──time──► waiting

`run` is the usual loop of workers around it; it drains the queue when `close` is called.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

import structlog

from gpu_orchestrator.adapters.kube.errors import Temporary
from gpu_orchestrator.adapters.kube.retry import Backoff

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger()


class Closed(Exception):  # an end, not an error
    """The queue was closed and nothing waits in it."""


class WorkQueue(Generic[K]):
    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(base_s=0.1, cap_s=60.0)
        self._waiting: dict[K, None] = {}
        self._at_work: set[K] = set()
        self._again: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Have the key worked on as soon as may be. Adding what waits already changes nothing."""
        if self._closed:
            return
        self._due.pop(key, None)
        if key in self._at_work:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = None
            self._news.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Have the key worked on after a while; of several times asked for, the earliest counts."""
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        due = asyncio.get_running_loop().time() + delay_s
        if key in self._waiting or self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._later, (due, next(self._order), key))
        self._set_timer()

    def retry(self, key: K, at_least_s: float = 0.0) -> float:
        """Have the key worked on again, later with each failure; gives the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s = self._backoff.delay_s(failures - 1, at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """It went well: the next failure starts with a short delay again."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The key that has waited longest; give it back with `done`. Raises Closed at the end."""
        while not self._waiting:
            if self._closed:
                raise Closed
            self._news.clear()
            await self._news.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._at_work.add(key)
        return key

    def done(self, key: K) -> None:
        self._at_work.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._waiting[key] = None
            self._news.set()

    def close(self) -> None:
        """Take nothing more; what waits is still handed out, what was meant for later is not."""
        self._closed = True
        self._later.clear()
        self._due.clear()
        if self._timer:
            self._timer.cancel()
        self._news.set()

    async def run(self, work: Callable[[K], Awaitable[None]], *, workers: int = 1) -> None:
        """Work on keys until closed and drained, or cancelled. A failure is logged and tried again."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            try:
                key = await self.get()
            except Closed:
                self._news.set()  # pass the end on to the other workers
                return
            try:
                await work(key)
                self.forget(key)
            except Temporary as error:
                delay_s = self.retry(key, error.delay_s)
                log.info("will try again", key=key, error=str(error), delay_s=round(delay_s, 2))
            except Exception:
                delay_s = self.retry(key)
                log.exception("work failed, will try again", key=key, delay_s=round(delay_s, 2))
            finally:
                self.done(key)

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._later:
            self._timer = asyncio.get_running_loop().call_at(self._later[0][0], self._ripen)

    def _ripen(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:  # else an earlier time or an `add` has overtaken it
                self.add(key)
        self._set_timer()
