"""Which pods must go for a more important one, and what is said if none can."""

from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node_victims import Victims, choose
from gpu_orchestrator.core.victims import Evictable, NoVictims
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, request, whole

POLICY = Registry().policy()


def evictable(*placements: Placement, **more: Any) -> Evictable:
    return Evictable(placements[0].key, placements, **more)


def chosen(
    gpus: int, *evictables: Evictable, nodes: str = "ab", size: int = 4, **budgets: int
) -> Victims | NoVictims:
    world = cluster(*(node(name, size) for name in nodes))
    for each in evictables:
        for placement in each.placements:
            world.place(placement)
    return choose(request("asked", gpus, priority=5), world, POLICY, evictables, budgets)


def victims(answer: Victims | NoVictims) -> set[str]:
    assert isinstance(answer, Victims), answer.message
    return {each.key for each in answer.evictables}


def test_one_large_victim_is_fewer_than_two_small_ones_that_lose_less() -> None:
    large, small = evictable(whole("large", "a", 0, 1), lost_gpu_s=300.0), evictable(whole("s1", "a", 2))
    assert victims(chosen(2, large, small, evictable(whole("s2", "a", 3)), nodes="a")) == {"large"}


def test_among_equally_few_the_one_that_loses_least_goes() -> None:
    young, old = (
        evictable(whole("young", "a", 0), lost_gpu_s=5.0),
        evictable(whole("old", "b", 0), lost_gpu_s=900.0),
    )
    assert victims(chosen(4, young, old)) == {"young"}


def test_only_what_helps_goes() -> None:
    answer = chosen(
        3, evictable(whole("p0", "a", 0)), evictable(whole("p1", "a", 1)), evictable(whole("q", "b", 0, 1, 2))
    )
    assert len(victims(answer)) == 1


def test_gang_goes_whole_so_its_members_elsewhere_count() -> None:
    gang = evictable(whole("g0", "a", 0), whole("g1", "b", 0))
    single = evictable(whole("single", "c", 0), lost_gpu_s=900.0)
    assert victims(chosen(4, gang, single, nodes="abc")) == {"single"}


@pytest.mark.parametrize("priority", [5, 6])
def test_equal_or_higher_priority_stays(priority: int) -> None:
    answer = chosen(4, evictable(whole("p", "a", 0), priority=priority), nodes="a")
    assert isinstance(answer, NoVictims)
    assert answer.message == "no pod of lower priority is in the way"


def test_budget_that_allows_nothing_is_named() -> None:
    answer = chosen(4, evictable(whole("p", "a", 0), budgets=("team/web",)), nodes="a", **{"team/web": 0})
    assert isinstance(answer, NoVictims)
    assert answer.message == (
        "evicting pods of lower priority would help, but disruption budgets forbid it: team/web on 1"
    )


def test_budget_for_one_forbids_two() -> None:
    pods = [evictable(whole(f"p{at}", "a", at), budgets=("web",)) for at in range(2)]
    assert len(victims(chosen(3, *pods, nodes="a", web=1))) == 1
    assert isinstance(chosen(4, *pods, nodes="a", web=1), NoVictims)


def test_nothing_goes_if_all_of_it_would_not_help() -> None:
    answer = chosen(5, evictable(whole("p", "a", 0)), evictable(whole("q", "b", 0)))
    assert isinstance(answer, NoVictims)
    assert answer.message == "evicting all 2 pods of lower priority would not help"
