"""Parked requests in the order in which the queue would take them: by lane, by flow in turn, by rank.

A line holds the requests of one shape, lane and flow; only its first can be next. The first ones are kept in
columns, so that the next of ten thousand lines is found with a few comparisons of columns. Kept by
`Unschedulable`.
"""

from collections.abc import Iterator

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, where
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.rank_heap import RankHeap

NOWHERE = -1
"""The slot of an unused row. `in_turn` looks it up too, as the last flag, which is never set."""


Turn = tuple[int, float, str, tuple[float, ...], int]
"""Lane, start of the flow, the flow, rank and number: the smaller, the earlier."""


class Line:
    """The parked requests of one shape, lane and flow. `at` is its row, `slot` that of its shape."""

    __slots__ = ("at", "flow", "heap", "lane", "slot")

    def __init__(self, at: int, slot: int, lane: int, flow: str) -> None:
        self.at, self.slot, self.lane, self.flow = at, slot, lane, flow
        self.heap = RankHeap()


class Turns:
    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._lines: list[Line | None] = []
        self._unused: list[int] = []
        self._slot: Ints = np.full(16, NOWHERE, np.int64)
        self._lane: Ints = np.zeros(16, np.int64)
        self._flow: Ints = np.zeros(16, np.int64)
        self._number: Ints = np.zeros(16, np.int64)
        self._ranks: list[Floats] = []
        self._flows = _Numbers()

    def new_line(self, slot: int, lane: int, flow: str) -> Line:
        if self._unused:
            at = self._unused.pop()
        else:
            at = len(self._lines)
            self._lines.append(None)
            self._make_room(at + 1)
        line = self._lines[at] = Line(at, slot, lane, flow)
        self._lane[at], self._flow[at] = lane, self._flows.take(flow)
        return line

    def drop(self, line: Line) -> None:
        self._slot[line.at] = NOWHERE
        self._lines[line.at] = None
        self._unused.append(line.at)
        self._flows.give_back(line.flow)

    def refresh(self, line: Line) -> bool:
        """Note which request of the line is its first now; return False if the line is empty."""
        first = line.heap.first()
        if first is None:
            return False
        at = line.at
        self._slot[at], self._number[at] = line.slot, first.number
        while len(self._ranks) < len(first.rank):
            self._ranks.append(np.full(len(self._slot), -np.inf))
        for column, value in zip(self._ranks, first.rank, strict=False):
            column[at] = value
        return True

    def of(self, waiting: Waiting) -> Turn:
        """Return a value that is smaller the earlier the request's turn is."""
        start = self._fair_share.start(waiting.flow)
        return -waiting.lane, start, waiting.flow, waiting.rank, waiting.number

    def in_turn(self, offered: Bools) -> Iterator[Line]:
        """Return the lines whose slot is set and whose flow is below its limit, the first in turn first. The
        first one is cheap; the rest is sorted only if it is asked for."""
        lines = where(offered[self._slot[: len(self._lines)]])
        while len(lines):
            lanes = self._lane[lines]
            top = lanes.max()
            yield from self._by_flow(lines[lanes == top])
            lines = lines[lanes < top]

    def _by_flow(self, lines: Ints) -> Iterator[Line]:
        flows, share = self._flow[lines], self._fair_share
        names = [self._flows.names[number] for number in where(np.bincount(flows) > 0).tolist()]
        for _, flow in sorted((share.start(flow), flow) for flow in names if not share.is_full(flow)):
            number = self._flows.numbers[flow]
            yield from self._by_rank(lines if len(names) == 1 else lines[flows == number])

    def _by_rank(self, lines: Ints) -> Iterator[Line]:
        first = self._first(lines)
        yield from self._found(first)
        rest = lines[lines != first]
        columns = (self._number, *reversed(self._ranks))
        for at in rest[np.lexsort([column[rest] for column in columns])].tolist():
            yield from self._found(at)

    def _first(self, lines: Ints) -> int:
        for column in (*self._ranks, self._number):
            values = column[lines]
            lines = lines[values == values.min()]
            if len(lines) == 1:
                break
        return int(lines[0])

    def _found(self, at: int) -> Iterator[Line]:
        if (line := self._lines[at]) is not None:
            yield line

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
        self._lines[number] += 1
        return number

    def give_back(self, flow: str) -> None:
        number = self.numbers[flow]
        self._lines[number] -= 1
        if not self._lines[number]:
            del self.numbers[flow]
            self._unused.append(number)
