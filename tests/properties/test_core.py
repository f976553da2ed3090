"""What must hold of the core for any cluster and any requests, in any order."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import volumes
from gpu_orchestrator.api.volumes import Alternatives
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, fits
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.node import node as new_node
from gpu_orchestrator.core.request import Expression, Request, Shape, Term
from gpu_orchestrator.policies.registry import Registry
from tests.support import oracle
from tests.support.examples import cases
from tests.support.generators import (
    AddRequest,
    Release,
    RemoveNode,
    Step,
    UpdateNode,
    World,
    request_of,
    worlds,
)

REGISTRY = Registry()
AMOUNTS = (0, 1, 2, 10**9, 2**31, 2**53, 2**63, 10**30)
Known = dict[str, tuple[Node, list[Placement]]]


@cases(400)
@given(worlds)
def test_every_answer_is_right_and_nothing_is_held_twice(made: World) -> None:
    cluster = Cluster(made.nodes)
    world: Known = {node.name: (node, []) for node in made.nodes}
    for number, step in enumerate(made.steps):
        match step:
            case UpdateNode(node):
                held = world.get(node.name, (node, []))[1]
                if _keeps_devices(node, held):
                    cluster.set_node(node)
                    world[node.name] = (node, held)
            case RemoveNode(name) if name in world:
                cluster.remove_node(name)
                del world[name]
            case Release(which) if found := sorted(
                (p.key, n) for n, (_, held) in world.items() for p in held
            ):
                key, name = found[which % len(found)]
                gone = next(p for p in world[name][1] if p.key == key)
                cluster.release(gone)
                world[name][1].remove(gone)
            case AddRequest():
                _ask(request_of(f"r{number}", step), cluster, world, seed=number)
            case _:
                pass
        _check_sums(cluster, world)


def _ask(request: Request, cluster: Cluster, world: Known, seed: int) -> None:
    policy = REGISTRY.policy_of(request)
    answer = decide(request, cluster, policy, random.Random(seed))
    uncached = cluster.copy()
    uncached.standings.clear()
    assert decide(request, uncached, policy, random.Random(seed)) == answer, (
        "a remembered answer differs from a new one"
    )
    if isinstance(answer, Placement):
        _check_placement(request, answer, world)
        cluster.place(answer)
        world[answer.node][1].append(answer)
    else:
        _check_refusal(request.shape, answer, world)


def _check_placement(request: Request, answer: Placement, world: Known) -> None:
    shape, (node, held) = request.shape, world[answer.node]
    assert oracle.fits(shape, node, held)
    fitting = [each for each, taken in world.values() if oracle.fits(shape, each, taken)]
    assert oracle.preference(shape, node) == max(oracle.preference(shape, each) for each in fitting)
    if shape.gpus:
        sets = oracle.possible_sets(shape, node, held)
        assert answer.devices in sets
        best = max(oracle.weakest(node, each) for each in sets)
        link = oracle.weakest(node, answer.devices)
        if request.allocator in ("", "contiguous") or (request.allocator == "packed" and shape.asked_gbps):
            assert link == best, "another set has a better weakest link"
        if shape.asked_gbps:
            assert link >= min(best, shape.asked_gbps), "the bandwidth rule could have been kept"


def _check_refusal(shape: Shape, answer: Refusal, world: Known) -> None:
    assert not any(oracle.fits(shape, node, held) for node, held in world.values())
    assert sum(count for _, count in answer.reasons) == len(world) == answer.nodes
    assert answer.never == (not any(oracle.could_ever_fit(shape, node) for node, _ in world.values()))
    assert (answer.nearest is None) == (not world)
    if answer.nearest:
        assert answer.nearest.node in world
        assert answer.nearest.lacks


def _check_sums(cluster: Cluster, world: Known) -> None:
    assert {node.name for node in cluster} == set(world)
    for name, (node, held) in world.items():
        assert cluster.held_on(name) == {p.key: p for p in held}
        for device in node.devices:
            mine = [p for p in held if device.id in p.devices]
            assert len(mine) <= 1 or not any(p.exclusive for p in mine)
            assert sum(p.milli for p in mine) <= 1000
            assert all(p.exclusive for p in mine) or sum(p.memory_mib for p in mine) <= device.memory_mib
        for resource, _ in node.resources:
            assert cluster.usage.free[cluster.row(name), cluster.inventory.kind(resource)] == oracle.free(
                node, held, resource
            )


def _keeps_devices(node: Node, held: list[Placement]) -> bool:
    """Whether what is held still fits the node as it is now; reality may oversell, but then nothing is
    promised."""
    before: list[Placement] = []
    for placement in held:
        shape = Shape(
            gpus=len(placement.devices),
            exclusive=placement.exclusive,
            milli=placement.milli,
            memory_mib=placement.memory_mib,
        )
        well = replace(node, devices=tuple(replace(device, healthy=True) for device in node.devices))
        room = all(oracle.free(node, before, name) >= amount for name, amount in placement.resources)
        if not room or (
            placement.devices and placement.devices not in oracle.possible_sets(shape, well, before)
        ):
            return False
        before.append(placement)
    return True


@cases(200)
@given(worlds)
def test_placing_and_releasing_leaves_no_trace(made: World) -> None:
    cluster, rng = Cluster(made.nodes), random.Random(made.seed)
    before, placed = _columns(cluster), []
    for number, step in enumerate(step for step in made.steps if isinstance(step, AddRequest)):
        answer = decide(request_of(f"r{number}", step), cluster, REGISTRY.policy(), rng)
        if isinstance(answer, Placement):
            cluster.place(answer)
            placed.append(answer)
    rng.shuffle(placed)
    for placement in placed:
        cluster.release(placement)
    assert _columns(cluster) == before


@cases(150)
@given(worlds, worlds)
def test_copy_and_original_never_change_each_other(made: World, other: World) -> None:
    on_original, on_copy = made.steps, other.steps + made.steps
    original, alone = Cluster(made.nodes), Cluster(made.nodes)
    assert _play(original, on_original) == _play(alone, on_original)
    copy = original.copy()
    seen = _columns(original)
    _play(copy, on_copy)
    assert _columns(original) == seen
    as_copied = _columns(copy)
    answers = _play(original, on_original)
    assert _columns(copy) == as_copied
    assert answers == _play(alone, on_original), "having been copied changed an answer"


def _play(cluster: Cluster, play: list[Step]) -> list[Placement | Refusal]:
    answers: list[Placement | Refusal] = []
    for step in play:
        match step:
            case UpdateNode(node):
                cluster.set_node(node)
            case RemoveNode(name) if name in cluster:
                cluster.remove_node(name)
            case AddRequest():
                request = request_of(
                    f"r{sum(len(cluster.held_on(n.name)) for n in cluster)}-{len(answers)}", step
                )
                answers.append(decide(request, cluster, REGISTRY.policy_of(request), random.Random(1)))
                if isinstance(placement := answers[-1], Placement) and not _has(cluster, placement):
                    cluster.place(placement)
            case _:
                pass
    return answers


def _has(cluster: Cluster, placement: Placement) -> bool:
    return placement.key in cluster.held_on(placement.node)


def _columns(cluster: Cluster) -> dict[str, object]:
    """Everything that can be known of a cluster, as plain values."""
    inventory, usage = cluster.inventory, cluster.usage
    seen: dict[str, object] = {}
    for node in cluster:
        row = cluster.row(node.name)
        single = [usage.whole[row], usage.spare_milli[row], usage.slice_milli[row], usage.gpu_load[row]]
        grids = [usage.free_milli[row], usage.free_mib[row], usage.holders[row]]
        free = {name: int(usage.free[row, inventory.kind(name)]) for name, _ in node.resources}
        grid = ([float(each) for each in single], [each[: len(node.devices)].tolist() for each in grids])
        seen[node.name] = (node, cluster.held_on(node.name), grid, free)
    return seen


@cases(200)
@given(worlds, st.integers(1, 4), st.integers(1, 3))
def test_existing_placements_are_counted_even_if_they_oversell(made: World, gpus: int, pods: int) -> None:
    """GPUs of which only the number is known: as many are not free, and all come back."""
    node, cluster = made.nodes[0], Cluster(made.nodes)
    before, free = _columns(cluster), cluster.free_gpus(node.name)
    taken = [Placement(f"p{i}", node.name, unnamed=gpus) for i in range(pods)]
    for placement in taken:
        cluster.account(placement)
    assert cluster.free_gpus(node.name) == max(free - gpus * pods, 0)
    for placement in taken:
        cluster.release(placement)
    assert _columns(cluster) == before


@cases(200)
@given(worlds, st.lists(st.integers(1, 2) | st.lists(st.integers(0, 5), max_size=2, unique=True), max_size=5))
def test_free_capacity_depends_on_holders_not_on_order(made: World, wishes: list[int | list[int]]) -> None:
    """Some holders have devices of their own, of others only the number is known; some have left."""
    node, rng = made.nodes[0], random.Random(made.seed)
    held = [_holder(f"p{i}", node, wish, rng.choice(AMOUNTS)) for i, wish in enumerate(wishes)]
    plain = Cluster([node])
    for placement in held:
        plain.account(placement)
    mixed = Cluster([node])
    others = [replace(each, key=f"other {each.key}") for each in held]
    for placement in rng.sample(others + held, len(others + held)):
        mixed.account(placement)
    for placement in rng.sample(others, len(others)):
        mixed.release(placement)
    assert _columns(mixed) == _columns(plain)
    named = {device for each in held if not each.unnamed for device in each.devices}
    well = {device.id for device in node.devices if device.healthy and not device.profile}
    left = len(well - named) - sum(each.unnamed for each in held)
    assert plain.free_gpus(node.name) == max(left, 0)


def _holder(key: str, node: Node, wish: int | list[int], amount: int) -> Placement:
    """What is so already may be of any size."""
    if isinstance(wish, int):
        return Placement(key, node.name, unnamed=wish, resources=(("cpu", amount),))
    share = {"exclusive": amount < 2, "milli": amount, "memory_mib": amount}
    return Placement(key, node.name, devices=tuple(wish), resources=(("odd", amount),), **share)  # type: ignore[arg-type]


_conditions = st.builds(
    Expression,
    st.sampled_from(["zone", "rack"]),
    st.just("In"),
    st.sampled_from([("a",), ("b",), ("a", "b")]),
)
_alternatives = st.lists(
    st.builds(Term, st.lists(_conditions, max_size=2).map(tuple)), min_size=1, max_size=3
).map(tuple)


@cases(200)
@given(_alternatives, st.lists(_alternatives, min_size=3, max_size=3).map(tuple))
def test_lists_of_alternatives_mean_what_their_product_means(
    own: Alternatives, reach: tuple[Alternatives, ...]
) -> None:
    labels = [{"zone": zone, "rack": rack} for zone in "abc" for rack in "abc"]
    cluster = Cluster([new_node(f"n{at}", 1, labels=each) for at, each in enumerate(labels)])
    apart = Shape(gpus=1, affinity=own, reach=reach)
    product = Shape(gpus=1, affinity=volumes.all_of((own, *reach)))
    for each in cluster:
        assert fits(apart, cluster, each.name) == fits(product, cluster, each.name)
