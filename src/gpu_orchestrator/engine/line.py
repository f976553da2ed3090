"""A line of waiting requests in their order: by lane, by flow in turn, by rank.

The active queue is one such line, and so are the parked requests of each shape; they share one account of
what each flow has had (start-time fair queueing: a flow's next turn comes later the more it was given).
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request


@dataclass(slots=True)
class Waiting:
    """One request in the engine's care. `number` settles equal ranks; `line` is where it stands now."""

    request: Request
    policy: Policy
    since: float
    number: int
    lane: int
    flow: str
    rank: tuple[float, ...]
    attempts: int = 0
    rests_until: float | None = None
    line: "Line | None" = None


class Turns:
    """What each flow has had, on one scale; a flow that was away does not save up turns."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._now = 0.0

    def start(self, flow: str) -> float:
        return max(self._next.get(flow, 0.0), self._now)

    def charge(self, flow: str, cost: float) -> None:
        self._now = self.start(flow)
        self._next[flow] = self._now + cost
        if len(self._next) > 4096:
            self._next = {flow: at for flow, at in self._next.items() if at > self._now}


class Line:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._lanes: dict[int, _Lane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, waiting: Waiting) -> None:
        waiting.line = self
        lane = self._lanes.get(waiting.lane)
        if lane is None:
            lane = self._lanes[waiting.lane] = _Lane(self)
        lane.push(waiting, self._turns)
        self._size += 1

    def pop(self) -> Waiting | None:
        """Take the first one out."""
        for number in sorted(self._lanes, reverse=True):
            if (found := self._lanes[number].pop(self._turns)) is not None:
                found.line = None
                self._size -= 1
                return found
            del self._lanes[number]
        return None

    def remove(self, waiting: Waiting) -> None:
        """It stays in its heap and is passed over when its turn comes."""
        waiting.line = None
        self._size -= 1
        self._lanes[waiting.lane].tidy(waiting.flow)


class _Lane:
    """Flows of one lane. `_flows` may say too early a turn for a flow, never too late: turns only move on."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._heaps: dict[str, list[tuple[tuple[float, ...], int, Waiting]]] = {}
        self._flows: list[tuple[float, str]] = []
        self._dead: dict[str, int] = {}

    def push(self, waiting: Waiting, turns: Turns) -> None:
        heap = self._heaps.get(waiting.flow)
        if heap is None:
            heap = self._heaps[waiting.flow] = []
            heappush(self._flows, (turns.start(waiting.flow), waiting.flow))
        heappush(heap, (waiting.rank, waiting.number, waiting))

    def pop(self, turns: Turns) -> Waiting | None:
        while self._flows:
            turn, flow = self._flows[0]
            if (start := turns.start(flow)) > turn and len(self._flows) > 1:
                heappop(self._flows)
                heappush(self._flows, (start, flow))
                continue
            heap = self._heaps[flow]
            while heap:
                waiting = heappop(heap)[2]
                if waiting.line is self._line:
                    return waiting
            del self._heaps[flow]
            self._dead.pop(flow, None)
            heappop(self._flows)
        return None

    def tidy(self, flow: str) -> None:
        """Throw out the removed once they are the larger part, so that a line is never mostly ghosts."""
        heap = self._heaps[flow]
        self._dead[flow] = self._dead.get(flow, 0) + 1
        if self._dead[flow] > 32 and self._dead[flow] * 2 > len(heap):
            heap[:] = [entry for entry in heap if entry[2].line is self._line]
            heapify(heap)
            self._dead[flow] = 0
