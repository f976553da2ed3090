"""Places kept for requests in queues with quota: for what their queue has room for, as long as it has."""

import pytest

from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.events import Event, NodeUpdated, QueueRemoved, QueueUpdated, RequestAdded
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from tests.support.builders import node, request
from tests.support.kept_world import World


def limited(name: str, **gpus: int) -> QueueTerms:
    return QueueTerms(
        name, limit={("*" if model == "all" else model): 1000 * most for model, most in gpus.items()}
    )


def half_full(*terms: QueueTerms) -> World:
    """Return one node with five GPUs held for 100 s and three free, and a request for eight in queue `ml`."""
    world = World(node("a", 8, model="H100"), rules=ReservationRules(4, 1))
    world.tell(*map(QueueUpdated, terms))
    assert world.ask("five", 5, run_s=100.0)
    assert not world.ask("big", 8, queue="ml")
    return world


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(QueueUpdated(limited("ml", all=4)), id="lower limit"),
        pytest.param(QueueUpdated(limited("ml", H100=4)), id="lower limit for the model"),
        pytest.param(QueueUpdated(QueueTerms("ml", "nobody")), id="parent that does not exist"),
        pytest.param(QueueRemoved("ml"), id="removed"),
    ],
)
def test_place_is_given_up_when_the_queue_has_no_room(change: Event) -> None:
    world = half_full(limited("ml", all=8))
    assert "big" in world.kept
    assert not world.ask("silent", 3)
    world.tell(change)
    world.wait(0.1)
    assert world.kept == {}
    assert "silent" in world.running


def test_place_of_a_model_that_the_queue_may_not_use_any_more_is_given_up() -> None:
    world = half_full(limited("ml", all=8))
    world.tell(NodeUpdated(node("b", 4, model="L4")))
    assert world.kept["big"][1] == {"a"}
    world.tell(QueueUpdated(limited("ml", H100=4)))
    world.wait(0.1)
    assert world.kept == {}
    assert world.ask("silent", 3)


def gang(world: World, name: str, members: int, gpus: int, queue: str) -> None:
    terms = GangTerms(name, members)
    keys = [f"{name}-{each}" for each in range(members)]
    world.tell(*(RequestAdded(request(key, gpus, gang=terms, queue=queue)) for key in keys))


def test_gang_whose_queue_has_no_room_for_all_of_it_keeps_nothing() -> None:
    world = World(node("a", 8), node("b", 8))
    world.tell(QueueUpdated(limited("ml", all=8)))
    world.ask("five", 5, run_s=100.0)
    gang(world, "g", 2, 8, "ml")
    world.wait(10.0)
    assert "queue ml: 16 GPUs asked for" in world.said["g-0"]
    assert world.kept == {}
    assert world.ask("silent", 8)


def test_gang_keeps_places_of_models_that_its_queue_may_use() -> None:
    world = World(node("a", 8, model="H100"), node("b", 8, model="L4"), node("c", 8, model="L4"))
    world.tell(QueueUpdated(limited("ml", H100=0)))
    assert world.ask("x", 8, models=("H100",), run_s=100.0)
    assert world.ask("y", 8, models=("L4",), run_s=200.0)
    assert world.ask("z", 8, models=("L4",), run_s=300.0)
    gang(world, "g", 1, 8, "ml")
    world.wait(1.0)
    assert world.kept == {"g": (199.0, {world.running["y"].node})}


def test_gang_gives_its_places_up_when_its_queue_has_no_room_for_all() -> None:
    world = World(node("a", 8), node("b", 8))
    world.tell(QueueUpdated(limited("ml", all=16)))
    world.ask("one", 5, run_s=100.0)
    world.ask("two", 5, run_s=100.0)
    gang(world, "g", 2, 8, "ml")
    assert list(world.kept) == ["g"]
    world.tell(QueueUpdated(limited("ml", all=8)))
    world.wait(0.1)
    assert world.kept == {}
    assert world.ask("silent", 3)


def test_gang_keeps_as_many_places_as_its_queue_has_room_for() -> None:
    world = World(node("a", 8), node("b", 8))
    world.tell(QueueUpdated(limited("ml", all=8)))
    world.ask("one", 5, run_s=100.0)
    world.ask("two", 5, run_s=200.0)
    terms = GangTerms("g", 1)
    world.tell(*(RequestAdded(request(f"g-{each}", 8, gang=terms, queue="ml")) for each in range(2)))
    world.wait(1.0)
    assert world.kept == {"g": (99.0, {world.running["one"].node})}


def test_place_is_looked_for_when_the_queue_may_use_more() -> None:
    world = half_full(limited("ml", all=4))
    assert world.kept == {}
    world.wait(10.0)
    world.tell(QueueUpdated(limited("ml", all=8)))
    world.wait(10.0)
    assert list(world.kept) == ["big"]
