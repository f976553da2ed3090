"""What must hold of gangs in any small world: places are right, and a gang that fits is not refused."""

import random
from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang, GangRefusal, decide_gang
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.policies.registry import Registry
from tests.support import oracle
from tests.support.examples import cases
from tests.support.generators import ALLOCATORS, STRATEGIES, World, a_shape

REGISTRY = Registry()


@cases(300)
@given(st.builds(World, seed=st.integers(0, 2**32), size=st.integers(1, 3), length=st.just(0)))
def test_places_of_a_gang_are_right_and_a_gang_that_fits_is_not_refused(made: World) -> None:
    rng = Random(made.seed)
    shapes = [_plain(rng) if rng.random() < 0.7 else a_shape(rng) for _ in range(2)]
    names = rng.choice(STRATEGIES), rng.choice(ALLOCATORS)
    members = tuple(
        Request(f"m{number}", rng.choice(shapes), strategy=names[0], allocator=names[1])
        for number in range(rng.randint(1, 5))
    )
    least = rng.randint(1, len(members)) if rng.random() < 0.3 else len(members)
    terms = GangTerms("g", least, domain="zone" if rng.random() < 0.3 else "")
    gang = Gang(terms, members, least)
    answer = decide_gang(gang, Cluster(made.nodes), _policy, random.Random(1))
    if isinstance(answer, GangRefusal):
        if all(each.shape in shapes and _is_plain(each.shape) for each in members):
            assert not _fits(gang, made.nodes), (gang, answer.refusal.message)
    else:
        _check(gang, made.nodes, answer)


def _policy(member: Request) -> Policy:
    return REGISTRY.policy(member.strategy, member.allocator)


def _plain(rng: Random) -> Shape:
    """Whole devices of any kind: of these every node can take any that are free."""
    return Shape(gpus=rng.choice([0, 1, 1, 2, 2, 3, 4]), resources=rng.choice([(), (("cpu", 1),)]))


def _is_plain(shape: Shape) -> bool:
    return replace(Shape(gpus=shape.gpus), resources=shape.resources) == shape


def _check(gang: Gang, nodes: list[Node], placed: tuple[Placement, ...]) -> None:
    shapes = {each.key: each.shape for each in gang.members}
    assert len({each.key for each in placed}) == len(placed) >= gang.least
    held: dict[str, list[Placement]] = {node.name: [] for node in nodes}
    by_name = {node.name: node for node in nodes}
    for each in placed:
        node, shape = by_name[each.node], shapes[each.key]
        assert oracle.fits(shape, node, held[each.node])
        assert not shape.gpus or each.devices in oracle.possible_sets(shape, node, held[each.node])
        held[each.node].append(each)
    if gang.terms.domain:
        values = {dict(by_name[each.node].labels).get(gang.terms.domain) for each in placed}
        assert len(values) == 1
        assert None not in values


def _fits(gang: Gang, nodes: list[Node]) -> bool:
    """Try every way to give members to nodes, and none, if the gang may start without them."""
    choices = [*nodes, None] if gang.least < len(gang.members) else list(nodes)
    values = (
        {dict(node.labels).get(gang.terms.domain) for node in nodes} - {None} if gang.terms.domain else {None}
    )
    return any(
        _is_possible(gang, way)
        for value in values
        for way in product(
            [
                n
                for n in choices
                if n is None or not gang.terms.domain or dict(n.labels).get(gang.terms.domain) == value
            ],
            repeat=len(gang.members),
        )
    )


def _is_possible(gang: Gang, way: tuple[Node | None, ...]) -> bool:
    if sum(node is not None for node in way) < gang.least:
        return False
    on: dict[str, list[Shape]] = {}
    nodes = {node.name: node for node in way if node is not None}
    for member, node in zip(gang.members, way, strict=True):
        if node is not None:
            on.setdefault(node.name, []).append(member.shape)
    return all(_node_takes(nodes[name], shapes) for name, shapes in on.items())


def _node_takes(node: Node, shapes: list[Shape]) -> bool:
    def rest_fits(left: list[Shape], held: list[Placement]) -> bool:
        if not left:
            return True
        shape = left[0]
        if not oracle.fits(shape, node, held):
            return False
        sets = oracle.possible_sets(shape, node, held) if shape.gpus else [()]
        taken = (
            Placement(f"t{len(held)}", node.name, devices=each, resources=shape.resources) for each in sets
        )
        return any(rest_fits(left[1:], [*held, each]) for each in taken)

    return rest_fits(sorted(shapes, key=lambda each: -each.gpus), [])
