"""Parked requests get what becomes free as if all of them were decided again, in turn, at every event."""

from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import turns, unschedulable
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Event,
    LimitChanged,
    NodeRemoved,
    NodeUpdated,
    Place,
    Placed,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.order import FairBands, Order, PriorityThenTime
from gpu_orchestrator.policies.registry import Registry
from tests.support.examples import cases
from tests.support.generators import ALLOCATORS, NAMES, STRATEGIES, a_node, a_shape

REGISTRY = Registry()
Found = list[tuple[str, Placement]]


@dataclass
class Naive:
    """Decides every waiting request after every event: no groups, no index, no waves."""

    order: Order
    cache: Cache = field(default_factory=Cache)
    share: FairShare = field(default_factory=FairShare)
    waiting: dict[str, tuple[Request, float, int]] = field(default_factory=dict)
    rng: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        self._numbers = count()

    def handle(self, event: Event, now: float) -> Found:
        self.share.pass_time(now)
        match event:
            case NodeUpdated(node):
                self.cache.set_node(node)
            case NodeRemoved(name):
                self.cache.remove_node(name)
            case RequestAdded(request):
                self.waiting[request.key] = request, now, next(self._numbers)
                self.share.joins(self.order.flow(request))
            case RequestRemoved(key):
                if key in self.waiting:
                    self.share.leaves(self.order.flow(self.waiting.pop(key)[0]))
                else:
                    self.share.let_go(key)
                    self.cache.release(key)
            case LimitChanged(flow, most):
                self.share.allow(flow, most)
            case _:
                pass
        found: Found = []
        while (placement := self._place_first()) is not None:
            found.append((placement.key, placement))
        return found

    def _place_first(self) -> Placement | None:
        for key in sorted(self.waiting, key=self._turn):
            request, order = self.waiting[key][0], self.order
            flow, cost = order.flow(request), order.cost(request)
            if self.share.is_full(flow):
                continue
            answer = decide(request, self.cache.cluster, REGISTRY.policy_of(request), self.rng)
            if isinstance(answer, Placement):
                self.cache.assume(answer)
                del self.waiting[key]
                self.share.leaves(flow)
                self.share.charge(flow, cost)
                self.share.take(key, flow, cost)
                return answer
        return None

    def _turn(self, key: str) -> tuple[object, ...]:
        request, since, number = self.waiting[key]
        flow = self.order.flow(request)
        rank = self.order.rank(request, since)
        return -self.order.lane(request), self.share.start(flow), flow, rank, number


@cases(150)
@given(
    seed=st.integers(0, 2**32),
    length=st.integers(1, 60),
    wave=st.sampled_from([1, 512]),
    few=st.sampled_from([0, 8]),
    per_call=st.sampled_from([1, 1000]),
    order=st.sampled_from([PriorityThenTime(), FairBands()]),
)
def test_freed_places_go_to_whom_deciding_everybody_again_would_give_them(
    seed: int, length: int, wave: int, few: int, per_call: int, order: Order
) -> None:
    rng, naive = Random(seed), Naive(order)
    engine = Engine(REGISTRY.policy_of, Random(1), order=order, max_decisions=per_call)
    shapes = [a_shape(rng) for _ in range(12)]
    now, held = 0.0, list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unschedulable, "WAVE", wave)
        patch.setattr(turns, "FEW", few)
        patch.setattr(turns, "FEW_FLOWS", few)
        for number in range(length):
            now += rng.choice([0.0, 0.3, 5.0])
            event = _some_event(rng, [*naive.waiting, *held], shapes, number)
            if isinstance(event, RequestRemoved) and event.key in held:
                held.remove(event.key)
            expected = naive.handle(event, now)
            assert _settled(engine, event, now) == expected
            held += [key for key, _ in expected]
    assert all(engine.state_of(key) in ("active", "parked") for key in naive.waiting)


def _some_event(rng: Random, known: list[str], shapes: list, number: int) -> Event:  # type: ignore[type-arg]
    match rng.choice("nnxaaaaaaggggl"):
        case "n":
            return NodeUpdated(a_node(rng, rng.choice(NAMES)))
        case "x":
            return NodeRemoved(rng.choice(NAMES))
        case "g" if known:
            return RequestRemoved(rng.choice(known))
        case "l":
            return LimitChanged(rng.choice("uvw"), rng.choice([None, 0, 1, 2]))
        case _:
            return RequestAdded(
                Request(
                    f"r{number}",
                    rng.choice(shapes),
                    priority=rng.choice([0, 50, 80, 100]),
                    tenant=rng.choice("uvw"),
                    strategy=rng.choice(STRATEGIES),
                    allocator=rng.choice(ALLOCATORS),
                )
            )


def _settled(engine: Engine, event: Event, now: float) -> Found:
    """Hand over the event, confirm every placement at once, and go on until the engine waits for an event."""
    found, left = Found(), [event]
    while left or engine.deadline(now) == now:
        for action in engine.handle(left.pop(0) if left else Tick(), now):
            if isinstance(action, Place):
                found.append((action.request.key, action.placement))
                left.append(Placed(action.request.key))
    return found
