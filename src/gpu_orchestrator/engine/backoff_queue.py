"""Requests that rest after a failure, until their backoff is over. Kept by the scheduling queue.

A request that leaves early stays in the heap, with `rests_until` cleared, and is skipped when its time comes.
"""

from heapq import heappop, heappush
from itertools import count

from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.queue import Waiting


class BackoffQueue:
    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._heap: list[tuple[float, int, Waiting]] = []
        self._numbers = count()

    def push(self, waiting: Waiting, now: float) -> None:
        """Let the request rest, longer with each attempt."""
        waiting.rests_until = now + self._backoff.delay(waiting.attempts)
        waiting.attempts += 1
        heappush(self._heap, (waiting.rests_until, next(self._numbers), waiting))

    def next_at(self) -> float | None:
        """Return when the next request has rested; None if none rests."""
        while self._heap and self._heap[0][2].rests_until != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_rested(self, now: float) -> list[Waiting]:
        """Remove and return the requests that have rested by now, the earliest first."""
        rested: list[Waiting] = []
        if not self._heap:
            return rested
        while (at := self.next_at()) is not None and at <= now:
            waiting = heappop(self._heap)[2]
            waiting.rests_until = None
            rested.append(waiting)
        return rested
