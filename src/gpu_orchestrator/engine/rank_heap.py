"""Requests of one flow in one lane, by rank. The active queue has one for each of its flows, and so has each
parked shape.

A request that leaves early stays in the heap and is skipped later: it is live while `waiting.queue` is this
heap.
"""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_orchestrator.engine.queue import Waiting


class RankHeap:
    __slots__ = ("_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], int, Waiting]] = []
        self._dead = 0

    def push(self, waiting: "Waiting") -> None:
        waiting.queue = self
        heappush(self._heap, (waiting.rank, waiting.number, waiting))

    def first(self) -> "Waiting | None":
        """Return the first request without removing it; None if there is none."""
        heap = self._heap
        while heap and heap[0][2].queue is not self:
            heappop(heap)
        return heap[0][2] if heap else None

    def pop(self) -> "Waiting | None":
        """Remove and return the first request; None if there is none."""
        found = self.first()
        if found is not None:
            heappop(self._heap)
            found.queue = None
        return found

    def remove(self, waiting: "Waiting") -> None:
        """Mark the request as removed; drop such requests once they are most of the heap."""
        waiting.queue = None
        self._dead += 1
        if self._dead > 32 and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].queue is self]
            heapify(self._heap)
            self._dead = 0
