"""Victims are the fewest that suffice, and lose the least: compared with every set there is."""

import random
from collections.abc import Callable
from itertools import chain, combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.node_victims import Victims, choose
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.victims import Cost, Evictable, NoVictims, cost
from gpu_orchestrator.policies.registry import Registry
from tests.support import oracle
from tests.support.examples import cases
from tests.support.generators import World, a_shape

POLICY = Registry().policy()


@cases(400)
@given(st.builds(World, seed=st.integers(0, 2**32), size=st.integers(1, 3), length=st.just(0)))
def test_victims_are_the_fewest_that_lose_least(made: World) -> None:
    rng = Random(made.seed)
    is_full = rng.random() < 0.8
    nodes = _two_or_one(rng) if is_full else made.nodes
    cluster = Cluster(nodes)
    held = _fill(cluster, rng, _small if is_full else a_shape, 8)
    evictables = _units(held, rng)
    budgets = {"a": rng.randint(0, 2), "b": rng.randint(0, 1)}
    asked = Request("asked", (_large if is_full else a_shape)(rng), priority=rng.randint(1, 3))
    if isinstance(decide(asked, cluster, POLICY, rng), Placement):
        return
    before = _state(cluster)
    answer = choose(asked, cluster, POLICY, evictables, budgets)
    assert _state(cluster) == before
    best = _cheapest(asked, nodes, held, evictables, budgets)
    if isinstance(answer, NoVictims):
        assert best is None, (asked, best, answer.message)
    else:
        assert best is not None, answer
        _check(asked, answer, nodes, held, budgets)
        assert cost(answer.evictables) == best, (answer, best)


def _fill(cluster: Cluster, rng: Random, shape: Callable[[Random], Shape], most: int) -> list[Placement]:
    held = []
    for number in range(most):
        answer = decide(Request(f"p{number}", shape(rng)), cluster, POLICY, random.Random(number))
        if isinstance(answer, Placement):
            cluster.place(answer)
            held.append(answer)
    return held


def _two_or_one(rng: Random) -> list[Node]:
    names, gpus = rng.choice([("ab", 4), ("a", 6)])
    return [node(name, gpus, resources={"cpu": 8, "odd": 1}) for name in names]


def _small(rng: Random) -> Shape:
    if rng.random() < 0.4:
        return Shape(exclusive=False, milli=rng.choice([300, 500, 1000]))
    return Shape(gpus=rng.choice([1, 1, 2, 3]), resources=rng.choice([(), (("cpu", 2),)]))


def _large(rng: Random) -> Shape:
    if rng.random() < 0.2:
        return Shape(gpus=rng.choice([1, 2, 3]), exclusive=False, milli=rng.choice([400, 900]))
    return Shape(gpus=rng.choice([1, 2, 2, 3, 4]), resources=rng.choice([(), (), (("cpu", 4), ("odd", 1))]))


def _units(held: list[Placement], rng: Random) -> list[Evictable]:
    """Return the placements as evictables; some are gangs of two or three."""
    evictables, left = [], list(held)
    while left:
        size = rng.choice([1, 1, 1, 2, 3])
        members, left = tuple(left[:size]), left[size:]
        budgets = tuple(rng.choice("ab") for _ in members) if rng.random() < 0.3 else ()
        lost = sum(len(each.devices) for each in members) * float(rng.choice([10, 10, 300]))
        evictables.append(Evictable(members[0].key, members, rng.choice([0, 0, 1, 2]), lost, budgets))
    return evictables


def _state(cluster: Cluster) -> list[bytes]:
    return [cluster.usage.state(row) for row in range(cluster.inventory.size)]


def _cheapest(
    asked: Request,
    nodes: list[Node],
    held: list[Placement],
    evictables: list[Evictable],
    budgets: dict[str, int],
) -> Cost | None:
    lower = [each for each in evictables if each.priority < asked.priority]
    sets = chain.from_iterable(combinations(lower, size) for size in range(1, len(lower) + 1))
    enough = (
        cost(each) for each in sets if _is_allowed(each, budgets) and _suffices(asked, each, nodes, held)
    )
    return min(enough, default=None)


def _suffices(asked: Request, gone: tuple[Evictable, ...], nodes: list[Node], held: list[Placement]) -> bool:
    keys = {placement.key for evictable in gone for placement in evictable.placements}
    left = [each for each in held if each.key not in keys]
    return any(oracle.fits(asked.shape, node, [p for p in left if p.node == node.name]) for node in nodes)


def _is_allowed(gone: tuple[Evictable, ...], budgets: dict[str, int]) -> bool:
    used = [name for evictable in gone for name in evictable.budgets]
    return all(used.count(name) <= budgets[name] for name in used)


def _check(
    asked: Request, answer: Victims, nodes: list[Node], held: list[Placement], budgets: dict[str, int]
) -> None:
    assert all(each.priority < asked.priority for each in answer.evictables)
    assert _is_allowed(answer.evictables, budgets)
    assert _suffices(asked, answer.evictables, [n for n in nodes if n.name == answer.node], held)
