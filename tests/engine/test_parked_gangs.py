"""Gangs that were refused rest, and are looked at in turn when something became free."""

from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.gang_members import Members
from gpu_orchestrator.engine.parked_gangs import LOOKS_PER_S, MOST_LOOKS, ParkedGangs


def parked(*names: str, rests_until: float = 1.0) -> ParkedGangs:
    world = ParkedGangs()
    for name in names:
        world.add(Members(GangTerms(name, 2), rests_until=rests_until))
    return world


def due(world: ParkedGangs, now: float) -> str:
    return "".join(each.terms.name for each in world.due(now))


def test_each_is_looked_at_once_after_something_became_free_and_it_has_rested() -> None:
    world = parked(*"ab")
    assert (world.next_at(0.0), due(world, 1.0)) == (1.0, "")
    assert world.next_at(1.0) is None
    world.something_freed()
    assert world.next_at(1.0) == 1.0
    assert (due(world, 1.0), due(world, 1.0)) == ("ab", "")
    world.add(Members(GangTerms("c", 2), rests_until=3.0))
    world.something_freed()
    assert (due(world, 2.0), due(world, 3.0)) == ("ab", "c")


def test_one_alone_can_be_looked_at_again() -> None:
    world, gang = parked(*"ab"), Members(GangTerms("c", 2), rests_until=1.0)
    world.add(gang)
    world.recheck(gang)
    assert (due(world, 1.0), due(world, 1.0)) == ("c", "")
    world.recheck(gang)
    assert due(world, 1.0) == "c"
    world.remove("c")
    world.something_freed()
    assert due(world, 1.0) == "ab"


def test_looks_are_rationed_and_taken_in_turn() -> None:
    world = parked(*"abcd")
    due(world, 1.0)
    world.took(MOST_LOOKS - 2)
    world.something_freed()
    assert due(world, 1.0) == "ab"
    world.something_freed()
    later = world.next_at(1.0)
    assert later is not None
    assert 1.0 < later <= 1.0 + 2 / LOOKS_PER_S
    assert due(world, later) == "c"
    assert due(world, later + 1.0) == "dab"


def test_crowd_of_gangs_costs_little_while_nothing_is_to_be_looked_at() -> None:
    world = parked(*map(str, range(1000)), rests_until=5.0)
    world.something_freed()
    assert next(world.due(1.0), None) is None
    assert len(world._rested) == 0
