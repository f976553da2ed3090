"""Parked requests in the order in which the queue would take them: by lane, by flow in turn, by rank.

A line holds the requests of one shape, lane and flow; only its first can be next. The first ones are kept in
columns, so that the next of ten thousand lines is found with a few comparisons of columns. Kept by
`Unschedulable`.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, where
from gpu_orchestrator.engine import slot_sets
from gpu_orchestrator.engine.fair_share import FairShare, Start
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.rank_heap import RankHeap

if TYPE_CHECKING:
    from gpu_orchestrator.engine.held_back import Alike

NOWHERE = -1
"""The slot of an unused row. `in_turn` looks it up too, as the last flag, which is never set."""
FEW = 8
"""Up to this number, lines are sorted one by one: numpy costs more than it saves there."""
FEW_FLOWS = 16
"""Up to this number, flows are compared whenever lines are asked for; more are kept in order."""


Turn = tuple[int, Start, str, tuple[float, ...], int]
"""Lane, start of the flow, the flow, rank and number: the smaller, the earlier."""


class Line:
    """The parked requests of one shape, lane, flow and queue. `at` is its row, `slot` that of its shape,
    `count` the number of its requests. One that `is_blocked` has no turn: its queue has no room. `held` are
    the lines that `HeldBack` lists with it, if it does."""

    __slots__ = ("at", "count", "flow", "heap", "held", "is_blocked", "lane", "queue", "slot")

    def __init__(self, at: int, slot: int, lane: int, flow: str, queue: str) -> None:
        self.at, self.slot, self.lane, self.flow, self.queue = at, slot, lane, flow, queue
        self.heap, self.count = RankHeap(), 0
        self.is_blocked = False
        self.held: Alike | None = None


class Turns:
    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._lines: dict[int, Line] = {}
        self._unused: list[int] = []
        self._rows = self._slots = 0
        self._slot: Ints = np.full(16, NOWHERE, np.int64)
        self._lane: Ints = np.zeros(16, np.int64)
        self._flow: Ints = np.zeros(16, np.int64)
        self._number: Ints = np.zeros(16, np.int64)
        self._ranks: list[Floats] = []
        self._flows = _Numbers()
        self._stale: set[Line] = set()
        """Lines whose first request is not the one in the columns; written when the columns are needed."""

    def __len__(self) -> int:
        return len(self._lines)

    def new_line(self, slot: int, lane: int, flow: str, queue: str) -> Line:
        if self._unused:
            at = self._unused.pop()
        else:
            at = self._rows
            self._rows += 1
            self._make_room(self._rows)
        line = self._lines[at] = Line(at, slot, lane, flow, queue)
        self._slots = max(self._slots, slot + 1)
        self._lane[at], self._flow[at] = lane, self._flows.take(flow)
        return line

    def drop(self, line: Line) -> None:
        self._slot[line.at] = NOWHERE
        self._stale.discard(line)
        del self._lines[line.at]
        self._unused.append(line.at)
        self._flows.give_back(line.flow)

    def refresh(self, line: Line) -> bool:
        """The first request of the line may be another one now; return False if the line is empty."""
        if line.heap.first() is None:
            return False
        if not line.is_blocked:
            self._stale.add(line)
        return True

    def block(self, line: Line) -> None:
        """Let the line have no turn."""
        line.is_blocked = True
        self._slot[line.at] = NOWHERE
        self._stale.discard(line)

    def unblock(self, line: Line) -> None:
        line.is_blocked = False
        self._stale.add(line)

    def of(self, waiting: Waiting) -> Turn:
        """Return a value that is smaller the earlier the request's turn is."""
        start = self._fair_share.start(waiting.flow)
        return -waiting.lane, start, waiting.flow, waiting.rank, waiting.number

    def in_turn(self, offered: int) -> Iterable[Line]:
        """Return the lines whose slot is in this set and whose flow is below its limit, the first in turn
        first. The first one is cheap; the rest is sorted only if it is asked for."""
        return self._few_in_turn(offered) if len(self._lines) <= FEW else self._many_in_turn(offered)

    def _few_in_turn(self, offered: int) -> list[Line]:
        is_full = self._fair_share.is_full
        lines = [
            each
            for each in self._lines.values()
            if offered >> each.slot & 1 and not each.is_blocked and not is_full(each.flow)
        ]
        if len(lines) > 1:
            firsts = ((each.heap.first(), each) for each in lines)
            turns = [(self.of(first), each.at, each) for first, each in firsts if first is not None]
            lines = [line for _, _, line in sorted(turns)]
        return lines

    def _many_in_turn(self, offered: int) -> Iterator[Line]:
        self._write_stale()
        lines = where(slot_sets.flags(offered, self._slots)[self._slot[: self._rows]])
        while len(lines):
            lanes = self._lane[lines]
            top = lanes.max()
            yield from self._by_flow(lines[lanes == top])
            lines = lines[lanes < top]

    def _write_stale(self) -> None:
        stale, self._stale = self._stale, set()
        for line in stale:
            if (first := line.heap.first()) is None:
                continue
            at = line.at
            self._slot[at], self._number[at] = line.slot, first.number
            while len(self._ranks) < len(first.rank):
                self._ranks.append(np.full(len(self._slot), -np.inf))
            for column, value in zip(self._ranks, first.rank, strict=False):
                column[at] = value

    def _by_flow(self, lines: Ints) -> Iterator[Line]:
        flows = self._flow[lines]
        is_there = np.bincount(flows) > 0
        count = int(np.count_nonzero(is_there))
        for number in self._few_flows(is_there) if count <= FEW_FLOWS else self._many_flows(is_there):
            yield from self._by_rank(lines if count == 1 else lines[flows == number])

    def _few_flows(self, is_there: Bools) -> list[int]:
        """Return the numbers of these flows in turn."""
        share, numbers = self._fair_share, self._flows.numbers
        names = [self._flows.names[number] for number in where(is_there).tolist()]
        return [
            numbers[flow]
            for _, flow in sorted((share.start(each), each) for each in names if not share.is_full(each))
        ]

    def _many_flows(self, is_there: Bools) -> Iterator[int]:
        """Yield the numbers of these flows in turn. The order of all is kept, as far as it was asked for."""
        share, numbers, heap = self._fair_share, self._flows.numbers, self._flows.in_order(self._fair_share)
        seen: dict[str, Start] = {}
        try:
            while heap:
                start, flow = heap[0]
                if (number := numbers.get(flow, NOWHERE)) == NOWHERE:
                    self._flows.ordered.discard(heappop(heap)[1])
                elif (now := share.start(flow)) > start:
                    heapreplace(heap, (now, flow))
                elif flow in seen:
                    heappop(heap)  # an older entry, from before it had its turn earlier
                else:
                    seen[flow] = heappop(heap)[0]
                    if number < len(is_there) and is_there[number] and not share.is_full(flow):
                        yield number
        finally:
            for flow, start in seen.items():
                heappush(heap, (start, flow))

    def _by_rank(self, lines: Ints) -> Iterator[Line]:
        first = self._first(lines)
        yield self._lines[first]
        rest = lines[lines != first]
        columns = (self._number, *reversed(self._ranks))
        for at in rest[np.lexsort([column[rest] for column in columns])].tolist():
            yield self._lines[at]

    def _first(self, lines: Ints) -> int:
        for column in (*self._ranks, self._number):
            values = column[lines]
            lines = lines[values == values.min()]
            if len(lines) == 1:
                break
        return int(lines[0])

    def _make_room(self, size: int) -> None:
        if size <= len(self._slot):
            return
        more = max(size, 2 * len(self._slot)) - len(self._slot)
        nothing: Ints = np.zeros(more, np.int64)
        self._slot = np.concatenate((self._slot, np.full(more, NOWHERE, np.int64)))
        self._lane, self._flow, self._number = (
            np.concatenate((column, nothing)) for column in (self._lane, self._flow, self._number)
        )
        self._ranks = [np.concatenate((column, np.full(more, -np.inf))) for column in self._ranks]


