"""Waiting requests in order: by lane, by flow in turn, by rank.

The active queue is one such queue, and so are the parked requests of each shape; they share one `FairShare`.
A flow at its limit is skipped.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.fair_share import FairShare


@dataclass(slots=True)
class Waiting:
    """One request in the engine. `number` breaks ties between equal ranks; `queue` is the queue it is in
    now."""

    request: Request
    policy: Policy
    since: float
    number: int
    lane: int
    flow: str
    rank: tuple[float, ...]
    attempts: int = 0
    rests_until: float | None = None
    queue: "Queue | None" = None


class Queue:
    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self.lanes: dict[int, _Lane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def has_turn(self) -> bool:
        """Return True if a request waits whose flow is below its limit."""
        return self._size > 0 and any(lane.has_turn(self._fair_share) for lane in self.lanes.values())

    def first(self) -> tuple[float, ...] | None:
        """Return where the first request stands beside those of other queues: by lane, rank and number; None
        if the queue is empty. What flows have had does not count."""
        for number in sorted(self.lanes, reverse=True):
            if (first := self.lanes[number].first()) is not None:
                return -number, *first
        return None

    def push(self, waiting: Waiting) -> None:
        waiting.queue = self
        lane = self.lanes.get(waiting.lane)
        if lane is None:
            lane = self.lanes[waiting.lane] = _Lane(self)
        lane.push(waiting, self._fair_share)
        self._size += 1

    def pop(self) -> Waiting | None:
        """Remove and return the first request; None if all that wait belong to flows at their limit."""
        if not self._size:
            self.lanes.clear()
            return None
        for number in sorted(self.lanes, reverse=True):
            if (found := self.lanes[number].pop(self._fair_share)) is not None:
                found.queue = None
                self._size -= 1
                return found
            if not self.lanes[number]:
                del self.lanes[number]
        return None

    def remove(self, waiting: Waiting) -> None:
        """Mark the request as removed; it stays in its heap and is skipped later."""
        waiting.queue = None
        self._size -= 1
        self.lanes[waiting.lane].tidy(waiting.flow)


class _Lane:
    """The flows of one lane. `_flows` may hold too early a turn for a flow, never too late: turns only move
    forward."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._heaps: dict[str, list[tuple[tuple[float, ...], int, Waiting]]] = {}
        self._flows: list[tuple[float, str]] = []
        self._dead: dict[str, int] = {}

    def push(self, waiting: Waiting, fair_share: FairShare) -> None:
        heap = self._heaps.get(waiting.flow)
        if heap is None:
            heap = self._heaps[waiting.flow] = []
            heappush(self._flows, (fair_share.start(waiting.flow), waiting.flow))
        heappush(heap, (waiting.rank, waiting.number, waiting))

    def __bool__(self) -> bool:
        return bool(self._flows)

    def first(self) -> tuple[float, ...] | None:
        """Return rank and number of the first request; None if there is none."""
        for heap in self._heaps.values():
            while heap and heap[0][2].queue is not self._queue:
                heappop(heap)
        firsts = [(*heap[0][0], heap[0][1]) for heap in self._heaps.values() if heap]
        return min(firsts, default=None)

    def has_turn(self, fair_share: FairShare) -> bool:
        return any(not fair_share.is_full(flow) for _, flow in self._flows)

    def pop(self, fair_share: FairShare) -> Waiting | None:
        passed_over: list[tuple[float, str]] = []
        try:
            return self._pop(fair_share, passed_over)
        finally:
            for entry in passed_over:
                heappush(self._flows, entry)

    def _pop(self, fair_share: FairShare, passed_over: list[tuple[float, str]]) -> Waiting | None:
        while self._flows:
            turn, flow = self._flows[0]
            if fair_share.is_full(flow):
                passed_over.append(heappop(self._flows))
            elif (start := fair_share.start(flow)) > turn and len(self._flows) > 1:
                heapreplace(self._flows, (start, flow))
            elif (found := self._first(flow)) is not None:
                return found
            else:
                del self._heaps[flow]
                self._dead.pop(flow, None)
                heappop(self._flows)
        return None

    def _first(self, flow: str) -> Waiting | None:
        heap = self._heaps[flow]
        while heap:
            waiting = heappop(heap)[2]
            if waiting.queue is self._queue:
                return waiting
        return None

    def tidy(self, flow: str) -> None:
        """Drop removed requests once they are most of the heap."""
        heap = self._heaps[flow]
        self._dead[flow] = self._dead.get(flow, 0) + 1
        if self._dead[flow] > 32 and self._dead[flow] * 2 > len(heap):
            heap[:] = [entry for entry in heap if entry[2].queue is self._queue]
            heapify(heap)
            self._dead[flow] = 0
