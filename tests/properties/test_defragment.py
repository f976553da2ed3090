"""Moves are the fewest that make room, and lose the least: compared with every way there is."""

from itertools import chain, combinations, product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.defragment import Movable, Moves, NoMoves, Terms, find
from gpu_orchestrator.core.node import node as new_node
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.core.victims import Evictable, cost
from gpu_orchestrator.policies.registry import Registry
from tests.support.examples import cases

REGISTRY = Registry()
Amounts = dict[str, tuple[int, int]]
"""Devices and cpu by node."""


@cases(400)
@given(st.integers(0, 2**32))
def test_moves_are_the_fewest_that_lose_least(seed: int) -> None:
    rng = Random(seed)
    sizes = {name: (rng.choice([2, 4, 4, 4]), rng.choice([3, 8, 8])) for name in "abcd"[: rng.randint(2, 4)]}
    cluster = Cluster(new_node(name, gpus, resources={"cpu": cpu}) for name, (gpus, cpu) in sizes.items())
    held = _fill(cluster, rng)
    movables = _movables([each for each in held if rng.random() < 0.85][:6], rng)
    budgets = {"x": rng.randint(0, 2)}
    shape = Shape(gpus=rng.choice([2, 3, 4, 4]), resources=rng.choice([(), (("cpu", 2),)]))
    wanted = [Request(f"w{number}", shape) for number in range(rng.randint(1, 2))]
    terms = Terms(lambda _: REGISTRY.policy(), Random(1), budgets)
    before = [cluster.usage.state(row) for row in range(cluster.inventory.size)]
    answer = find(wanted, cluster, movables, terms)
    assert [cluster.usage.state(row) for row in range(cluster.inventory.size)] == before
    best = _cheapest(wanted, sizes, held, movables, budgets)
    if isinstance(answer, NoMoves):
        assert best is None, (best, answer.message)
    else:
        assert best is not None, answer
        _check(answer, wanted, cluster, held, budgets)
        assert answer.cost == best, (answer, best)


def _fill(cluster: Cluster, rng: Random) -> list[Placement]:
    held = []
    for number in range(rng.randint(2, 7)):
        node = rng.choice(list(cluster))
        free = [each.id for each in node.devices if _is_free(cluster, node.name, each.id)]
        devices = tuple(rng.sample(free, min(rng.choice([1, 1, 2, 3]), len(free))))
        if devices:
            held.append(Placement(f"p{number}", node.name, devices=devices, resources=(("cpu", 1),)))
            cluster.account(held[-1])
    return held


def _is_free(cluster: Cluster, name: str, device: int) -> bool:
    return all(device not in each.devices for each in cluster.held_on(name).values())


def _movables(held: list[Placement], rng: Random) -> list[Movable]:
    """Return the placements as what moves together: pods, and sometimes gangs of two."""
    made, left = [], list(held)
    while left:
        together, left = left[: (size := rng.choice([1, 1, 1, 2]))], left[size:]
        members = tuple(
            Request(each.key, Shape(gpus=len(each.devices), resources=each.resources)) for each in together
        )
        guarded = tuple("x" for _ in together) if rng.random() < 0.3 else ()
        lost = float(rng.choice([1, 1, 50]) * sum(len(each.devices) for each in together))
        unit = Evictable(together[0].key, tuple(together), 0, lost, guarded, len(together))
        made.append(Movable(unit, members, GangTerms("g", len(members)) if len(members) > 1 else None))
    return made


def _cheapest(
    wanted: list[Request],
    sizes: Amounts,
    held: list[Placement],
    movables: list[Movable],
    budgets: dict[str, int],
) -> tuple[int, float] | None:
    """Return what the cheapest moves cost. Each that moves is on a node that gets one of the wanted."""
    sets = chain.from_iterable(combinations(movables, size) for size in range(len(movables) + 1))
    allowed = [each for each in sets if _is_allowed(each, budgets)]
    enough = (cost(m.held for m in each) for each in allowed if _suffices(each, wanted, sizes, held))
    return min(enough, default=None)


def _is_allowed(gone: tuple[Movable, ...], budgets: dict[str, int]) -> bool:
    return sum(each.held.budgets.count("x") for each in gone) <= budgets["x"]


def _suffices(
    gone: tuple[Movable, ...], wanted: list[Request], sizes: Amounts, held: list[Placement]
) -> bool:
    free = _free(sizes, held, {place.key for each in gone for place in each.held.placements})
    for nodes in product(sizes, repeat=len(wanted)):
        if not all({place.node for place in each.held.placements} & set(nodes) for each in gone):
            continue
        left = _after(free, list(zip(nodes, wanted, strict=True)))
        members = [member for each in gone for member in each.members]
        others = [name for name in sizes if name not in nodes]
        if left is not None and _go(members, others, left):
            return True
    return False


def _go(members: list[Request], nodes: list[str], free: Amounts) -> bool:
    if not members:
        return True
    after = (_after(free, [(name, members[0])]) for name in nodes)
    return any(each is not None and _go(members[1:], nodes, each) for each in after)


def _free(sizes: Amounts, held: list[Placement], gone: set[str]) -> Amounts:
    free = dict(sizes)
    for each in held:
        if each.key not in gone:
            gpus, cpu = free[each.node]
            free[each.node] = gpus - len(each.devices), cpu - dict(each.resources).get("cpu", 0)
    return free


def _after(free: Amounts, places: list[tuple[str, Request]]) -> Amounts | None:
    """Return what is free when these have their places; None if one does not fit."""
    left = dict(free)
    for name, asked in places:
        cpu = dict(asked.shape.resources).get("cpu", 0)
        left[name] = left[name][0] - asked.shape.gpus, left[name][1] - cpu
        if left[name][0] < 0 or (cpu and left[name][1] < 0):
            return None
    return left


def _check(
    answer: Moves, wanted: list[Request], cluster: Cluster, held: list[Placement], budgets: dict[str, int]
) -> None:
    """Take what moves away and put all in place: nothing is given twice, and no cleared node gets one."""
    assert _is_allowed(tuple(each.movable for each in answer.moves), budgets)
    assert [each.key for each in answer.room] == [each.key for each in wanted]
    cleared = {each.node for each in answer.room}
    twin = cluster.copy()
    for move in answer.moves:
        assert {each.node for each in move.movable.held.placements} & cleared
        assert [each.key for each in move.places] == [each.key for each in move.movable.members]
        assert not {each.node for each in move.places} & cleared
        for each in move.movable.held.placements:
            twin.release(each)
    for each in (*answer.room, *(place for move in answer.moves for place in move.places)):
        twin.place(each)  # raises Oversold rather than give anything twice
