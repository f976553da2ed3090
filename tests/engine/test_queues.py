"""Queues with quota in the engine: what counts."""

from random import Random

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request


def test_placements_count_in_their_queue_until_they_are_released() -> None:
    engine = Engine(Registry().policy_of, Random(1))

    def used() -> int:
        return engine.queue_usages()["ml"].used["*"]

    engine.handle(events.QueueUpdated(QueueTerms("ml")), 0.0)
    engine.handle(events.PlacementObserved(Placement("seen", "a", devices=(0, 1)), queue="ml"), 0.0)
    assert used() == 2000, "its node is not known yet"
    engine.handle(events.NodeUpdated(node("a", 8, model="L4")), 0.0)
    assert engine.queue_usages()["ml"].used == {"*": 2000, "L4": 2000}
    engine.handle(events.RequestAdded(request("decided", 2, queue="ml")), 0.0)
    assert used() == 4000, "in flight"
    engine.handle(events.Placed("decided"), 0.0)
    engine.handle(events.RequestAdded(request("large", 8, queue="ml")), 0.0)
    assert (used(), engine.queue_usages()["ml"].pending) == (4000, 1)
    engine.handle(events.RequestRemoved("seen"), 0.0)
    assert used() == 2000
    engine.handle(events.PlacementObserved(Placement("decided", "a", devices=(6, 7))), 0.0)
    assert used() == 0, "what is observed now is in no queue"
