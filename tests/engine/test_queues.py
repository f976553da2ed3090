"""Queues with quota in the engine: what counts, who must wait, and who is next."""

from random import Random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.quota import Quota, Verdict
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


def engine_with(*terms: QueueTerms, gpus: int = 8, model: str = "L4") -> Engine:
    engine = Engine(Registry().policy_of, Random(1))
    engine.handle(events.NodeUpdated(node("a", gpus, model=model)), 0.0)
    engine.handle_all([events.QueueUpdated(each) for each in terms], 0.0)
    return engine


def limited(name: str, gpus: int, parent: str = "") -> QueueTerms:
    return QueueTerms(name, parent, limit={"*": gpus * 1000})


def add(engine: Engine, key: str, gpus: int, queue: str, now: float = 0.0, **more: Any) -> list[str]:
    return told(engine.handle(events.RequestAdded(request(key, gpus, queue=queue, **more)), now))


def told(actions: list[events.Action]) -> list[str]:
    """Return what was placed, by key, and what was refused, by its message."""
    said: list[str] = []
    for action in actions:
        match action:
            case events.PlaceGang(_, places):
                said += [each.request.key for each in places]
            case events.Place():
                said.append(action.request.key)
            case events.Refuse(_, refusal):
                said.append(refusal.message)
    return said


def end(engine: Engine, key: str, now: float = 1.0) -> list[str]:
    engine.handle(events.Placed(key), now)
    return told(engine.handle(events.RequestRemoved(key), now))


def test_request_waits_until_its_queue_has_room() -> None:
    engine = engine_with(limited("ml", 4))
    assert add(engine, "first", 4, "ml") == ["first"]
    assert add(engine, "second", 2, "ml") == ["queue ml: 4 of 4 GPUs used"]
    assert add(engine, "in no queue", 2, "") == ["in no queue"]
    why = engine.why("second")
    assert (engine.state_of("second"), why and why.message) == ("parked", "queue ml: 4 of 4 GPUs used")
    assert engine.deadline(0.0) is None, "nothing to do until an event comes"
    assert end(engine, "first") == ["second"]


def test_queue_above_makes_wait_and_wakes() -> None:
    engine = engine_with(limited("org", 4), limited("a", 4, "org"), limited("b", 4, "org"))
    assert add(engine, "in a", 4, "a") == ["in a"]
    assert add(engine, "in b", 2, "b") == ["queue org: 4 of 4 GPUs used, 4 borrowed by a"]
    assert end(engine, "in a") == ["in b"]


def test_small_request_goes_where_a_large_one_of_its_queue_has_no_room() -> None:
    engine = engine_with(limited("ml", 4))
    add(engine, "first", 3, "ml")
    assert add(engine, "large", 4, "ml") == ["queue ml: 3 of 4 GPUs used"]
    assert add(engine, "small", 1, "ml") == ["small"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(events.QueueUpdated(limited("ml", 8)), id="higher limit"),
        pytest.param(events.QueueUpdated(QueueTerms("ml")), id="no limit"),
    ],
)
def test_terms_that_allow_more_wake(change: events.Event) -> None:
    engine = engine_with(limited("ml", 4))
    add(engine, "first", 4, "ml")
    add(engine, "second", 4, "ml")
    assert told(engine.handle(change, 1.0)) == ["second"]


def test_queue_that_is_removed_lets_its_requests_wait_until_it_is_there_again() -> None:
    engine = engine_with(limited("ml", 4))
    engine.handle(events.QueueRemoved("ml"), 0.0)
    assert add(engine, "r", 1, "ml") == ["queue ml: does not exist"]
    assert told(engine.handle(events.QueueUpdated(limited("ml", 4)), 1.0)) == ["r"]


def test_request_goes_to_the_models_that_its_queue_may_use() -> None:
    engine = engine_with(QueueTerms("ml", limit={"H100": 0}), model="H100")
    engine.handle(events.NodeUpdated(node("b", 2, model="L4")), 0.0)
    assert add(engine, "first", 2, "ml") == ["first"]
    assert engine.cluster.held_on("b").keys() == {"first"}
    (said,) = add(engine, "second", 2, "ml")
    assert said.startswith("queue ml: has room on L4 only; 0/2 nodes fit: ")
    assert told(engine.handle(events.QueueUpdated(QueueTerms("ml", limit={"H100": 2000})), 1.0)) == ["second"]
    assert engine.cluster.held_on("a").keys() == {"second"}


