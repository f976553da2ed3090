"""Victims in a large cluster where room is kept for others on most nodes, beside what still ends there."""

from dataclasses import replace
from random import Random

import pytest

from gpu_orchestrator.core import gang_victims, node_victims
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.gang_victims import Asked
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.core.victims import ByPriority, Evictable, NoVictims, Steps
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request, whole

NODES = 200
FREE = 5
POLICY = Registry().policy()


def crowded() -> tuple[Cluster, list[Evictable]]:
    """Every node has one pod with its only GPU, and all but the last ones a room for another pod, too."""
    held = [whole(f"p{at}", f"n{at:03}", 0) for at in range(NODES)]
    cluster = Cluster([node(f"n{at:03}", 1) for at in range(NODES)])
    for each in held:
        cluster.place(each)
    for each in held[:-FREE]:
        cluster.account(replace(each, key=f"room/{each.key}"))
    return cluster, [Evictable(each.key, (each,)) for each in held]


def test_single_pod_finds_the_nodes_where_one_that_goes_helps() -> None:
    cluster, evictables = crowded()
    answer = node_victims.choose(request("r", 1, priority=1), cluster, POLICY, evictables, {})
    assert not isinstance(answer, NoVictims)
    assert (int(answer.node[1:]) >= NODES - FREE, answer.pods) == (True, 1)


@pytest.mark.parametrize("members", [2, FREE])
def test_no_more_go_for_a_gang_than_it_has_members(members: int) -> None:
    cluster, evictables = crowded()
    terms = GangTerms("g", members)
    asked = tuple(request(f"m{at}", 1, priority=1, gang=terms) for at in range(members))
    gang = Asked(Gang(terms, asked, members), lambda _: POLICY, Random(1))
    answer = gang_victims.choose(gang, cluster, evictables, {}, ByPriority(1))
    assert not isinstance(answer, NoVictims)
    assert len(answer.evictables) == members


def test_set_that_is_found_among_many_has_nobody_needless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where members get no nodes one by one, sets are tried, but not of every size."""
    monkeypatch.setattr(gang_victims._Greedy, "find", nothing)
    cluster = Cluster([node("a", 30)])
    held = [Placement(f"p{at}", "a", (at,)) for at in range(30)]
    for each in held:
        cluster.place(each)
    terms = GangTerms("g", 2)
    asked = tuple(request(f"m{at}", 4, priority=1, gang=terms) for at in range(2))
    gang = Asked(Gang(terms, asked, 2), lambda _: POLICY, Random(1))
    evictables = [Evictable(each.key, (each,)) for each in held]
    answer = gang_victims.choose(gang, cluster, evictables, {}, ByPriority(1))
    assert not isinstance(answer, NoVictims)
    assert len(answer.evictables) == 8


def nothing(greedy: object) -> Steps[None]:
    yield
    return None
