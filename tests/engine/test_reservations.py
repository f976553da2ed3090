"""Places kept for requests that do not fit: who gets them, who may use them in between, and what is said."""

from typing import Any

import pytest

from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.engine.events import NodeRemoved, NodeUpdated, Place, PlacementObserved, RequestAdded
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from tests.support.builders import node, request, whole
from tests.support.kept_world import World


def half_full(**rules: Any) -> World:
    """Return one node of which five GPUs are held for 100 s and three are free, and another that is full and
    says nothing."""
    world = World(node("a", 8), node("b", 8), rules=ReservationRules(4, 1, **rules))
    assert world.ask("silent", 8, labels={})
    first = world.running["silent"].node
    assert world.ask("five", 5, run_s=100.0)
    assert world.running["five"].node != first
    return world


def test_the_first_that_does_not_fit_keeps_the_place_where_it_can_start_soonest() -> None:
    world = half_full()
    assert not world.ask("big", 8)
    place = world.running["five"].node
    assert world.kept == {"big": (100.0, {place})}
    assert world.said["big"].endswith(
        f"; waits: its place on {place} is kept from 1100 s (soonest by what 1 other declared)"
    )
    why = world.engine.why("big")
    assert why is not None
    assert why.message == world.said["big"]


@pytest.mark.parametrize(
    ("run_s", "begins"),
    [
        pytest.param(90.0, True, id="ends before the place begins"),
        pytest.param(100.0, True, id="ends as it begins"),
        pytest.param(101.0, False, id="ends after"),
        pytest.param(0.0, False, id="declares nothing"),
    ],
)
def test_who_ends_before_runs_in_between(run_s: float, begins: bool) -> None:
    world = half_full()
    world.ask("big", 8)
    assert world.ask("small", 2, run_s=run_s) == begins
    assert world.in_between == ({"small"} if begins else set())


def test_who_may_not_is_told_why() -> None:
    world = half_full(name_of=str.upper, declared="limit")
    world.ask("big", 8)
    place = world.running["five"].node
    world.ask("long", 2, run_s=500.0)
    world.ask("silent-one", 2)
    world.ask("stranger", 2, tenant="other")
    world.ask("too-large", 4, run_s=500.0)
    assert world.said["long"].endswith(f"; would end after 1100 s, when BIG's place on {place} begins")
    assert world.said["silent-one"].endswith(
        f"; declares no limit, and at 1100 s BIG's place on {place} begins"
    )
    assert "another tenant's request" in world.said["stranger"]
    assert "BIG" not in world.said["stranger"] + world.said["too-large"]


def test_requests_of_one_shape_are_told_apart_by_their_run_time() -> None:
    world = half_full()
    world.ask("big", 8)
    assert not world.ask("long", 2, run_s=500.0)
    assert world.ask("short", 2, run_s=50.0)
    assert not world.ask("long-too", 1, run_s=500.0)
    assert world.ask("short-too", 1, run_s=50.0)


def test_the_owner_begins_as_soon_as_its_place_is_free() -> None:
    world = half_full()
    world.ask("big", 8)
    world.ask("small", 2, run_s=90.0)
    world.end("small", after_s=10.0)
    assert "big" not in world.running
    world.end("five", after_s=20.0)
    assert "big" in world.running
    assert world.kept == {}


def test_what_is_free_in_between_goes_to_those_who_wait() -> None:
    world = half_full()
    world.ask("big", 8)
    assert world.ask("first", 3, run_s=60.0)
    assert not world.ask("long", 1, run_s=500.0)
    assert not world.ask("second", 3, run_s=30.0)
    world.end("first", after_s=20.0)
    assert "second" in world.running
    assert "long" not in world.running


def test_who_has_a_higher_priority_is_not_kept_out() -> None:
    world = half_full()
    world.ask("big", 8)
    assert world.ask("urgent", 3, priority=10)
    assert world.in_between == set()


