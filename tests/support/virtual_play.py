"""Plays requests through a real engine by a virtual clock: nobody runs longer than declared, and no two hold
one device."""

from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node import Node
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


class Play:
    """What `real_s` says of a request is how long it runs. `began` has when each began."""

    def __init__(self, rng: Random, nodes: list[Node], rules: ReservationRules, **options: Any) -> None:
        self.rng, self.now = rng, 0.0
        self.engine = Engine(Registry().policy_of, rng, reservations=rules, **options)
        self.held: dict[str, Placement] = {}
        self.began: dict[str, float] = {}
        self.real_s: dict[str, float] = {}
        self._todo: list[tuple[float, int, list[Event]]] = []
        self._numbers = count()
        self.tell([NodeUpdated(each) for each in nodes])

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
                self.arrives(each)
        while True:
            actions = self.engine.handle_all(events or [Tick()], self.now)
            if not (events := self._carry_out(actions)):
                break
        self.looks()
        deadline = self.engine.deadline(self.now)
        if deadline is not None and self.engine.has_waiting:
            self.at(max(deadline, self.now + 0.01))

    def arrives(self, event: RequestAdded) -> None:
        """Take note of a request that comes now."""

    def looks(self) -> None:
        """Check what must hold after every event."""

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
            if placement.exclusive or other.exclusive:
                assert other.node != placement.node or set(other.devices).isdisjoint(placement.devices)
        self.held[key], self.began[key] = placement, self.now
        self.at(self.now + self.real_s[key], RequestRemoved(key))