def test_whole_gang_must_have_room() -> None:
    engine = engine_with(limited("ml", 4))
    add(engine, "first", 2, "ml")
    terms = GangTerms("g", 3)
    said = [each for number in range(3) for each in add(engine, f"m{number}", 1, "ml", gang=terms)]
    assert said == ["gang g: queue ml: 2 of 4 GPUs used"] * 3
    assert end(engine, "first", 20.0) == ["m0", "m1", "m2"]


def test_as_many_of_a_gang_start_as_have_room() -> None:
    engine = engine_with(limited("ml", 3))
    terms = GangTerms("g", 2)
    batch = [events.RequestAdded(request(f"m{at}", 1, queue="ml", gang=terms)) for at in range(5)]
    assert told(engine.handle_all(batch, 0.0))[:3] == ["m0", "m1", "m2"]


def test_gang_in_two_queues_is_refused() -> None:
    engine = engine_with(limited("ml", 4), limited("web", 4))
    terms = GangTerms("g", 2)
    add(engine, "m0", 1, "ml", gang=terms)
    assert set(add(engine, "m1", 1, "web", gang=terms)) == {
        "gang g: its members are in 2 queues; give all the same"
    }


def test_release_in_one_queue_does_not_look_at_a_thousand_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"q{number}" for number in range(1000)]
    engine = engine_with(*(limited(name, 1) for name in names), gpus=2)
    engine.handle_all([events.QueueUpdated(limited(name, 0)) for name in names[1:]], 0.0)
    for number, name in enumerate(names):
        add(engine, f"r{number}", 1, name)
        add(engine, f"s{number}", 1, name)
    judged = 0
    judge = Quota.judge

    def counted(quota: Quota, asked: Request) -> Verdict:
        nonlocal judged
        judged += 1
        return judge(quota, asked)

    monkeypatch.setattr(Quota, "judge", counted)
    assert end(engine, "r0") == ["s0"]
    assert judged <= 4


def test_many_that_wait_for_one_queue_above_are_woken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each release would cost as much as all that wait."""
    names = [f"q{number}" for number in range(300)]
    engine = engine_with(limited("org", 1), *(limited(name, 9, "org") for name in names))
    for number, name in enumerate(names):
        add(engine, f"r{number}", 1, name)
    judged = 0
    judge = Quota.judge

    def counted(quota: Quota, asked: Request) -> Verdict:
        nonlocal judged
        judged += 1
        return judge(quota, asked)

    monkeypatch.setattr(Quota, "judge", counted)
    at = "r0"
    for number in range(100):
        (at,) = end(engine, at, float(number))
    assert judged <= 100 * 4


def test_what_runs_counts_as_the_model_that_its_node_says_later() -> None:
    """A device plugin counts GPUs, and the agent that knows their model comes later."""
    engine = engine_with(QueueTerms("ml", limit={"H100": 4000}), model="")
    assert add(engine, "first", 4, "ml") == ["first"]
    engine.handle(events.NodeUpdated(node("a", 8, model="H100")), 0.0)
    assert engine.queue_usages()["ml"].used == {"*": 4000, "H100": 4000}
    assert add(engine, "second", 1, "ml") == ["queue ml: 4 of 4 H100 used"]


def test_new_model_of_a_known_node_wakes() -> None:
    engine = engine_with(QueueTerms("ml", limit={"H100": 0, "": 0}), model="H100")
    assert add(engine, "first", 1, "ml") == ["queue ml: 1 H100 asked for, and it may use 0 at most"]
    assert told(engine.handle(events.NodeUpdated(node("a", 8, model="L4")), 1.0)) == ["first"]


def test_device_that_is_not_reported_any_more_counts_as_before() -> None:
    engine = engine_with(QueueTerms("ml", limit={"H100": 4000}), gpus=4, model="H100")
    add(engine, "first", 4, "ml")
    engine.handle(events.NodeUpdated(node("a", 3, model="H100")), 0.0)
    engine.handle(events.NodeUpdated(node("a", 3, model="L4")), 0.0)
    assert engine.queue_usages()["ml"].used == {"*": 4000, "H100": 4000}