def test_places_elsewhere_are_not_kept_back() -> None:
    world = half_full()
    world.ask("big", 8)
    world.tell(NodeUpdated(node("c", 4)))
    assert world.ask("small", 2)
    assert world.running["small"].node == "c"


def test_the_owner_goes_elsewhere_if_that_is_free_first() -> None:
    world = half_full()
    world.ask("big", 8)
    world.end("silent", after_s=5.0)
    assert "big" in world.running
    assert world.kept == {}
    assert world.ask("small", 3)


def test_a_place_moves_to_where_it_is_free_sooner() -> None:
    world = World(node("a", 8), node("b", 8))
    world.ask("slow", 8, run_s=500.0)
    world.ask("slower", 4, run_s=900.0)
    world.ask("slowest", 4, run_s=1000.0)
    world.ask("big", 8)
    assert world.kept["big"][0] == 500.0
    world.tell(PlacementObserved(world.running["slowest"], ends_at=world.now + 50.0))
    world.tell(PlacementObserved(world.running["slower"], ends_at=world.now + 60.0))
    world.end(after_s=1.0)
    world.tell(RequestAdded(request("tiny", 1, run_s=1.0)))
    world.wait(40.0)
    assert "big" in world.kept


def test_who_runs_longer_than_declared_delays_the_place() -> None:
    world = half_full()
    world.ask("big", 8)
    world.wait(110.0)
    kept_for_s, _ = world.kept["big"]
    assert 0.0 < kept_for_s <= 60.0
    assert [owner for owner, _ in world.engine.late(0.0)] == ["five"]
    world.end("five", after_s=5.0)
    assert "big" in world.running
    assert world.engine.late(0.0) == []


def test_a_node_that_goes_takes_its_place_along() -> None:
    world = half_full()
    world.ask("big", 8)
    world.tell(NodeRemoved(world.running["five"].node))
    world.wait(10.0)
    assert world.kept == {}


def test_an_owner_that_goes_leaves_its_place_to_the_others() -> None:
    world = half_full()
    world.ask("big", 8)
    assert not world.ask("small", 3)
    world.end("big", after_s=1.0)
    assert "small" in world.running
    assert world.engine.counts()["held"] == 3


def test_those_that_come_later_keep_places_as_well() -> None:
    """Also while the first one has none and waits for a hold."""
    world = World(node("a", 8), node("b", 8, model="B"), rules=ReservationRules(4, 1))
    world.ask("silent", 8, models=("B",))
    world.ask("first", 8, models=("B",))
    world.ask("five", 5, run_s=100.0)
    world.wait(20.0)
    world.ask("second", 8)
    world.wait(10.0)
    world.ask("third", 7)
    world.wait(10.0)
    assert "second" in world.kept


def test_no_place_is_kept_for_longer_than_a_day_ahead() -> None:
    """Or two pods could keep a node's free GPUs from all others for a year."""
    world = World(node("a", 8))
    world.ask("endless", 5, run_s=3e7)
    world.ask("big", 8)
    assert world.kept == {}
    assert world.ask("small", 3)


def test_a_gang_keeps_its_places() -> None:
    world = World(node("a", 8), node("b", 8))
    world.ask("one", 5, run_s=100.0)
    world.ask("two", 5, run_s=200.0)
    members: list[Request] = [request(f"m{each}", 8, gang=GangTerms("g", 2)) for each in range(2)]
    world.tell(*map(RequestAdded, members))
    assert world.kept == {"g": (200.0, {"a", "b"})}
    assert "its places on 2 nodes are kept from 1200 s" in world.said["m0"]
    assert not world.ask("long", 3, run_s=300.0)
    assert world.ask("short", 3, run_s=150.0)
    world.end("one", "short", after_s=100.0)
    world.end("two", after_s=50.0)
    assert {"m0", "m1"} <= set(world.running)


