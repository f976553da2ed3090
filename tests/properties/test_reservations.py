"""Random streams of requests through an engine that keeps places: promises are kept, nothing is given twice,
and no request starves."""

from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    NodeUpdated,
    Place,
    Placed,
    PlaceGang,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import request

GPUS = 4
NAMES = ("a", "b", "c")
SEEDS = st.integers(0, 10**6)


class Play:
    """A virtual clock. Nobody runs longer than declared, and no two hold one device. `promised` has the first
    moment that was promised to a request or gang while it was the first of all that waited: those before it
    in turn may take its place."""

    def __init__(self, rng: Random, nodes: int, **rules: Any) -> None:
        self.rng, self.now = rng, 0.0
        self.engine = Engine(Registry().policy_of, rng, reservations=ReservationRules(**rules))
        self.held: dict[str, Placement] = {}
        self.began: dict[str, float] = {}
        self.promised: dict[str, float] = {}
        self.real_s: dict[str, float] = {}
        self.arrived: dict[str, int] = {}
        self._todo: list[tuple[float, int, list[Event]]] = []
        self._numbers = count()
        self.tell([NodeUpdated(node(name, GPUS)) for name in NAMES[:nodes]])

    def at(self, moment: float, *events: Event) -> None:
        heappush(self._todo, (moment, next(self._numbers), list(events)))

    def run(self, until: float) -> None:
        while self._todo and self._todo[0][0] <= until:
            self.now, _, events = heappop(self._todo)
            while self._todo and self._todo[0][0] <= self.now:
                events += heappop(self._todo)[2]
            self.tell(events)

    def tell(self, events: list[Event]) -> None:
        for each in events:
            if isinstance(each, RequestRemoved):
                self.held.pop(each.key, None)
            elif isinstance(each, RequestAdded):
                self.arrived[each.request.key] = int(each.request.key[1:].partition("/")[0])
        while True:
            actions = self.engine.handle_all(events or [Tick()], self.now)
            if not (events := self._carry_out(actions)):
                break
        waits = {key: first for key, first in self.arrived.items() if key not in self.began}
        for kept in self.engine.kept():
            key = kept.waiting.request.key
            if not kept.is_hold and not kept.is_broken and waits and waits.get(key) == min(waits.values()):
                self.promised.setdefault(kept.name, kept.at)
        deadline = self.engine.deadline(self.now)
        if deadline is not None and self.engine.has_waiting:
            self.at(max(deadline, self.now + 0.01))

    def _carry_out(self, actions: list[Action]) -> list[Event]:
        done = list[Event]()
        for action in actions:
            for place in action.places if isinstance(action, PlaceGang) else (action,):
                if isinstance(place, Place):
                    self._take(place)
                    done.append(Placed(place.request.key))
        return done

    def _take(self, place: Place) -> None:
        key, placement = place.request.key, place.placement
        for other in self.held.values():
            assert other.node != placement.node or set(other.devices).isdisjoint(placement.devices)
        self.held[key], self.began[key] = placement, self.now
        self.at(self.now + self.real_s[key], RequestRemoved(key))


@given(SEEDS, st.integers(1, 3), st.integers(1, 3), st.integers(1, 40))
def test_nobody_starts_later_than_first_promised(seed: int, nodes: int, most: int, length: int) -> None:
    rng = Random(seed)
    play, now = Play(rng, nodes, most=most, holds=1, hold_after_s=50.0, hold_s=20.0), 0.0
    names = dict[str, str]()
    for number in range(length):
        now += rng.choice((0.0, 1.0, 7.0))
        members = rng.choice((1, 1, 1, 2))
        gpus = rng.choice((1, 1, 2, 3, 4))
        declared_s = float(rng.choice((5, 20, 60, 100)))
        terms = GangTerms(f"g{number}", members) if members > 1 else None
        for member in range(members):
            key = f"r{number}/{member}"
            names[key] = terms.name if terms else key
            play.real_s[key] = declared_s * rng.choice((0.3, 0.9, 1.0))
            play.at(now, RequestAdded(request(key, gpus, run_s=declared_s, gang=terms)))
    play.run(1e6)
    fits = {key for key in names if key in play.began}
    for key in fits:
        assert play.began[key] <= play.promised.get(names[key], 1e9) + 1e-6, (key, play.promised)
    assert play.held == {}
    assert play.engine.kept() == []


@given(SEEDS, st.integers(1, 3), st.sampled_from((10.0, 400.0)))
def test_no_stream_of_small_ones_starves_a_large_one(seed: int, nodes: int, run_s: float) -> None:
    """Nobody declares anything, and the small ones never stop coming."""
    rng = Random(seed)
    play = Play(rng, nodes, most=2, holds=1, hold_after_s=100.0, hold_s=50.0)
    until, every_s = 400.0 + 14.0 * run_s, run_s / (nodes * GPUS) / 1.2
    now, number = 0.0, 0
    while now < until:
        key = f"s{number}"
        play.real_s[key] = run_s * rng.uniform(0.5, 1.0)
        play.at(now, RequestAdded(request(key, 1)))
        now, number = now + every_s, number + 1
    play.real_s["b0"] = 100.0
    play.at(run_s, RequestAdded(request("b0", GPUS)))
    play.run(until)
    assert "b0" in play.began
