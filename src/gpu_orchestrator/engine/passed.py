"""Notice which waiting requests are passed by later ones on nodes that would suit them: those starve unless a
place is kept for them. Kept by `Reservations`, if places are kept for such requests alone.

Only one that asks for more than others did which began can be passed for its size. So while nothing larger
than what begins waits, nobody is watched, and a request that begins costs two comparisons.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import compile_filters
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.engine.fair_share import Start
from gpu_orchestrator.engine.order import gpus_of
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.turns import Turn

WATCHED = 32
"""How many are watched at once, the first in turn."""
COMPARES = 256
"""How often others that begin are compared with them from one look to the next: where thousands begin in a
second, a few of them show who is passed."""
PATIENCE_S = 2.0
"""For how long one is watched at least: where thousands begin in a second, the next one may be for it."""
MEMORY_S = 60.0
"""For how long at least it is remembered how little began."""


@dataclass(slots=True)
class _Watched:
    """`turn` is the one that this had when a later one first began, on one of these `nodes`."""

    waiting: Waiting
    since: float
    turn: Turn | None = None
    nodes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Least:
    """The fewest GPUs and the smallest amount of them that any request asked for."""

    gpus: float = inf
    amount: float = inf

    def note(self, gpus: int, amount: float) -> None:
        if gpus < self.gpus:
            self.gpus = gpus
        if amount < self.amount:
            self.amount = amount


class Passed:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._turns: dict[str, Turn] = {}
        """The turn of each whose turn has come, as it was then."""
        self._starts: dict[tuple[int, str], Start] = {}
        """The earliest start of these by lane and flow."""
        self._watched: dict[str, _Watched] = {}
        self._least, self._before, self._since = _Least(), _Least(), 0.0
        self._compares = 0
        """How often others may still be compared with those that are watched, until the next look."""
        self._last: Shape | None = None
        """The shape that was noted last."""

    def turn(self, name: str, waiting: Waiting) -> Turn:
        """Return the turn of a request. Once it has come it stays, however much the flow has afterwards: or
        other flows would pass it again whenever its own has had more than theirs."""
        turn = self._parts.queue.turn(waiting)
        if name not in self._turns:
            return turn
        lane, start, flow, rank, number = turn
        return lane, min(start, self._starts[lane, flow]), flow, rank, number

    def came(self, name: str, turn: Turn) -> None:
        """The turn of this one has come."""
        if name not in self._turns:
            self._turns[name] = turn
            lane, start, flow, _, _ = turn
            self._starts[lane, flow] = min(start, self._starts.get((lane, flow), start))

    def keep_only(self, is_known: Callable[[str], bool]) -> None:
        """Forget those that wait no longer."""
        turns, self._turns, self._starts = self._turns, {}, {}
        for name, turn in turns.items():
            if is_known(name):
                self.came(name, turn)

    def begins(self, waiting: Waiting, placement: Placement) -> None:
        """A request was placed; its flow is not charged for it yet."""
        shape = waiting.request.shape
        if shape is not self._last:  # mostly it is
            self._last = shape
            if shape.gpus:
                self._least.note(shape.gpus, gpus_of(waiting.request))
        if self._compares > 0 and shape.gpus:
            self._compare(waiting, placement.node)

    def _compare(self, waiting: Waiting, node: str) -> None:
        turn = self._parts.queue.turn(waiting)
        self._compares -= len(self._watched)
        for each in self._watched.values():
            own = self._parts.queue.turn(each.waiting)
            if own < turn:
                each.nodes.add(node)
                each.turn = each.turn or own

    def may_starve(self, name: str, waiting: Waiting) -> bool:
        """Return True if it was passed, or asks for more than others that began."""
        return name in self._turns or self._is_large(waiting.request, name)

    def starving(self, parked: Iterable[tuple[str, Waiting]], now: float) -> Iterator[Waiting]:
        """Yield those of these, by name and in turn, that were passed since they wait; watch the others."""
        if now - self._since >= MEMORY_S:
            self._before, self._least, self._since, self._last = self._least, _Least(), now, None
        before, self._watched = self._watched, {}
        for name, waiting in parked:
            if name in self._turns:
                yield waiting
            elif len(self._watched) < WATCHED:
                known = before.get(name)
                if known is None or known.waiting is not waiting:
                    known = _Watched(waiting, now)
                if now >= known.since + PATIENCE_S and self._is_passed(known):
                    self.came(name, known.turn or self._parts.queue.turn(waiting))
                    yield waiting
                else:
                    self._watched[name] = known
        self._compares = COMPARES if self._watched else 0

    @property
    def next_at(self) -> float | None:
        """Return when to look whether one that is watched was passed; None if none may have been."""
        return min((each.since + PATIENCE_S for each in self._watched.values() if each.nodes), default=None)

    def _is_large(self, request: Request, name: str) -> bool:
        gpus, amount = request.shape.gpus, gpus_of(request)
        if request.gang is not None and (members := self._parts.gangs.named(name)) is not None:
            gpus, amount = gpus * len(members.waiting), amount * len(members.waiting)
        fewest = min(self._least.gpus, self._before.gpus)
        return gpus > fewest or amount > min(self._least.amount, self._before.amount)

    def _is_passed(self, watched: _Watched) -> bool:
        """Return True if one of the nodes suits it; else forget them, and look at those that come next."""
        cluster = self._parts.cache.cluster
        rows = [cluster.row(node) for node in watched.nodes if node in cluster]
        watched.nodes.clear()
        return bool(rows) and _suits_any(watched.waiting.request.shape, cluster, rows)


def _suits_any(shape: Shape, cluster: Cluster, rows: list[int]) -> bool:
    left = np.array(rows, np.int64)
    for each in compile_filters(shape, cluster.inventory):
        if each.fact and len(left):
            left = left[each.passes(cluster, left)]
    return len(left) > 0
