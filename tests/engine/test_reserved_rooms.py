"""Places that are kept for those that wait long, beside rooms for those for whom others are evicted."""

from gpu_orchestrator.engine.events import PlacementObserved, RoomReady, Tick
from tests.support.builders import node, whole
from tests.support.kept_world import RULES, World


def kept_on(world: World) -> list[str]:
    return [name for each in world.engine.kept() for name in each.nodes]


def test_no_place_is_kept_where_room_was_made() -> None:
    """It could begin when the room's owner has ended; and the owner could not begin beside it."""
    world = World(node("a", 1))
    world.tell(PlacementObserved(whole("room/y", "a", 0)))
    world.ask("x", 1)
    world.wait(RULES.hold_after_s + 60.0)
    assert kept_on(world) == []


def test_place_is_moved_when_room_is_made_there() -> None:
    world = World(node("a", 1), node("b", 1))
    world.tell(PlacementObserved(whole("v", "a", 0)), PlacementObserved(whole("w", "b", 0)))
    world.ask("x", 1)
    world.wait(RULES.hold_after_s + 60.0)
    (first,) = kept_on(world)
    other = "b" if first == "a" else "a"
    world.tell(PlacementObserved(whole("room/y", first, 0)))
    world.tell(Tick(), after_s=60.0)
    assert kept_on(world) == [other]


def test_place_of_the_owner_stays_where_room_is_made_for_it() -> None:
    world = World(node("a", 1), node("b", 1))
    world.tell(PlacementObserved(whole("v", "a", 0)), PlacementObserved(whole("w", "b", 0)))
    world.ask("x", 1)
    world.wait(RULES.hold_after_s + 60.0)
    (first,) = kept_on(world)
    world.tell(PlacementObserved(whole("room/x", first, 0)))
    world.tell(Tick(), after_s=60.0)
    assert kept_on(world) == [first]


def test_owner_of_room_is_decided_before_those_whose_place_is_near() -> None:
    """Both wait for one GPU of the same node; the place is on the other one."""
    world = World(node("a", 2))
    world.tell(*(PlacementObserved(whole(f"p{at}", "a", at)) for at in range(2)))
    world.ask("x", 1)
    world.wait(RULES.hold_after_s + 60.0)
    ((room,),) = (each.rooms for each in world.engine.kept())
    other = 1 - room.devices[0]
    world.ask("y", 1)
    world.tell(PlacementObserved(whole("room/y", "a", other)))
    world.end(f"p{other}")
    assert set(world.running) == set()
    world.tell(RoomReady(("room/y",), "y"))
    assert set(world.running) == {"y"}


def test_room_may_be_a_part_of_a_place_of_a_later_turn_and_something_beside_it() -> None:
    world = World(node("a", 3))
    world.tell(*(PlacementObserved(whole(f"p{at}", "a", at)) for at in range(3)))
    world.ask("x", 2)
    world.wait(RULES.hold_after_s + 60.0)
    ((room,),) = (each.rooms for each in world.engine.kept())
    (beside,) = {0, 1, 2} - set(room.devices)
    world.ask("y", 2, priority=5)
    world.tell(PlacementObserved(whole("room/y", "a", room.devices[0], beside)))
    world.end(f"p{room.devices[0]}", f"p{beside}")
    world.tell(RoomReady(("room/y",), "y"))
    assert set(world.running) == {"y"}
