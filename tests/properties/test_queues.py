"""Queues with quota in any history: nothing starts beyond a limit, and each request that may start does."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.queues import Full
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.engine import turns
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Event,
    NodeRemoved,
    NodeUpdated,
    Place,
    Placed,
    PlaceFailed,
    PlaceGang,
    PlacementObserved,
    QueueRemoved,
    QueueUpdated,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.order import FairBands, Order, PriorityThenTime
from gpu_orchestrator.policies.registry import Registry
from tests.support import quota_oracle
from tests.support.examples import cases

REGISTRY = Registry()
MODELS = ("A", "B")
PARENTS = {"org": "", "ml": "org", "web": "org", "vision": "ml", "other": ""}


@dataclass
class History:
    """An engine, and what it must have counted: who is in flight or held, in which queue, of which model."""

    engine: Engine
    now: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    declared: dict[str, QueueTerms] = field(default_factory=dict)
    flying: set[str] = field(default_factory=set)
    used: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Removed while they were in flight."""

    def tell(self, *events: Event) -> None:
        self.now += 0.7
        for event in events:
            self._expect(event)
        for action in self.engine.handle_all(events, self.now):
            places = action.places if isinstance(action, PlaceGang) else [action]
            placed = [each for each in places if isinstance(each, Place)]
            for each in placed:
                self.flying.add(each.request.key)
                self._count(each.request.queue, each.placement)
            for each in placed:
                if each.request.queue:
                    assert not self._exceeded(each), action

    def _expect(self, event: Event) -> None:
        match event:
            case NodeUpdated(updated):
                self.nodes[updated.name] = updated
            case NodeRemoved(name):
                self.nodes.pop(name, None)
            case QueueUpdated(terms):
                self.declared[terms.name] = terms
            case QueueRemoved(name):
                self.declared.pop(name, None)
            case RequestRemoved(key) if key in self.flying:
                self.gone.add(key)
            case RequestRemoved(key):
                self.used.pop(key, None)
            case Placed(key):
                self._land(key)
                if key in self.gone:
                    self.gone.discard(key)
                    self.used.pop(key, None)
            case PlaceFailed(key):
                self._land(key)
                self.gone.discard(key)
                self.used.pop(key, None)
            case PlacementObserved(placement, _, queue):
                self._count(queue, placement)
            case _:
                pass

    def _land(self, key: str) -> None:
        self.flying.discard(key)

    def _count(self, queue: str, placement: Placement) -> None:
        models = {each.id: each.model for each in self.nodes[placement.node].devices}
        amounts: dict[str, int] = defaultdict(int)
        for each in placement.devices:
            amounts[models[each]] += 1000 if placement.exclusive else placement.milli
        self.used[placement.key] = queue, amounts

    def _exceeded(self, place: Place) -> str:
        by_queue: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for name, amounts in self.used.values():
            for model, milli in amounts.items():
                by_queue[name][model] += milli
        models = self.used[place.request.key][1]
        return quota_oracle.exceeded(place.request.queue, models, by_queue, self.declared)

    def settle(self) -> None:
        """Let time pass until only an event can change anything."""
        for _ in range(500):
            if self.flying:
                self.tell(Placed(min(self.flying)))
            elif (due := self.engine.deadline(self.now)) is not None:
                self.now = max(self.now, due)
                self.tell(Tick())
            else:
                return

    def check_all_that_may_start_have(self) -> None:
        engine = self.engine
        cluster = engine.cluster.copy()
        cluster.standings.clear()
        for key in list(self.known_waiting()):
            request = engine.waiting(key)
            assert request is not None
            if request.gang is not None:
                continue
            verdict = engine.queues.judge(
                request.queue, _milli(request), request.shape.models, lambda: self._models()
            )
            if request.queue and isinstance(verdict, Full):
                why = engine.why(key)
                assert why is not None
                assert why.message == verdict.message
                continue
            models = verdict if request.queue and verdict is not None else request.shape.models
            assert not isinstance(models, Full)
            asked = replace(request, shape=replace(request.shape, models=models))
            answer = decide(asked, cluster, REGISTRY.policy(), Random(1))
            assert isinstance(answer, Refusal), f"{key} could start: {answer}, and is {engine.state_of(key)}"

    def known_waiting(self) -> list[str]:
        return [f"r{number}" for number in range(100) if self.engine.waiting(f"r{number}") is not None]

    def _models(self) -> list[str]:
        return sorted({each.model for node in self.engine.cluster for each in node.devices})