class _Numbers:
    """A small number for each flow that has lines; given out again when it has none."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.names: list[str] = []
        self._lines: list[int] = []
        self._unused: list[int] = []
        self._order: list[tuple[Start, str]] = []
        self.ordered: set[str] = set()
        """Those that are in the order."""
        self._missing: list[str] = []
        self._epoch, self._backs = -1, 0

    def in_order(self, share: FairShare) -> list[tuple[Start, str]]:
        """Return a heap of all flows by their turn: too early it may be, too late it is not."""
        earlier = share.earlier_since(self._backs)
        self._backs = share.backs
        if self._epoch != share.epoch or earlier is None:
            self._epoch, self.ordered = share.epoch, set(self.numbers)
            self._order = [(share.start(flow), flow) for flow in self.numbers]
            heapify(self._order)
        else:
            for flow in earlier:
                if flow in self.ordered:
                    heappush(self._order, (share.start(flow), flow))
        for flow in self._missing:
            if flow in self.numbers and flow not in self.ordered:
                self.ordered.add(flow)
                heappush(self._order, (share.start(flow), flow))
        self._missing.clear()
        return self._order

    def take(self, flow: str) -> int:
        number = self.numbers.get(flow)
        if number is None:
            if self._unused:
                number = self._unused.pop()
                self.names[number] = flow
            else:
                number = len(self.names)
                self.names.append(flow)
                self._lines.append(0)
            self.numbers[flow] = number
            self._missing.append(flow)
            if len(self._missing) > 2 * len(self.names):  # the order was not asked for
                self._missing.clear()
                self._epoch = -1
        self._lines[number] += 1
        return number

    def give_back(self, flow: str) -> None:
        number = self.numbers[flow]
        self._lines[number] -= 1
        if not self._lines[number]:
            del self.numbers[flow]
            self._unused.append(number)