def test_a_gang_may_run_in_between() -> None:
    world = half_full()
    world.ask("big", 8)
    for terms, run_s, begins in (GangTerms("long", 2), 500.0, False), (GangTerms("short", 2), 60.0, True):
        keys = [f"{terms.name}{each}" for each in range(2)]
        world.tell(*(RequestAdded(request(key, 1, gang=terms, run_s=run_s)) for key in keys))
        assert all(key in world.running for key in keys) == begins


# --- without declared run times ----------------------------------------------------------------------------


def test_who_waits_long_gets_a_hold_where_most_is_free() -> None:
    world = World(node("a", 8), node("b", 8))
    world.ask("a6", 6)
    world.ask("b4", 4)
    world.ask("b8", 4)
    world.ask("big", 8)
    world.wait(299.0)
    assert world.kept == {}
    world.wait(2.0)
    assert list(world.kept) == ["big"]
    assert "is kept until" in world.said["big"]
    place = world.running["a6"].node
    assert world.kept["big"][1] == {place}
    assert not world.ask("small", 1)
    assert "is kept for big" in world.said["small"]
    world.end("a6", after_s=10.0)
    assert "big" in world.running
    assert "small" not in world.running


def test_a_hold_ends_and_comes_back_for_longer() -> None:
    world = World(node("a", 8))
    world.ask("half", 4)
    world.ask("big", 8)
    lasted = list[float]()
    began: float | None = None
    for _ in range(400):
        world.wait(10.0)
        if world.kept and began is None:
            began = world.now
        elif not world.kept and began is not None:
            lasted.append(world.now - began)
            began = None
    assert lasted[0] == pytest.approx(600.0, abs=20.0)
    assert lasted[1] == pytest.approx(1200.0, abs=20.0)


def test_what_a_hold_kept_is_free_when_it_ends() -> None:
    world = World(node("a", 8))
    world.ask("half", 4)
    world.ask("big", 8)
    world.wait(305.0)
    assert not world.ask("small", 4)
    world.wait(600.0)
    assert "small" in world.running
    assert "kept" not in world.said["big"]


def test_no_more_holds_at_once_than_allowed() -> None:
    world = World(node("a", 8), node("b", 8), rules=ReservationRules(4, holds=1))
    world.ask("x", 4)
    world.ask("y", 5)
    world.ask("big", 8)
    world.ask("big-too", 7)
    world.wait(400.0)
    assert list(world.kept) == ["big"]


def test_what_never_fits_keeps_nothing() -> None:
    world = World(node("a", 8))
    world.ask("one", 4, run_s=100.0)
    world.ask("huge", 9)
    world.wait(400.0)
    assert world.kept == {}


def test_off_keeps_nothing() -> None:
    world = World(node("a", 8), rules=OFF)
    world.ask("one", 4, run_s=100.0)
    world.ask("big", 8)
    world.wait(1000.0)
    assert world.kept == {}
    assert world.ask("small", 4)


def test_after_a_restart_the_observed_ends_count() -> None:
    world = World(node("a", 8))
    world.tell(PlacementObserved(whole("old", "a", 0, 1, 2), ends_at=world.now + 50.0))
    world.ask("big", 8)
    assert world.kept["big"][0] == 50.0
    assert not world.ask("long", 3, run_s=60.0)


def test_preemption_sees_the_cluster_without_places_of_later_turns() -> None:
    world = half_full()
    world.ask("big", 8)
    world.ask("urgent", 8, priority=10)
    place = world.running["five"].node
    assert world.engine.cluster.free_gpus(place) == 0
    assert world.engine.unkept("urgent").free_gpus(place) == 3


def test_place_has_the_mark_only_if_it_was_kept_for_another() -> None:
    world = half_full()
    assert isinstance(Place(request("a"), whole("a", "a")), Place)
    assert world.ask("early", 1, run_s=50.0)
    assert world.in_between == set()