def _milli(request: Request) -> int:
    return request.shape.gpus * (1000 if request.shape.exclusive else request.shape.milli)


@cases(150)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 70),
    at_once=st.sampled_from([1, 3, 1000]),
    few=st.sampled_from([0, 16]),
    order=st.sampled_from([PriorityThenTime(), FairBands()]),
)
def test_nothing_starts_beyond_a_limit_and_all_that_may_start_do(
    seed: int, length: int, at_once: int, few: int, order: Order
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "FEW", few)
        patch.setattr(turns, "FEW_FLOWS", few)
        _play(Random(seed), length, at_once, order)


def _play(rng: Random, length: int, at_once: int, order: Order) -> None:
    history = History(Engine(REGISTRY.policy_of, Random(1), order=order, max_in_flight=at_once))
    history.tell(*(QueueUpdated(_terms(rng, name)) for name in PARENTS))
    for name in "ab":
        history.tell(NodeUpdated(_node(name)))
    for number in range(length):
        batch = [_event(rng, history, number)]
        if rng.random() < 0.2:
            batch.append(_added(rng, number + 1000))
        history.tell(*batch)
    history.settle()
    history.check_all_that_may_start_have()


def _event(rng: Random, history: History, number: int) -> Event:
    known = sorted(history.used) or ["nobody"]
    flying = sorted(history.flying) or ["nobody"]
    match rng.choice("aaaaaaaaarrrrrppppffttqqxo"):
        case "a":
            return _added(rng, number)
        case "r":
            return RequestRemoved(rng.choice([rng.choice(known), f"r{rng.randrange(number + 1)}"]))
        case "p":
            return Placed(rng.choice(flying))
        case "f":
            return PlaceFailed(rng.choice(flying))
        case "q":
            name = rng.choice(list(PARENTS))
            return QueueRemoved(name) if rng.random() < 0.15 else QueueUpdated(_terms(rng, name))
        case "x":
            return NodeUpdated(_node(rng.choice("abc")))
        case "o" if "c" in history.nodes:
            seen = Placement(f"seen{rng.randrange(3)}", "c", devices=(rng.randrange(2),))
            return PlacementObserved(seen, queue=rng.choice(["", *PARENTS]))
        case _:
            return NodeRemoved("c") if rng.random() < 0.1 else Tick()


def _added(rng: Random, number: int) -> RequestAdded:
    models = rng.choice([(), (), ("A",), ("B",), ("A", "B")])
    if rng.random() < 0.3:
        shape = Shape(exclusive=False, milli=rng.choice([300, 700]), models=models)
    else:
        likes = rng.choice([(), (0,), (1,), (2, 3)])
        shape = Shape(gpus=rng.choice([1, 1, 2, 3]), models=models, prefer_ids=likes)
    queue = rng.choice(["", "other", *PARENTS, "vision", "ml"])
    gang = GangTerms(f"g{number // 6}", rng.choice([1, 2])) if rng.random() < 0.2 else None
    asked = Request(f"r{number}", shape, rng.choice([0, 5]), rng.choice("uv"), gang=gang, queue=queue)
    return RequestAdded(asked)


def _terms(rng: Random, name: str) -> QueueTerms:
    def amounts() -> dict[str, int]:
        some = {model: rng.randint(0, 4) * 1000 for model in MODELS if rng.random() < 0.25}
        return some | ({"*": rng.randint(0, 6) * 1000} if rng.random() < 0.5 else {})

    return QueueTerms(
        name,
        PARENTS[name],
        rng.choice([1.0, 2.0]),
        guaranteed=amounts(),
        limit=amounts(),
        borrowing=rng.random() < 0.7,
    )


def _node(name: str) -> Node:
    """A node keeps its devices, or what is counted of it depends on when it was placed."""
    return node(name, [Device(at, model=MODELS[(at + (name == "b")) // 2 % 2]) for at in range(4)])
