"""An engine that keeps places, and whose decisions are carried out at once. Time passes only if the test says
so."""

import random
from typing import Any

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    NodeUpdated,
    Placed,
    PlaceGang,
    Refuse,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import request

RULES = ReservationRules(most=4, holds=1, hold_after_s=300.0, hold_s=600.0)

MOST_TICKS = 1000


class World:
    """Carries out what the engine decides, at once."""

    def __init__(self, *nodes: Node, rules: ReservationRules = RULES, **options: Any) -> None:
        self.engine = Engine(Registry().policy_of, random.Random(1), reservations=rules, **options)
        self.now, self.running, self.said = 1000.0, dict[str, Placement](), dict[str, str]()
        self.in_between = set[str]()
        self.tell(*map(NodeUpdated, nodes))

    def tell(self, *events: Event, after_s: float = 0.0) -> None:
        self.now += after_s
        for _ in range(MOST_TICKS):
            actions = self.engine.handle_all(events, self.now)
            events = tuple(self._carry_out(actions))
            if not events and not (self.engine.deadline(self.now) or self.now + 1.0) <= self.now:
                return
        raise AssertionError("the engine wants to be called again and again, and nothing changes")

    def _carry_out(self, actions: list[Action]) -> list[Event]:
        done = list[Event]()
        for action in actions:
            if isinstance(action, Refuse):
                self.said[action.request.key] = action.refusal.message
                continue
            for place in action.places if isinstance(action, PlaceGang) else (action,):
                self.running[place.request.key] = place.placement
                if place.in_between:
                    self.in_between.add(place.request.key)
                done.append(Placed(place.request.key))
        return done

    def ask(self, key: str, gpus: int, *, after_s: float = 0.0, **more: Any) -> bool:
        """Return True if the request began at once."""
        self.tell(RequestAdded(request(key, gpus, **more)), after_s=after_s)
        return key in self.running

    def end(self, *keys: str, after_s: float = 0.0) -> None:
        for key in keys:
            self.running.pop(key, None)
        self.tell(*map(RequestRemoved, keys), after_s=after_s)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick whenever the engine wants one."""
        until = self.now + seconds
        while True:
            at = self.engine.deadline(self.now)
            if at is None or at > until:
                break
            self.tell(Tick(), after_s=max(at - self.now, 0.01))
        self.tell(Tick(), after_s=max(until - self.now, 0.0))

    @property
    def kept(self) -> dict[str, tuple[float, set[str]]]:
        return {each.name: (each.at - self.now, set(each.nodes)) for each in self.engine.kept()}
