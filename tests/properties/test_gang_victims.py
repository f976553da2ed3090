"""Victims of a gang are the fewest that suffice, and lose the least: compared with every set there is."""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.apps.scheduler.cycle.emptied import Emptied
from gpu_orchestrator.apps.scheduler.cycle.preemptors import Preemptor
from gpu_orchestrator.core import gang_victims
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.gang import Gang, GangRefusal, decide_gang
from gpu_orchestrator.core.gang_victims import Asked, GangVictims, choose
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.core.victims import ByPriority, Cost, Evictable, NoVictims, cost
from gpu_orchestrator.policies.registry import Registry
from tests.support import gang_search
from tests.support.examples import cases

POLICY = Registry().policy()
Budgets = dict[str, int]


def _nodes(rng: Random) -> list[Node]:
    sizes = rng.choice([(3, 3), (4, 2), (2, 2, 2), (4,)])
    return [
        node(name, gpus, resources={"cpu": 8}, labels={"rack": rng.choice("xy")})
        for name, gpus in zip("abc", sizes, strict=False)
    ]


def _fill(cluster: Cluster, rng: Random) -> list[Placement]:
    held = []
    for number in range(rng.choice([4, 6, 8])):
        shape = Shape(gpus=rng.choice([1, 1, 1, 2]), resources=rng.choice([(), (("cpu", 2),)]))
        answer = decide(Request(f"p{number}", shape), cluster, POLICY, random.Random(number))
        if isinstance(answer, Placement):
            cluster.place(answer)
            held.append(answer)
    rng.shuffle(held)
    return held


def _units(held: list[Placement], rng: Random) -> list[Evictable]:
    """Return the placements as evictables; some are gangs of two or three, on one node or several."""
    evictables, left = [], list(held)
    while left:
        size = rng.choice([1, 1, 1, 2, 3])
        members, left = tuple(left[:size]), left[size:]
        budgets = tuple(rng.choice("ab") for _ in members) if rng.random() < 0.25 else ()
        lost = sum(len(each.devices) for each in members) * float(rng.choice([10, 10, 300]))
        evictables.append(Evictable(members[0].key, members, rng.choice([0, 0, 1, 2]), lost, budgets))
    return evictables


def _gang(rng: Random) -> Gang:
    shapes = [
        Shape(gpus=rng.choice([0, 1, 1, 2, 2, 3]), resources=rng.choice([(), (), (("cpu", 3),)]))
        for _ in range(rng.choice([2, 2, 3]))
    ]
    if rng.random() < 0.5:
        shapes = shapes[:1] * len(shapes)
    terms = GangTerms("g", len(shapes), rng.choice(["", "", "rack"]), rng.choice(["", "rack"]))
    priority = rng.randint(1, 2)
    members = tuple(Request(f"m{at}", shape, priority, gang=terms) for at, shape in enumerate(shapes))
    return Gang(terms, members, len(members) if rng.random() < 0.8 else len(members) - 1)


@pytest.mark.parametrize("few", [gang_victims.FEW, 0], ids=["few", "many"])
@cases(300)
@given(seed=st.integers(0, 2**32))
def test_gang_evicts_the_fewest_that_lose_least(few: int, seed: int) -> None:
    """Where many may go, the set may cost more, but none of it could stay."""
    rng = Random(seed)
    nodes = _nodes(rng)
    cluster = Cluster(nodes)
    held = _fill(cluster, rng)
    evictables, gang = _units(held, rng), _gang(rng)
    budgets = {"a": rng.randint(0, 2), "b": rng.randint(0, 1)}
    if not isinstance(decide_gang(gang, cluster, lambda _: POLICY, rng), GangRefusal):
        return
    before = [cluster.usage.state(row) for row in range(cluster.inventory.size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gang_victims, "FEW", few)
        answer = choose(
            Asked(gang, lambda _: POLICY, rng),
            cluster,
            evictables,
            budgets,
            ByPriority(gang.members[0].priority),
        )
    assert [cluster.usage.state(row) for row in range(cluster.inventory.size)] == before
    best = _cheapest(gang, nodes, held, evictables, budgets)
    if isinstance(answer, NoVictims):
        assert best is None, (gang, best, answer.message)
        return
    assert best is not None, answer
    needed = gang.members[: gang.least]
    preemptor = Preemptor(needed, {each.key: POLICY for each in needed}, replace(gang, members=needed))
    assert Emptied(cluster.copy, evictables).may_hold(preemptor)
    _check(gang, answer, nodes, held, budgets)
    assert few == 0 or cost(answer.evictables) == best, (answer, best)
    if not few:
        assert not any(
            _suffices(gang, [each for each in answer.evictables if each is not one], nodes, held)
            for one in answer.evictables
        )


def _cheapest(
    gang: Gang, nodes: list[Node], held: list[Placement], evictables: list[Evictable], budgets: Budgets
) -> Cost | None:
    lower = [each for each in evictables if each.priority < gang.members[0].priority]
    sets = chain.from_iterable(combinations(lower, size) for size in range(1, len(lower) + 1))
    ordered = sorted((each for each in sets if _is_allowed(each, budgets)), key=cost)
    return next((cost(each) for each in ordered if _suffices(gang, each, nodes, held)), None)


def _suffices(gang: Gang, gone: Iterable[Evictable], nodes: list[Node], held: list[Placement]) -> bool:
    """Room is made for the first members in turn, as many as must start together."""
    keys, left = {place.key for each in gone for place in each.placements}, defaultdict(list)
    for each in held:
        if each.key not in keys:
            left[each.node].append(each)
    return gang_search.fits(replace(gang, members=gang.members[: gang.least]), nodes, left)


def _is_allowed(gone: tuple[Evictable, ...], budgets: Budgets) -> bool:
    used = [name for evictable in gone for name in evictable.budgets]
    return all(used.count(name) <= budgets[name] for name in used)


def _check(
    gang: Gang, answer: GangVictims, nodes: list[Node], held: list[Placement], budgets: Budgets
) -> None:
    assert all(each.priority < gang.members[0].priority for each in answer.evictables)
    assert _is_allowed(answer.evictables, budgets)
    assert {each.key for each in answer.rooms} == {each.key for each in gang.members[: gang.least]}
    assert _suffices(gang, answer.evictables, nodes, held)
    world = Cluster(nodes)
    gone = {place.key for each in answer.evictables for place in each.placements}
    for place in (*(each for each in held if each.key not in gone), *answer.rooms):
        world.place(place)  # raises if anything is given twice
