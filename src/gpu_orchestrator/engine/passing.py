"""Let requests in where a place is kept: its owner, those who end before it begins, and those whose turn
comes before the owner's. Used by the engine's decisions and intake; `reservations.py` keeps the places.
"""

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.gang import may_fit
from gpu_orchestrator.engine.gang_members import to_decide
from gpu_orchestrator.engine.kept import Kept, lifted
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.reservations import Reservations

AT_ONCE = 16
"""Requests that are offered a place in one go; the others of the same offer come in the next."""
MOST_OFFERED = 256
"""Requests that are offered a place after something became free there."""


class Passing:
    def __init__(self, parts: Parts, reservations: Reservations) -> None:
        self._parts, self._reservations = parts, reservations
        self.places = reservations.kept
        """What is kept now; empty mostly, and then nothing here is to be asked."""
        self._cache, self._queue, self._gangs = parts.cache, parts.queue, parts.gangs
        self._offered, self._left = set[str](), set[str]()
        """Requests that were offered a place since something became free, and nodes to offer to more."""

    def __bool__(self) -> bool:
        """True if a place is kept now."""
        return bool(self._reservations)

    def begins(self, key: str, run_s: float) -> None:
        """A request with this run time begins now."""
        self._reservations.begins(key, run_s)

    @property
    def has_more(self) -> bool:
        """True if `offer` has something to do."""
        return bool(self._reservations.freed or self._left)

    def passable(self, waiting: Waiting, run_s: float | None = None, *, is_first: bool = False) -> list[Kept]:
        """Return the places that do not keep this request out, and have something free by the numbers. Of one
        that is decided before all others, the room may be a part of a place and something beside it."""
        run_s = waiting.request.run_s if run_s is None else run_s
        return [
            each
            for each in self._reservations.kept.values()
            if self._passes(waiting, run_s, each) and (is_first or self._has_room(waiting, each))
        ]

    def _passes(self, waiting: Waiting, run_s: float, kept: Kept) -> bool:
        if kept.is_for(waiting) or 0.0 < run_s <= kept.until - self._parts.now:
            return True
        own, priority = self._reservations.own(waiting), kept.waiting.request.priority
        if own is not None and not own.is_hold and waiting.request.priority <= priority:
            return False  # it has a place of its own to begin at
        return self._queue.turn(waiting) < self._reservations.turn(kept)

    def _has_room(self, waiting: Waiting, kept: Kept) -> bool:
        return waiting.request.shape.whole_gpus <= self._reservations.open_gpus(kept)

    def before(self, waiting: Waiting) -> list[Kept]:
        """Return the places of those whose turn comes later, and its own."""
        return [each for each in self._reservations.kept.values() if self._passes(waiting, 0.0, each)]

    def enters(self, waiting: Waiting, placement: Placement) -> bool:
        """Take note of a placement. Return True if the request got a part of a place because it declares that
        it ends before. A place that one of an earlier turn enters is looked for again."""
        turn, is_in_between = self._queue.turn(waiting), False
        for each in self._reservations.kept.values():
            if each.is_for(waiting) or not each.overlaps(placement):
                continue
            is_in_between |= self._reservations.turn(each) < turn
            if not 0.0 < waiting.request.run_s <= each.until - self._parts.now:
                self._reservations.broken(each)
        return is_in_between

    def offer(self) -> None:
        """Have those decided, before all others, whom it may help that something became free in a place; but
        after those for whom room was made."""
        reservations, first = self._reservations, list[str]()
        reservations.drop_done()
        if reservations.freed:
            self._offered.clear()
        freed, reservations.freed, self._left = (reservations.freed | self._left), set(), set()
        if not freed:
            return
        helped = [each for each in reservations.in_turn() if not freed.isdisjoint(each.nodes)]
        others = self._others(helped)
        # The last one is decided first.
        first.extend(reversed([each.request.key for each in others]))
        for each in reversed(helped):
            if each.waiting.request.gang is None:
                if self._has_room(each.waiting, each) and not self._is_full(each.waiting):
                    first.append(each.name)
            else:
                self._offer_gang(each)
        self._parts.first[:0] = first
        if len(others) == AT_ONCE and len(self._offered) < MOST_OFFERED:
            self._left = freed & reservations.nodes

    def _others(self, helped: list[Kept]) -> list[Waiting]:
        room = max((self._reservations.open_gpus(each) for each in helped), default=0)
        if not room:
            return []
        found = [each for each in self._queue.all() if each.request.run_s and self._may_use(each, room)]
        last = max(map(self._reservations.turn, helped))
        for waiting, _ in self._queue.parked_in_turn():
            if not self._queue.turn(waiting) < last:
                break
            if not waiting.request.run_s and self._may_use(waiting, room):
                found.append(waiting)
        passing = (each for each in sorted(found, key=self._queue.turn) if self.passable(each))
        chosen = [each for each, _ in zip(passing, range(AT_ONCE), strict=False)]
        self._offered.update(each.request.key for each in chosen)
        return chosen

    def _may_use(self, waiting: Waiting, room: int) -> bool:
        request = waiting.request
        return (
            waiting.is_parked
            and request.shape.whole_gpus <= room
            and request.key not in self._offered
            and self._reservations.own(waiting) is None
            and not self._is_full(waiting)
        )

    def _is_full(self, waiting: Waiting) -> bool:
        return self._parts.fair_share.is_full(waiting.flow)

    def _offer_gang(self, kept: Kept) -> None:
        members = self._gangs.named(kept.name)
        if members is None or members.stage != "parked" or members.is_short:
            return
        with lifted([kept], self._cache.cluster):
            fits = may_fit(to_decide(members, self._cache.cluster), self._cache.cluster, {})
        if fits:
            self._queue.push(self._gangs.enqueue(members))

    def note(self, waiting: Waiting) -> str:
        """Return what places that are kept have to do with this request; empty if nothing."""
        reservations, cluster = self._reservations, self._cache.cluster
        if (own := reservations.own(waiting)) is not None:
            return own.words(reservations.rules)
        request = waiting.request
        for each in reservations.in_turn() if request.gang is None else ():
            if not self._has_room(waiting, each) or self._passes(waiting, request.run_s, each):
                continue
            with lifted([each], cluster):
                fits = why_not(waiting.asked.shape, cluster, waiting.policy) is None
            if fits:
                return each.words_for(waiting, reservations.rules)
        return ""
