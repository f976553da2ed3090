"""Quota kept for requests that need much of a full queue: who gets it, who is kept out, and for how long."""

from itertools import pairwise

import pytest

from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.events import QueueRemoved, QueueUpdated, RequestAdded, RoomReady
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from tests.support.builders import node, request
from tests.support.kept_world import World

RULES = ReservationRules(most=4, holds=1, hold_after_s=300.0, hold_s=600.0)


def limited(name: str, gpus: int, parent: str = "", model: str = "*", guaranteed: int = 0) -> QueueTerms:
    return QueueTerms(name, parent, guaranteed={"*": 1000 * guaranteed}, limit={model: 1000 * gpus})


def full(*terms: QueueTerms, queue: str = "ml", rules: ReservationRules = RULES) -> World:
    """Return two nodes of eight, four GPUs in use by as many requests of a queue, and one for four that has
    waited for as long as it takes."""
    world = World(node("a", 8, model="H100"), node("b", 8, model="H100"), rules=rules)
    world.tell(*map(QueueUpdated, terms))
    for at in range(4):
        assert world.ask(f"small-{at}", 1, queue=queue)
    assert not world.ask("big", 4, queue="ml")
    world.wait(301.0)
    return world


@pytest.mark.parametrize(
    ("terms", "queue"),
    [
        pytest.param([limited("ml", 4)], "ml", id="of its own queue"),
        pytest.param([limited("ml", 4, model="H100")], "ml", id="of one model"),
        pytest.param(
            [limited("org", 4), limited("ml", 4, "org"), QueueTerms("web", "org")], "web", id="above it"
        ),
    ],
)
def test_what_ends_is_kept_for_the_one_that_has_waited_long(terms: list[QueueTerms], queue: str) -> None:
    world = full(*terms, queue=queue)
    for at in range(4):
        world.end(f"small-{at}", after_s=10.0)
        assert world.ask(f"late-{at}", 1, queue=queue) is False
    assert "big" in world.running


def test_who_is_kept_out_is_told_why() -> None:
    world = full(limited("ml", 4))
    world.end("small-0")
    world.ask("late", 1, queue="ml")
    assert world.said["late"] == "queue ml: 3 of 4 GPUs used, 4 kept for one that waits longer"
    assert world.engine.is_kept_out("late")
    assert not world.engine.is_kept_out("big")


def test_owner_is_told_as_long_as_it_has_its_hold() -> None:
    world = full(limited("ml", 4))
    told = "waits: what it needs of its queue is kept for it until 1900 s"
    assert world.said["big"] == f"queue ml: 4 of 4 GPUs used; {told}"
    world.end("small-0")
    why = world.engine.why("big")
    assert why is not None
    assert why.message == f"queue ml: 3 of 4 GPUs used; {told}"
    assert world.engine.quota_holds() == 1
    world.wait(600.0)
    assert world.said["big"] == "queue ml: 3 of 4 GPUs used"
    assert world.engine.quota_holds() == 0


def test_small_ones_begin_until_then() -> None:
    world = World(node("a", 8), rules=RULES)
    world.tell(QueueUpdated(limited("ml", 4)))
    for at in range(4):
        world.ask(f"small-{at}", 1, queue="ml")
    world.ask("big", 4, queue="ml")
    world.end("small-0", after_s=200.0)
    assert world.ask("late", 1, queue="ml")


def test_what_it_does_not_need_is_not_kept() -> None:
    world = World(node("a", 8), node("b", 8), rules=RULES)
    world.tell(QueueUpdated(limited("ml", 10)))
    for at in range(9):
        assert world.ask(f"small-{at}", 1, queue="ml")
    world.ask("big", 4, queue="ml")
    world.wait(301.0)
    world.end("small-0", "small-1", "small-2", "small-3")
    assert "big" in world.running
    assert world.ask("late", 1, queue="ml")


def test_other_queues_are_not_kept_out() -> None:
    world = full(limited("ml", 4), limited("web", 8))
    assert world.ask("other", 6, queue="web")
    assert world.ask("in no queue", 2)


def test_higher_priority_goes_before() -> None:
    world = full(limited("ml", 4))
    world.end("small-0")
    assert world.ask("urgent", 1, queue="ml", priority=1)


