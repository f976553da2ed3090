"""Room that was made for the members of a gang that must start together."""

from gpu_orchestrator.engine.events import PlacementObserved, RoomReady
from tests.engine.test_gangs import World, member, together
from tests.support.builders import node, whole


def one_of_two() -> World:
    """The first member alone must start, and room for it is kept; the second one is less important, may
    join later, and would be placed first: it can use this node alone."""
    world = World(node("a", 4, labels={"zone": "x"}))
    world.tell(PlacementObserved(whole("room/m0", "a", 0, 1, 2, 3)))
    later = member("m1", 4, least=1, labels={"zone": "x"})
    world.ask(member("m0", 4, least=1, priority=10), later)
    return world


def test_room_is_not_given_to_a_less_important_member() -> None:
    """Those evicted for the important one would have gone for the other, and more would have to go for it."""
    world = one_of_two()
    assert together(world.tell(RoomReady(("room/m0",), "m0"))) == [{"m0"}]
    assert world.engine.state_of("m1") == "parked"


def test_others_join_soon_if_there_is_room_for_them() -> None:
    world = World(node("a", 2))
    world.tell(PlacementObserved(whole("room/m0", "a", 0, 1)))
    world.ask(*(member(f"m{at}", 1, least=1) for at in range(2)))
    assert together(world.tell(RoomReady(("room/m0",), "m0"))) == [{"m0"}]
    assert together(world.tell(after_s=60.0)) == [{"m1"}]
