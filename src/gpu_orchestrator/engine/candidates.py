"""Choose which requests may have a place: the first in turn, or the first of those that later ones pass. Used
by `Reservations`."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.engine.gang_decision import over_limit
from gpu_orchestrator.engine.kept import name_of
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.passed import Passed
from gpu_orchestrator.engine.queue import Waiting

FIRST = 32
"""How many waiting requests are looked at, the first in turn."""
MOST_LOOKED_AT = 1024
"""How many, the first in turn, are looked through for those that may be passed."""


@dataclass(slots=True)
class Rest:
    """When a request may have a hold again, and be looked for again; how long its last hold lasted."""

    hold_at: float = 0.0
    look_at: float = 0.0
    lasted_s: float = 0.0


class Candidates:
    """`passed` notices who is passed, if places are for them alone."""

    def __init__(self, parts: Parts, passed: Passed | None) -> None:
        self._parts, self._passed = parts, passed

    def first(self, now: float, is_rested: Callable[[Waiting], bool]) -> list[Waiting]:
        """Return those that could fit at some time, the first in turn first. Of those that may be passed, the
        ones that rest do not stand before others."""
        if (passed := self._passed) is None:
            heads = sorted(self._that_may_fit(FIRST), key=self._parts.queue.turn)
            return [each for each in heads[:FIRST] if not self.is_full(each)]
        found = [
            (name_of(each), each)
            for each in self._that_may_fit(MOST_LOOKED_AT)
            if passed.may_starve(name_of(each), each) and is_rested(each) and not self.is_full(each)
        ]
        if self._parts.gangs.size:
            found.sort(key=lambda each: passed.turn(*each))
        starving = passed.starving(found, now)
        return sorted(starving, key=lambda each: passed.turn(name_of(each), each))[:FIRST]

    def is_full(self, waiting: Waiting) -> bool:
        """Return True if its flow may not hold as much more."""
        if (terms := waiting.request.gang) is None:
            return self._parts.fair_share.is_full(waiting.flow)
        gang = self._parts.gangs.named(terms.name)
        return gang is None or over_limit(gang, self._parts.fair_share, 0) is not None

    def _that_may_fit(self, most: int) -> list[Waiting]:
        singles = [
            waiting
            for waiting, refusal in islice(self._parts.queue.parked_in_turn(), most)
            if _may_fit_later(waiting, refusal)
        ]
        return [*singles, *(each for each in self._parts.gangs.parked() if _may_fit_later(each))]


def _may_fit_later(waiting: Waiting, refusal: Refusal | None = None) -> bool:
    if refusal is not None and (refusal.never or refusal.error):
        return False
    return waiting.request.shape.gpus > 0 and not waiting.request.shape.model