def test_queue_whose_turn_comes_first_goes_before() -> None:
    """It uses less than it is guaranteed, and the one that waits would borrow."""
    world = full(limited("org", 4), limited("ml", 4, "org"), limited("web", 4, "org", guaranteed=2))
    world.end("small-0")
    assert not world.ask("late", 1, queue="ml")
    assert world.ask("guaranteed", 1, queue="web")


def test_one_for_which_room_was_made_goes_before() -> None:
    """Or pods would be evicted for it in vain."""
    world = full(limited("ml", 4))
    world.end("small-0")
    assert not world.ask("preempts", 1, queue="ml")
    world.tell(RoomReady(("room/preempts",), "preempts"))
    assert "preempts" in world.running


def test_hold_ends_and_comes_back_for_longer() -> None:
    """Small ones begin in between."""
    world = full(limited("ml", 4))
    world.end("small-0")
    changed, kept_out = [world.now], True
    for number in range(400):
        if world.ask(f"late-{number}", 1, queue="ml") is kept_out:
            changed.append(world.now)
            kept_out = not kept_out
        world.end(f"late-{number}", after_s=10.0)
    lasted = [later - earlier for earlier, later in pairwise(changed)]
    assert lasted[:4] == pytest.approx([600.0, 600.0, 1200.0, 1200.0], abs=25.0)


@pytest.mark.parametrize(
    "gpus",
    [pytest.param(5, id="more than its queue may use"), pytest.param(9, id="more than a node has")],
)
def test_what_could_never_run_keeps_nothing(gpus: int) -> None:
    world = World(node("a", 8), node("b", 8), rules=RULES)
    world.tell(QueueUpdated(limited("ml", 4 if gpus == 5 else 16)))
    for at in range(4 if gpus == 5 else 12):
        assert world.ask(f"small-{at}", 1, queue="ml")
    world.ask("big", gpus, queue="ml")
    world.wait(400.0)
    world.end("small-0")
    assert world.ask("late", 1, queue="ml")


def test_many_that_could_never_run_keep_no_other_from_its_hold() -> None:
    world = World(node("a", 8), node("b", 8), rules=RULES)
    world.tell(QueueUpdated(limited("ml", 4)))
    for at in range(4):
        world.ask(f"small-{at}", 1, queue="ml")
    for at in range(50):
        world.ask(f"huge-{at}", 5 + at, queue="ml", priority=1)
    world.ask("big", 4, queue="ml")
    world.wait(320.0)
    for at in range(4):
        world.end(f"small-{at}")
        assert not world.ask(f"late-{at}", 1, queue="ml")
    assert "big" in world.running


def test_later_one_with_a_hold_as_well_does_not_keep_out_the_first() -> None:
    world = full(limited("ml", 4), rules=ReservationRules(most=4, holds=2, hold_after_s=300.0, hold_s=6000.0))
    world.ask("late", 1, queue="ml")
    world.wait(400.0)
    assert world.engine.quota_holds() == 2
    world.end(*(f"small-{at}" for at in range(4)))
    assert "big" in world.running
    world.end("big")
    assert "late" in world.running


def test_owner_that_goes_leaves_its_hold() -> None:
    world = full(limited("ml", 4))
    world.end("small-0")
    world.ask("late", 1, queue="ml")
    world.end("big")
    world.wait(0.1)
    assert "late" in world.running


def test_queue_that_is_removed_leaves_nothing_behind() -> None:
    world = full(limited("ml", 4))
    world.tell(QueueRemoved("ml"))
    world.end("big", *(f"small-{at}" for at in range(4)))
    world.tell(QueueUpdated(limited("ml", 4)))
    assert world.ask("all", 4, queue="ml")


def test_off_keeps_nothing() -> None:
    world = full(limited("ml", 4), rules=OFF)
    world.end("small-0")
    assert world.ask("late", 1, queue="ml")


def test_gang_gets_quota_for_those_that_must_start() -> None:
    world = World(node("a", 8), node("b", 8), rules=RULES)
    world.tell(QueueUpdated(limited("ml", 4)))
    for at in range(4):
        world.ask(f"small-{at}", 1, queue="ml")
    terms = GangTerms("g", 2)
    world.tell(*(RequestAdded(request(f"g-{each}", 2, gang=terms, queue="ml")) for each in range(2)))
    world.wait(301.0)
    for at in range(4):
        world.end(f"small-{at}", after_s=10.0)
        world.ask(f"late-{at}", 1, queue="ml")
    world.wait(60.0)
    assert {"g-0", "g-1"} == set(world.running)
