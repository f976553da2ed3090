"""The waiting requests that name a model, in order, by model. Kept by `Models`.

An index beside the scheduling queue, which knows them too: it answers how many wait for a model, which of
them is first, and how many older ones a request would pass.
"""

from bisect import bisect_left, insort
from collections import Counter
from operator import itemgetter

from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.engine.queue import Waiting

Place = tuple[int, tuple[float, ...], int]
"""Lane, rank and number: the smaller, the earlier."""
_place = itemgetter(0)
Entry = tuple[Place, Waiting]


def place_of(waiting: Waiting) -> Place:
    return -waiting.lane, waiting.rank, waiting.number


class ModelLine:
    def __init__(self) -> None:
        self._all: list[Place] = []
        self._of: dict[str, list[Entry]] = {}
        self._groups: dict[str, Counter[tuple[Shape, Policy]]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def joins(self, waiting: Waiting) -> None:
        model, place = waiting.request.shape.model, place_of(waiting)
        insort(self._all, place)
        insort(self._of.setdefault(model, []), (place, waiting), key=_place)
        self._groups.setdefault(model, Counter())[waiting.request.shape, waiting.policy] += 1

    def leaves(self, waiting: Waiting) -> None:
        model, place = waiting.request.shape.model, place_of(waiting)
        del self._all[bisect_left(self._all, place)]
        line, groups = self._of[model], self._groups[model]
        del line[bisect_left(line, place, key=_place)]
        key = waiting.request.shape, waiting.policy
        groups[key] -= 1
        if not groups[key]:
            del groups[key]
        if not line:
            del self._of[model], self._groups[model]

    def models(self) -> list[str]:
        return list(self._of)

    def count(self, model: str) -> int:
        return len(self._of.get(model, ()))

    def of(self, model: str) -> list[Entry]:
        return self._of.get(model, [])

    def groups(self, model: str) -> list[tuple[Shape, Policy]]:
        return list(self._groups.get(model, ()))

    def passes(self, waiting: Waiting) -> int:
        """Return how many older requests of its lane, for whatever model, this one would pass."""
        first = bisect_left(self._all, (-waiting.lane,))
        return bisect_left(self._all, place_of(waiting)) - first

    def first_in_lane(self, model: str, lane: int) -> list[Entry]:
        """Return the requests for this model in this lane, the first one first."""
        line = self.of(model)
        at = bisect_left(line, (-lane,), key=_place)
        end = bisect_left(line, (-lane + 1,), key=_place)
        return line[at : min(end, at + 32)]
