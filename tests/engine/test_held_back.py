"""Thousands of different requests wait for room in their queue: what ends costs a look at few of them."""

import gc
import tracemalloc
from collections import Counter
from random import Random
from typing import Any

import pytest

from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.quota import Quota
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from gpu_orchestrator.engine.turns import Turns
from gpu_orchestrator.policies.registry import Registry

DIFFERENT = 1000
MOST_LOOKS = 40
"""Of one event: of the queue that makes room and those above it, whatever waits there."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often a request is judged by the quota, and its turn worked out."""
    found: Counter[str] = Counter()

    def counted(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            found[name] += 1
            return real(*args, **more)

        monkeypatch.setattr(owner, name, call)

    for each in ("judge", "full_at"):
        counted(Quota, each)
    counted(Turns, "of")
    return found


class Yard:
    """A hundred GPUs. What is placed counts at once."""

    def __init__(self, *terms: QueueTerms, rules: ReservationRules = OFF) -> None:
        self.engine = Engine(Registry().policy_of, Random(1), reservations=rules)
        self.now = 0.0
        nodes = (
            node(f"n{at}", [Device(each, model="H100", memory_mib=81_920) for each in range(20)])
            for at in range(5)
        )
        self.tell(*map(events.NodeUpdated, nodes), *map(events.QueueUpdated, terms))

    def tell(self, *batch: events.Event) -> list[str]:
        """Return what began."""
        self.now += 0.1
        placed = [each for each in self.engine.handle_all(batch, self.now) if isinstance(each, events.Place)]
        keys = [each.request.key for each in placed]
        return keys + (self.tell(*map(events.Placed, keys)) if keys else [])

    def run(self, queue: str, count: int) -> list[str]:
        keys = [f"run-{queue}-{at}" for at in range(count)]
        assert self.tell(*(added(key, queue, Shape()) for key in keys)) == keys
        return keys

    def wait(self, queue: str, **shape: Any) -> None:
        asked = (Shape(memory_mib=1 + at, **shape) for at in range(DIFFERENT))
        assert self.tell(*(added(f"wait-{queue}-{at}", queue, each) for at, each in enumerate(asked))) == []

    def end(self, key: str) -> list[str]:
        return self.tell(events.RequestRemoved(key))


def added(key: str, queue: str, shape: Shape) -> events.RequestAdded:
    return events.RequestAdded(Request(key, shape, queue=queue))


@pytest.mark.parametrize(
    ("terms", "shape"),
    [
        pytest.param({"limit": {"*": 8000}}, {}, id="a limit"),
        pytest.param({"limit": {"*": 8000}, "guaranteed": {"*": 8000}}, {}, id="all of it guaranteed"),
        pytest.param({"limit": {"H100": 8000}}, {"models": ("H100",)}, id="a limit for one model"),
        pytest.param({"limit": {"H100": 8000}}, {}, id="any model, and one is there"),
    ],
)
@pytest.mark.parametrize("gpus", [1, 8])
def test_end_in_a_full_queue_looks_at_few(
    looks: Counter[str], terms: dict[str, Any], shape: dict[str, Any], gpus: int
) -> None:
    yard = Yard(QueueTerms("ml", **terms))
    running = yard.run("ml", 8)
    yard.wait("ml", gpus=gpus, **shape)
    for number, key in enumerate(running[:4]):
        looks.clear()
        assert yard.end(key) == ([f"wait-ml-{number}"] if gpus == 1 else [])
        assert looks.total() <= MOST_LOOKS, looks


def test_queues_that_are_full_in_turn_are_looked_at_few_times(looks: Counter[str]) -> None:
    """Now the queue above has no room, now the queue itself: all that wait there have the next reason."""
    yard = Yard(
        QueueTerms("org", limit={"*": 6000}),
        QueueTerms("a", "org", limit={"*": 4000}),
        QueueTerms("b", "org", limit={"*": 4000}),
    )
    running = [*yard.run("a", 4), *yard.run("b", 2)]
    yard.wait("a")
    yard.wait("b")
    rng = Random(5)
    for _ in range(40):
        looks.clear()
        began = yard.end(running.pop(rng.randrange(len(running))))
        assert len(began) == 1
        assert looks.total() <= MOST_LOOKS, looks
        running += began


def test_queue_that_is_changed_looks_at_few(looks: Counter[str]) -> None:
    yard = Yard(QueueTerms("ml", limit={"*": 8000}))
    yard.run("ml", 8)
    yard.wait("ml")
    looks.clear()
    assert yard.tell(events.QueueUpdated(QueueTerms("ml", weight=2.0, limit={"*": 8000}))) == []
    assert looks.total() <= MOST_LOOKS, looks


def test_what_ends_in_another_queue_looks_at_none(looks: Counter[str]) -> None:
    yard = Yard(QueueTerms("ml", limit={"*": 8000}), QueueTerms("web", limit={"*": 8000}))
    yard.run("ml", 8)
    (first, *_) = yard.run("web", 8)
    yard.wait("ml")
    looks.clear()
    assert yard.end(first) == []
    assert looks.total() <= 4, looks


def test_first_in_turn_begins_whatever_it_asks_for() -> None:
    """Also when it came last, and to those that are alike."""
    yard = Yard(QueueTerms("ml", limit={"*": 2000}))
    running = yard.run("ml", 2)
    yard.wait("ml")
    shapes = Shape(memory_mib=5000), Shape(memory_mib=1), Shape(exclusive=False, milli=900)
    for number, shape in enumerate(shapes):
        yard.tell(events.RequestAdded(Request(f"urgent-{number}", shape, 1 + number, queue="ml")))
    assert yard.end(running[0]) == ["urgent-2"]
    assert yard.end(running[1]) == ["urgent-1"]
    assert yard.end("urgent-1") == ["urgent-0"]
    yard.tell(events.RequestRemoved("wait-ml-0"))
    assert yard.end("urgent-0") == ["wait-ml-1"]


def test_request_that_is_refused_again_is_still_first() -> None:
    """Its line was dropped meanwhile, and another one has the same turn then."""
    yard = Yard(QueueTerms("ml", limit={"H100": 2000}))
    yard.run("ml", 2)
    assert yard.tell(events.NodeUpdated(node("other", [Device(0, model="L4")]))) == []
    yard.run("", 99)
    shapes = {"first": Shape(gpus=2), "second": Shape(gpus=2, memory_mib=1)}
    assert yard.tell(*(added(key, "ml", shape) for key, shape in shapes.items())) == []
    assert yard.tell(events.RoomReady(("room",), "first")) == []
    assert yard.tell(events.QueueUpdated(QueueTerms("ml", limit={"H100": 4000}))) == []
    assert yard.tell(*(events.RequestRemoved(f"run--{at}") for at in range(80))) == ["first"]


def test_while_quota_is_kept_for_one_few_are_judged(looks: Counter[str]) -> None:
    """Each asks for another part of a GPU, and what becomes free would do for all but is kept."""
    rules = ReservationRules(most=4, holds=1, hold_after_s=300.0, hold_s=6000.0)
    yard = Yard(QueueTerms("ml", limit={"*": 8000}), rules=rules)
    running = yard.run("ml", 8)
    yard.tell(added("large", "ml", Shape(gpus=8)))
    shapes = (Shape(exclusive=False, milli=1 + at % 999, memory_mib=1 + at) for at in range(DIFFERENT))
    yard.tell(*(added(f"small-{at}", "ml", shape) for at, shape in enumerate(shapes)))
    yard.now += 310.0
    assert yard.tell(events.Tick()) == []
    assert yard.engine.quota_holds() == 1
    for key in running[:7]:
        looks.clear()
        assert yard.end(key) == []
        assert looks["judge"] + looks["full_at"] <= MOST_LOOKS, looks
    assert yard.end(running[7]) == ["large"]


def test_requests_that_come_and_go_leave_nothing_behind() -> None:
    """In a queue that stays full, nothing is looked at that could be dropped then."""
    yard = Yard(QueueTerms("ml", limit={"*": 2000}))
    yard.run("ml", 2)
    yard.tell(added("waits", "ml", Shape()))

    def come_and_go(times: int) -> int:
        for number in range(times):
            urgent = Request("urgent", Shape(memory_mib=1 + number % 3), 5, queue="ml")
            yard.tell(events.RequestAdded(urgent))
            yard.tell(events.RequestRemoved("urgent"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = come_and_go(2000)
    grown = come_and_go(4000) - before
    tracemalloc.stop()
    assert grown < 100_000
