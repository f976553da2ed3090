"""Gangs in the engine: members come one by one, get places together, or wait together."""

import random
from dataclasses import replace
from typing import Any

from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    LimitChanged,
    MemberObserved,
    NodeUpdated,
    Place,
    Placed,
    PlaceFailed,
    PlaceGang,
    PlacementObserved,
    Refuse,
    RequestAdded,
    RequestRemoved,
    RoomReady,
    Tick,
)
from gpu_orchestrator.engine.gang_marks import MARKED
from gpu_orchestrator.engine.gang_members import MOST_KINDS, PartlyStarted
from gpu_orchestrator.engine.gangs import PATIENCE_S, STEPS_PER_S
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request, whole


class World:
    def __init__(self, *nodes: Node, **options: Any) -> None:
        self.engine = Engine(Registry().policy_of, random.Random(1), **options)
        self.now = 0.0
        self.tell(*map(NodeUpdated, nodes))

    def tell(self, *events: Event, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        return self.engine.handle_all(events, self.now)

    def ask(self, *requests: Request) -> list[Action]:
        return self.tell(*map(RequestAdded, requests))


def member(key: str, gpus: int = 8, *, name: str = "g", least: int = 2, **more: Any) -> Request:
    terms = GangTerms(name, least, more.pop("domain", ""))
    return request(key, gpus, gang=terms, **more)


def together(actions: list[Action]) -> list[set[str]]:
    """Return the keys of each gang that is to be placed; single requests are gangs of one."""
    return [
        {place.request.key for place in (each.places if isinstance(each, PlaceGang) else (each,))}
        for each in actions
        if not isinstance(each, Refuse)
    ]


def said(actions: list[Action]) -> dict[str, str]:
    return {each.request.key: each.refusal.message for each in actions if isinstance(each, Refuse)}


def two_nodes() -> tuple[Node, Node]:
    return node("a", 8), node("b", 8)


def test_gang_waits_for_its_members_and_is_placed_whole() -> None:
    world = World(*two_nodes())
    assert world.ask(member("m1")) == []
    assert world.engine.deadline(world.now) == PATIENCE_S
    later = world.tell(Tick(), after_s=PATIENCE_S)
    assert said(later) == {"m1": "gang g: waits until 2 members are there"}
    assert world.tell(Tick(), after_s=PATIENCE_S) == []
    assert world.engine.state_of("m1") == "parked"
    assert together(world.ask(member("m2"))) == [{"m1", "m2"}]
    assert world.engine.state_of("m1") == "in flight"
    world.tell(Placed("m1"), Placed("m2"))
    assert world.engine.state_of("m2") == "held"
    assert not world.engine.has_waiting


def test_gang_that_does_not_fit_takes_nothing_and_says_why_to_each() -> None:
    world = World(node("a", 8))
    actions = world.ask(member("m1"), member("m2"))
    wanted = (
        "gang g: 1 of 2 members fit together; for the next one 0/1 nodes fit: 1 has fewer than 8 free GPUs"
    )
    assert said(actions) == {"m1": wanted, "m2": wanted}
    assert together(actions) == []
    assert together(world.ask(request("single", 8))) == [{"single"}]
    why = world.engine.why("m1")
    assert why is not None
    assert (why.message, why.never) == (wanted, True)


def test_gang_is_placed_when_there_is_room_for_all() -> None:
    world = World(*two_nodes())
    world.ask(request("single", 1))
    world.tell(Placed("single"))
    assert together(world.ask(member("m1"), member("m2"))) == []
    assert together(world.tell(NodeUpdated(node("c", 4)), after_s=2)) == []
    assert together(world.tell(RequestRemoved("single"), after_s=2)) == [{"m1", "m2"}]


def test_refused_gang_is_told_again_only_if_the_reason_changes() -> None:
    world = World(node("a", 8))
    world.ask(member("m1"), member("m2"))
    assert said(world.tell(NodeUpdated(node("b", 4)), after_s=60)) == {}
    later = said(world.ask(member("m3", least=2)))
    assert set(later) <= {"m1", "m2", "m3"}


def test_two_gangs_that_fit_alone_but_not_together_do_not_share() -> None:
    """Members come in turns, so each gang would get half, and both would wait forever."""
    world = World(*two_nodes())
    actions = world.ask(
        member("x1", name="x"), member("y1", name="y"), member("x2", name="x"), member("y2", name="y")
    )
    assert together(actions) == [{"x1", "x2"}]
    world.tell(Placed("x1"), Placed("x2"))
    assert together(world.tell(RequestRemoved("x1"), RequestRemoved("x2"), after_s=5)) == [{"y1", "y2"}]


def test_more_important_gang_goes_first() -> None:
    world = World(node("a", 8))
    world.ask(request("single", 8))
    world.tell(Placed("single"))
    low = [member(f"l{n}", 4, name="low") for n in range(2)]
    high = [member(f"h{n}", 4, name="high", priority=9) for n in range(2)]
    world.ask(*low, *high)
    assert together(world.tell(RequestRemoved("single"), after_s=9)) == [{"h0", "h1"}]


def test_failed_gang_rests_and_is_tried_again_whole() -> None:
    world = World(*two_nodes())
    world.ask(member("m1"), member("m2"))
    assert together(world.tell(PlaceFailed("m1"), PlaceFailed("m2"))) == []
    again_at = world.engine.deadline(world.now)
    assert again_at is not None
    assert 1.0 <= again_at < 2.0
    assert together(world.tell(Tick(), after_s=2.0)) == [{"m1", "m2"}]


def test_member_that_failed_alone_joins_the_others_later() -> None:
    world = World(*two_nodes())
    world.ask(member("m1"), member("m2"))
    world.tell(Placed("m1"), PlaceFailed("m2"))
    assert together(world.tell(Tick(), after_s=2.0)) == [{"m2"}]


def test_gang_that_was_placed_in_part_is_told_until_the_others_join() -> None:
    world = World(*two_nodes())
    world.ask(member("m1"), member("m2"))
    assert world.engine.partly_started() == []  # on its way
    world.tell(Placed("m1"), PlaceFailed("m2"))
    assert world.engine.partly_started() == [PartlyStarted("g", 2, ("m1",))]
    world.tell(Tick(), after_s=2.0)
    world.tell(Placed("m2"))
    assert world.engine.partly_started() == []


def test_one_that_takes_the_place_of_another_is_not_made_to_wait_for_those_that_have_ended() -> None:
    world = World(*two_nodes(), node("c", 8))
    world.ask(*(member(f"m{n}", least=3) for n in range(3)))
    world.tell(*(Placed(f"m{n}") for n in range(3)))
    world.tell(RequestRemoved("m0"), RequestRemoved("m1"))
    assert together(world.ask(member("m4", least=3))) == [{"m4"}]
    assert world.engine.partly_started() == []


def test_after_a_restart_members_that_did_their_part_count_as_started() -> None:
    world = World(*two_nodes())
    terms = GangTerms("g", 2)
    world.tell(MemberObserved("done", "", terms))
    assert together(world.ask(member("m2"))) == [{"m2"}]
    world.tell(RequestRemoved("done"), PlaceFailed("m2"))
    assert together(world.tell(Tick(), after_s=5.0)) == []


def test_members_beyond_the_least_join_when_there_is_room() -> None:
    world = World(*two_nodes())
    members = [member(f"m{n}", least=2) for n in range(3)]
    actions = world.ask(*members)
    assert together(actions) == [{"m0", "m1"}]
    assert said(actions) == {"m2": "gang g: 2 members have started, and there is no room for this one yet"}
    world.tell(Placed("m0"), Placed("m1"))
    assert together(world.tell(NodeUpdated(node("c", 8)), after_s=2)) == [{"m2"}]


def test_member_that_joins_later_goes_where_the_others_run() -> None:
    racks = [node(name, 8, labels={"rack": rack}) for name, rack in (("a", "1"), ("b", "2"), ("c", "2"))]
    world = World(*racks)
    terms = GangTerms("g", 1, "rack")
    world.tell(PlacementObserved(whole("m1", "b", *range(8)), member("m1", least=1, domain="rack")))
    late = replace(request("m2", 8), gang=terms)
    actions = world.ask(late)
    [place] = [place for each in actions if isinstance(each, PlaceGang) for place in each.places]
    assert place.placement.node == "c"


def test_members_found_running_after_a_restart_count() -> None:
    world = World(*two_nodes())
    world.tell(PlacementObserved(whole("m1", "a", *range(8)), member("m1")))
    assert together(world.ask(member("m2"))) == [{"m2"}]


def test_gang_is_short_again_when_a_member_leaves() -> None:
    world = World(node("a", 8))
    world.ask(member("m1"), member("m2"))
    world.tell(RequestRemoved("m2"))
    assert together(world.tell(NodeUpdated(node("b", 8)), after_s=9)) == []
    why = world.engine.why("m1")
    assert why is not None
    assert why.message == "gang g: waits until 2 members are there"
    assert together(world.ask(member("m3"))) == [{"m1", "m3"}]


def test_removed_while_placed_counts_no_longer() -> None:
    world = World(*two_nodes())
    world.ask(member("m1"), member("m2"))
    world.tell(RequestRemoved("m1"), RequestRemoved("m2"))
    world.tell(Placed("m1"), PlaceFailed("m2"))
    assert together(world.ask(request("s1", 8), request("s2", 8))) == [{"s1"}, {"s2"}]
    assert world.engine.counts()["in flight"] == 2
    assert not world.engine.has_waiting


def test_late_member_is_short_when_the_others_end_before_its_turn() -> None:
    world = World(*two_nodes())
    world.tell(PlacementObserved(whole("m1", "a", *range(8)), member("m1")))
    assert together(world.tell(RequestAdded(member("m2")), RequestRemoved("m1"))) == []
    assert said(world.tell(Tick(), after_s=PATIENCE_S)) == {"m2": "gang g: waits until 2 members are there"}
    assert together(world.ask(member("m3"))) == [{"m2", "m3"}]


def test_member_that_comes_and_goes_does_not_have_its_refused_gang_decided_each_time() -> None:
    world = World(node("a", 8))
    first = said(world.ask(member("m1"), member("m2")))
    world.tell(RequestRemoved("m2"))
    assert said(world.ask(member("m2"))) == {"m2": first["m2"]}
    assert world.engine.state_of("m2") == "parked"
    assert world.tell(NodeUpdated(node("b", 8))) == []
    assert together(world.tell(Tick(), after_s=1.0)) == [{"m1", "m2"}]


def test_members_that_wait_go_on_when_another_scheduler_places_one_of_them() -> None:
    """Two schedulers were about to place the same gang, and one was killed after its first bind."""
    world = World(*two_nodes(), max_in_flight=1)
    world.ask(request("first", 1))
    assert world.ask(member("m1", 4), member("m2", 4)) == []
    world.tell(PlacementObserved(whole("m1", "a", 4, 5, 6, 7)))
    world.tell(MemberObserved("m1", "a", GangTerms("g", 2)))
    assert together(world.tell(Placed("first"))) == [{"m2"}]


def test_gang_of_which_a_member_was_deleted_on_its_way_has_started_in_part() -> None:
    world = World(*two_nodes())
    world.ask(member("m1"), member("m2"))
    world.tell(RequestRemoved("m2"), Placed("m1"), PlaceFailed("m2"))
    assert world.engine.partly_started() == [PartlyStarted("g", 2, ("m1",))]


def test_gang_whose_member_changes_while_it_is_in_the_queue_stays_there_once() -> None:
    """Its speaker is another one, with the rank and number of the one before."""
    world = World(*two_nodes(), max_in_flight=1)
    world.ask(request("first", 1))
    world.ask(member("m1", 4, priority=1), member("m2", 4))
    world.ask(member("m1", 3, priority=1))
    assert together(world.tell(Placed("first"))) == [{"m1", "m2"}]
    assert world.engine.counts()["active"] == 0


def test_gang_of_which_a_member_ended_before_all_were_placed_has_started_whole() -> None:
    world = World(*two_nodes())
    world.ask(member("m1", 4, least=3), member("m2", 4, least=3), member("m3", 4, least=3))
    world.tell(Placed("m1"), RequestRemoved("m2"), Placed("m2"), Placed("m3"))
    assert world.engine.partly_started() == []


def test_search_for_places_of_all_gangs_together_is_bounded() -> None:
    """Members that differ and by the numbers have room: each look at them is a long search."""
    world = World(*(node(f"n{at}", 8, resources={"cpu": 100}) for at in range(6)))
    for name in range(30):
        sizes = [(5, 1 + at % 3) for at in range(6)] + [(4, 1)]
        world.ask(
            *(
                member(f"{name}-{at}", size, name=f"g{name}", least=7, resources={"cpu": cpu})
                for at, (size, cpu) in enumerate(sizes)
            )
        )
    assert world.engine._gangs.steps(0.0) == [0]
    assert world.engine._gangs.steps(1.0) == [STEPS_PER_S]


def test_changed_member_counts_once() -> None:
    world = World(node("a", 8))
    world.ask(member("m1"), member("m1", 4))
    assert together(world.ask(member("m2", 4))) == [{"m1", "m2"}]


def test_one_important_member_does_not_take_the_others_along() -> None:
    world = World(node("a", 8))
    world.ask(request("single", 8))
    world.tell(Placed("single"))
    world.ask(member("h1", 4, name="mixed", priority=9), member("l1", 4, name="mixed"))
    world.ask(*(member(f"n{at}", 4, name="normal", priority=5) for at in range(2)))
    assert together(world.tell(RequestRemoved("single"), after_s=9)) == [{"n0", "n1"}]


def test_gang_of_too_many_different_members_is_refused() -> None:
    world = World(node("a", 8))
    many = [member(f"m{at}", 0, least=MOST_KINDS + 1, resources={"cpu": at}) for at in range(MOST_KINDS + 1)]
    assert "its members ask for 65 different things, more than 64" in said(world.ask(*many))["m0"]


def test_policy_that_fails_rests_the_gang() -> None:
    broken = Registry().policy()
    calls = []

    class Failing(Exception):
        pass

    def allocate(choice: object) -> tuple[int, ...]:
        calls.append(choice)
        raise Failing("no")

    world = World(*two_nodes())
    world.engine = Engine(lambda _: replace(broken, allocate=allocate), random.Random(1))
    world.tell(*map(NodeUpdated, two_nodes()))
    actions = world.ask(member("m1"), member("m2"))
    assert set(said(actions)) == {"m1", "m2"}
    assert "Failing: no" in said(actions)["m1"]
    assert world.engine.deadline(world.now) == 1.0


def test_places_are_named_by_place_actions() -> None:
    world = World(*two_nodes())
    [action] = [each for each in world.ask(member("m1"), member("m2")) if isinstance(each, PlaceGang)]
    assert action.gang == "g"
    assert all(isinstance(each, Place) for each in action.places)


# --- marks: the next scheduler knows that a gang has begun --------------------------------------------------


def test_few_members_are_marked_when_their_gang_has_begun_and_others_when_these_end() -> None:
    world = World(node("a", 8))
    world.ask(*(member(f"m{at}", 1, least=6) for at in range(6)))
    world.tell(*(Placed(f"m{at}") for at in range(5)))
    assert world.engine.to_mark() == []
    world.tell(Placed("m5"))
    first = world.engine.to_mark()
    assert len(first) == MARKED
    for each in first:
        world.engine.marked(each)
    assert world.engine.to_mark() == []
    world.tell(RequestRemoved(first[0]))
    (another,) = world.engine.to_mark()
    assert another not in first


def test_members_on_different_nodes_are_marked_first() -> None:
    world = World(node("a", 8), *(node(name, 1) for name in "bcd"))
    world.ask(*(member(f"m{at}", 1, least=11) for at in range(11)))
    world.tell(*(Placed(f"m{at}") for at in range(11)))
    held = {each: name for name in "abcd" for each in world.engine.cluster.held_on(name)}
    assert {held[each] for each in world.engine.to_mark()} == set("abcd")


def test_after_a_restart_the_marks_that_are_missing_are_written() -> None:
    world = World(node("a", 8))
    for at in range(3):
        world.tell(MemberObserved(f"m{at}", "a", GangTerms("g", 3), is_marked=at == 0))
    assert sorted(world.engine.to_mark()) == ["m1", "m2"]


def test_gang_of_one_at_a_time_needs_no_mark() -> None:
    world = World(node("a", 8))
    world.ask(member("m1", least=1))
    world.tell(Placed("m1"))
    assert world.engine.to_mark() == []


def test_after_a_restart_a_gang_that_has_begun_is_joined_by_one_that_takes_the_place_of_another() -> None:
    """Two of three members have ended. Without the mark it looks like a gang that was bound by half."""
    terms = GangTerms("g", 3)
    world = World(*two_nodes())
    world.tell(MemberObserved("m1", "a", terms, is_marked=True))
    assert together(world.ask(member("m4", least=3))) == [{"m4"}]
    world = World(*two_nodes())
    world.tell(MemberObserved("m1", "a", terms))
    assert together(world.ask(member("m4", least=3))) == []
    assert world.engine.partly_started() == [PartlyStarted("g", 3, ("m1",))]
    assert together(world.tell(MemberObserved("m1", "a", terms, is_marked=True))) == [{"m4"}]
    assert world.engine.partly_started() == []


def test_gang_that_has_ended_begins_again_also_under_the_same_name() -> None:
    world = World(*two_nodes())
    world.tell(MemberObserved("m1", "a", GangTerms("g", 2), is_marked=True))
    world.tell(RequestRemoved("m1"))
    assert together(world.ask(member("n1", 4))) == []
    assert together(world.ask(member("n2", 4))) == [{"n1", "n2"}]


def test_gang_that_is_more_than_its_owner_may_run_waits_without_taking_a_part() -> None:
    world = World(*two_nodes(), order=FairBands())
    world.tell(LimitChanged("ann", 2))
    (one,) = world.ask(request("one", 1, tenant="ann"))
    assert isinstance(one, Place)
    world.tell(Placed("one"))
    refused = world.ask(*(member(key, 1, tenant="ann") for key in ("m1", "m2")))
    assert together(refused) == []
    assert "gang g: 2 members, and ann may start 1 more now" in said(refused)["m1"]
    assert together(world.ask(member("other", 1, name="h", least=1, tenant="bob"))) == [{"other"}]
    assert together(world.tell(RequestRemoved("one"), after_s=60.0)) == [{"m1", "m2"}]


def test_gang_is_tried_again_when_its_owner_may_run_more() -> None:
    world = World(*two_nodes(), order=FairBands())
    world.tell(LimitChanged("ann", 1))
    world.ask(*(member(key, 1, tenant="ann") for key in ("m1", "m2")))
    assert together(world.tell(LimitChanged("ann", 2), after_s=60.0)) == [{"m1", "m2"}]


def test_member_that_joins_a_refused_gang_is_told_at_once_why_it_waits() -> None:
    world = World(node("a", 8))
    first = said(world.ask(member("m1"), member("m2")))
    assert set(first) == {"m1", "m2"}
    assert said(world.ask(member("m3"))) == {"m3": first["m1"]}
    assert world.tell(Tick(), after_s=PATIENCE_S) == []


def test_room_that_was_kept_for_a_gang_goes_to_it_before_others() -> None:
    """Its members rest, and another request of the same priority has waited longer."""
    world = World(node("a", 1), node("b", 1))
    world.tell(*(PlacementObserved(whole(f"victim-{name}", name, 0)) for name in "ab"))
    world.ask(request("first", 1), *(member(f"m{at}", 1) for at in range(2)))
    rooms = ("room/m0", "room/m1")
    world.tell(*(PlacementObserved(whole(room, name, 0)) for room, name in zip(rooms, "ab", strict=True)))
    assert together(world.tell(RequestRemoved("victim-a"), RequestRemoved("victim-b"))) == []
    assert together(world.tell(RoomReady(rooms, "m0"))) == [{"m0", "m1"}]


def test_room_for_a_gang_that_lost_a_member_is_free() -> None:
    world = World(node("a", 1), node("b", 1))
    rooms = ("room/m0", "room/m1")
    world.tell(*(PlacementObserved(whole(room, name, 0)) for room, name in zip(rooms, "ab", strict=True)))
    world.ask(request("other", 1), *(member(f"m{at}", 1) for at in range(2)))
    world.tell(RequestRemoved("m1"))
    assert together(world.tell(RoomReady(rooms, "m0"))) == [{"other"}]
    assert world.engine.state_of("m0") == "parked"
