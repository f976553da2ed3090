"""Requests to be decided, in order: by lane, by flow in turn, by rank. A flow at its limit is skipped."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.fair_share import FairShare, Start
from gpu_orchestrator.engine.rank_heap import RankHeap


@dataclass(slots=True)
class Waiting:
    """One request in the engine. `number` breaks ties between equal ranks; `queue` is where it waits now;
    `is_parked` says that this is a parked shape's. `passed` counts later requests that were placed before it
    because their model was loaded. `narrowed` is what is decided for it if its queue has room on some models
    only."""

    request: Request
    policy: Policy
    since: float
    number: int
    lane: int
    flow: str
    rank: tuple[float, ...]
    attempts: int = 0
    rests_until: float | None = None
    queue: RankHeap | None = None
    is_parked: bool = False
    passed: int = 0
    narrowed: Request | None = None

    @property
    def asked(self) -> Request:
        """Return what is to be decided."""
        return self.narrowed or self.request

    def __lt__(self, other: "Waiting") -> bool:
        """Two speakers of one gang may be equal in rank and number: the heap keeps the one that was removed,
        and compares the one that takes its place with it."""
        return False


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

    def push(self, waiting: Waiting) -> None:
        lane = self.lanes.get(waiting.lane)
        if lane is None:
            lane = self.lanes[waiting.lane] = _Lane()
        lane.push(waiting, self._fair_share)
        self._size += 1

    def pop(self) -> Waiting | None:
        """Remove and return the first request; None if all that wait belong to flows at their limit."""
        if not self._size:
            self.lanes.clear()
            return None
        for number in sorted(self.lanes, reverse=True):
            if (found := self.lanes[number].pop(self._fair_share)) is not None:
                self._size -= 1
                return found
            if not self.lanes[number]:
                del self.lanes[number]
        return None

    def remove(self, waiting: Waiting) -> None:
        if waiting.queue is not None:
            waiting.queue.remove(waiting)
            self._size -= 1


class _Lane:
    """The flows of one lane. `_flows` may hold too early a turn for a flow, never too late: turns only move
    forward, unless a queue comes to use less than it is guaranteed. `_backs` says when one last did."""

    def __init__(self) -> None:
        self._heaps: dict[str, RankHeap] = {}
        self._flows: list[tuple[Start, str]] = []
        self._backs = 0

    def push(self, waiting: Waiting, fair_share: FairShare) -> None:
        heap = self._heaps.get(waiting.flow)
        if heap is None:
            heap = self._heaps[waiting.flow] = RankHeap()
            heappush(self._flows, (fair_share.start(waiting.flow), waiting.flow))
        heap.push(waiting)

    def __bool__(self) -> bool:
        return bool(self._flows)

    def has_turn(self, fair_share: FairShare) -> bool:
        return any(not fair_share.is_full(flow) for _, flow in self._flows)

    def pop(self, fair_share: FairShare) -> Waiting | None:
        if self._backs != fair_share.backs:
            self._backs = fair_share.backs
            self._flows = [(fair_share.start(flow), flow) for _, flow in self._flows]
            heapify(self._flows)
        passed_over: list[tuple[Start, str]] = []
        try:
            return self._pop(fair_share, passed_over)
        finally:
            for entry in passed_over:
                heappush(self._flows, entry)

    def _pop(self, fair_share: FairShare, passed_over: list[tuple[Start, str]]) -> Waiting | None:
        while self._flows:
            turn, flow = self._flows[0]
            if fair_share.is_full(flow):
                passed_over.append(heappop(self._flows))
            elif len(self._flows) > 1 and (start := fair_share.start(flow)) > turn:
                heapreplace(self._flows, (start, flow))
            elif (found := self._heaps[flow].pop()) is not None:
                return found
            else:
                del self._heaps[flow]
                heappop(self._flows)
        return None
