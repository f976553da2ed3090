"""What must hold of the engine under any order of events and any outcome."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core import standing_cache
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.columns import Floats
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.offers import Offers
from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.engine import turns, unschedulable, wakeup_index
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    LimitChanged,
    NodeRemoved,
    NodeUpdated,
    Place,
    Placed,
    PlaceFailed,
    PlaceGang,
    PlacementObserved,
    Refuse,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.order import FairBands, Order, PriorityThenTime
from gpu_orchestrator.policies.registry import Registry
from tests.support.examples import cases
from tests.support.generators import ALLOCATORS, NAMES, STRATEGIES, a_node, a_shape

REGISTRY = Registry()
STRATEGIES_AND_WORSE = (*STRATEGIES, *STRATEGIES, "fragile", "unheard")


def with_fragile() -> Registry:
    """One that also knows `fragile`, which breaks every third time it is asked."""
    turns = count(1)

    def opinion(offers: Offers) -> Floats:
        if next(turns) % 3 == 0:
            raise KeyError("price")
        return np.zeros(len(offers))

    return REGISTRY.with_plugins([("fragile", lambda: Strategy("fragile", ((1.0, opinion),)))])


# What each event makes of a request in each phase; nothing if it is not named. "left": gone while its placing
# is under way; "back": asked for again after that.
PHASES: dict[type[Event], dict[str, str]] = {
    RequestAdded: {"none": "waiting", "left": "back"},
    RequestRemoved: {"waiting": "none", "held": "none", "flying": "left", "back": "left"},
    Placed: {"flying": "held", "left": "none", "back": "waiting"},
    PlaceFailed: {"flying": "waiting", "left": "none", "back": "waiting"},
}
STATES: dict[str, set[str | None]] = {
    "none": {None},
    "waiting": {"active", "parked", "resting"},
    "held": {"held"},
}


IN_FLIGHT: set[str | None] = {"in flight"}
WAITS = STATES["waiting"]


@dataclass
class Model:
    """The phase every request must be in, derived from events and actions alone. `at_once` is how many may be
    in flight."""

    order: Order
    at_once: int = 1000
    phases: dict[str, str] = field(default_factory=dict)
    wanted: dict[str, Request] = field(default_factory=dict)
    holding: dict[str, str] = field(default_factory=dict)
    most: dict[str, int | None] = field(default_factory=dict)
    now: float = 0.0

    def expect(self, event: Event) -> None:
        match event:
            case PlacementObserved(placement):
                self.phases[placement.key] = "held"
            case RequestAdded(request) if request.strategy != "unheard":
                if self.phases.get(request.key) != "held":
                    self.wanted[request.key] = request
                self._move(request.key, event)
            case RequestRemoved(key) | Placed(key) | PlaceFailed(key):
                self._move(key, event)
            case LimitChanged(flow, most):
                self.most[flow] = most
            case _:
                pass
        self.holding = {k: v for k, v in self.holding.items() if self.phases[k] not in ("none", "waiting")}

    def is_full(self, flow: str) -> bool:
        """Count what was placed for the flow, not what others gave it without naming a request."""
        most = self.most.get(flow)
        return most is not None and sum(each == flow for each in self.holding.values()) >= most

    def _move(self, key: str, event: Event) -> None:
        phase = self.phases.get(key, "none")
        self.phases[key] = PHASES[type(event)].get(phase, phase)

    def keys(self, *phases: str) -> list[str]:
        return sorted(key for key, phase in self.phases.items() if phase in phases)


@cases(150)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 60),
    at_once=st.sampled_from([1, 3, 1000]),
    per_call=st.sampled_from([1, 1000]),
    order=st.sampled_from([PriorityThenTime(), FairBands()]),
    explains=st.booleans(),
)
def test_no_request_is_lost_or_placed_twice_or_parked_while_it_fits(
    seed: int, length: int, at_once: int, per_call: int, order: Order, explains: bool
) -> None:
    rng, model = Random(seed), Model(order, at_once)
    policy_of = with_fragile().policy_of
    options: dict[str, Any] = {"max_in_flight": at_once, "max_decisions": per_call, "explains": explains}
    engine = Engine(policy_of, Random(1), order=order, **options)
    shapes = [a_shape(rng) for _ in range(3)]
    for number in range(length):
        events = [_some_event(rng, model, shapes, number)]
        if rng.random() < 0.2:
            events.append(RequestAdded(_request(rng, f"s{number}", shapes)))
        _tell(engine, model, *events)
    _finish(engine, model)


def _some_event(rng: Random, model: Model, shapes: list[Shape], number: int) -> Event:
    known = sorted(model.phases) or ["unknown"]
    flying = model.keys("flying", "left", "back") or known
    match rng.choice("nnnxaaaaaagghppppfftl"):
        case "n":
            return NodeUpdated(a_node(rng, rng.choice(NAMES)))
        case "x":
            return NodeRemoved(rng.choice(NAMES))
        case "a":
            key = rng.choice(known) if rng.random() < 0.2 else f"r{number}"
            return RequestAdded(_request(rng, key, shapes))
        case "g":
            return RequestRemoved(rng.choice(known))
        case "h":
            key = rng.choice([f"other{rng.randrange(3)}", rng.choice(known)])
            taken = {"resources": (("cpu", 1),), "unnamed": rng.randint(0, 2)}
            return PlacementObserved(Placement(key, rng.choice(NAMES), **taken))  # type: ignore[arg-type]
        case "p":
            return Placed(rng.choice(flying))
        case "f":
            return PlaceFailed(rng.choice(flying))
        case "l":
            return LimitChanged(rng.choice("uv"), rng.choice([None, 0, 1, 2]))
        case _:
            return Tick()


def _request(rng: Random, key: str, shapes: list[Shape]) -> Request:
    return Request(
        key,
        rng.choice(shapes),
        priority=rng.choice([0, 50, 80, 100]),
        tenant=rng.choice("uv"),
        strategy=rng.choice(STRATEGIES_AND_WORSE),
        allocator=rng.choice(ALLOCATORS),
    )


def _tell(engine: Engine, model: Model, *events: Event) -> None:
    model.now += 0.7
    for event in events:
        model.expect(event)
    for action in engine.handle_all(events, model.now):
        assert not isinstance(action, PlaceGang)
        key = action.request.key
        if action.request.strategy == "unheard":
            assert isinstance(action, Refuse)
            continue
        assert model.phases[key] == "waiting", "placed twice, or decided a request that does not wait"
        match action:
            case Place(_, placement):
                assert placement.key == key
                flow = model.order.flow(action.request)
                assert not model.is_full(flow), "more than its flow may hold"
                model.phases[key] = "flying"
                model.holding[key] = flow
            case Refuse(_, refusal):
                assert refusal.message.startswith("0/")
    _check_nobody_is_lost(engine, model)
    _check_who_fits_is_awake(engine, model)


def _check_nobody_is_lost(engine: Engine, model: Model) -> None:
    for key in model.keys("waiting"):
        assert engine.waiting(key) == model.wanted[key], "an older version of the request is still used"
    counted = Counter(engine.state_of(key) for key in model.phases)
    for key, phase in model.phases.items():
        assert engine.state_of(key) in STATES.get(phase, IN_FLIGHT), (key, phase)
    assert engine.counts() == {state: counted[state] for state in engine.counts()}
    due = engine.deadline(model.now)
    assert due is not None or not counted["resting"]


def _check_who_fits_is_awake(engine: Engine, model: Model) -> None:
    """Parked requests do not fit, unless one that asks the same goes first, their flow holds the most it may,
    or the engine is not done: it has more to decide, or must wait for what is in flight."""
    if engine.deadline(model.now) == model.now or len(model.keys("flying", "left", "back")) >= model.at_once:
        return
    waiting = {key: r for key in model.keys("waiting") if (r := engine.waiting(key)) is not None}
    waiting = {key: r for key, r in waiting.items() if not model.is_full(model.order.flow(r))}
    awake = {(r.shape, r.strategy, r.allocator) for k, r in waiting.items() if engine.state_of(k) == "active"}
    cluster = engine.cluster.copy()
    cluster.standings.clear()
    for key, request in waiting.items():
        parked = engine.state_of(key) == "parked"
        if parked and (request.shape, request.strategy, request.allocator) not in awake:
            answer = decide(request, cluster, REGISTRY.policy("", request.allocator), Random(1))
            assert isinstance(answer, Refusal), f"{key} is parked though it would fit: {answer}"
            assert engine.why(key) == answer


def _finish(engine: Engine, model: Model) -> None:
    """Once everything under way succeeds and time passes, nothing is left to do but wait for room."""
    _tell(engine, model, *(LimitChanged(flow, None) for flow in model.most))
    for _ in range(400):
        flying = model.keys("flying", "left", "back")
        if flying:
            _tell(engine, model, Placed(flying[0]))
        elif (due := engine.deadline(model.now)) is not None:
            model.now = max(model.now, due)
            _tell(engine, model, Tick())
        else:
            break
    counts = engine.counts()
    assert counts["active"] == counts["resting"] == counts["in flight"] == 0
    assert counts["parked"] == len(model.keys("waiting"))


@cases(150)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 60), at_once=st.sampled_from([2, 1000]))
def test_slices_do_not_change_what_is_placed(seed: int, length: int, at_once: int) -> None:
    """One engine decides all at once. The other judges one shape per tick, wakes one parked shape at a time,
    compares few of them as it would compare many, has forgotten nearly every standing, and parks what fits
    nowhere by the numbers without a closer look."""
    rng = Random(seed)
    whole = Engine(REGISTRY.policy_of, Random(1), max_in_flight=at_once)
    options: dict[str, Any] = {"max_decisions": 1, "max_rows": 1, "explains": False}
    sliced = Engine(REGISTRY.policy_of, Random(1), max_in_flight=at_once, **options)
    shapes, model = [a_shape(rng) for _ in range(8)], Model(PriorityThenTime())
    for number in range(length):
        event = _some_event(rng, model, shapes, number)
        if isinstance(event, RequestAdded) and event.request.strategy in ("unheard", "fragile"):
            continue
        model.now += 0.7
        model.expect(event)
        placed = _placed(whole.handle(event, model.now))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unschedulable, "WAVE", 1)
            patch.setattr(turns, "FEW", 0)
            patch.setattr(turns, "FEW_FLOWS", 0)
            patch.setattr(wakeup_index, "FEW", 0)
            patch.setattr(standing_cache, "KEEP", 2)
            patch.setattr(standing_cache, "KEEP_REFUSED", 1)
            assert _placed(_all_slices(sliced, event, model.now)) == placed
        for key, _ in placed:
            model.phases[key] = "flying"
        assert {key: sliced.state_of(key) in WAITS for key in model.phases} == {
            key: whole.state_of(key) in WAITS for key in model.phases
        }


def _placed(actions: list[Action]) -> list[tuple[str, Placement]]:
    return [(action.request.key, action.placement) for action in actions if isinstance(action, Place)]


def _all_slices(engine: Engine, event: Event, now: float) -> list[Action]:
    actions = engine.handle(event, now)
    while engine.deadline(now) == now:
        actions += engine.handle(Tick(), now)
    return actions
