"""What must hold of gangs in any small world: places are right, and a gang that fits is not refused."""

import random
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang, GangRefusal, decide_gang
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.node import node as new_node
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import GangTerms, Request, Shape, request
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    NodeUpdated,
    Placed,
    PlaceFailed,
    PlaceGang,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.policies.registry import Registry
from tests.support import gang_search, oracle
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
            assert not gang_search.fits(gang, made.nodes, {}), (gang, answer.refusal.message)
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


@cases(200)
@given(st.integers(0, 2**32))
def test_gangs_start_whole_and_each_that_fits_starts(seed: int) -> None:
    """Members of several gangs come in any order. A gang holds everything or nothing at any moment, and when
    nothing moves any more, none that waits would fit."""
    rng = Random(seed)
    nodes = [new_node(name, rng.choice([2, 4, 4])) for name in "abc"[: rng.randint(1, 3)]]
    gangs = [_members(rng, name) for name in "xyz"[: rng.randint(2, 3)]]
    came = [each for gang in gangs for each in gang]
    rng.shuffle(came)
    engine, now, running = Engine(REGISTRY.policy_of, Random(1)), 0.0, dict[str, Placement]()
    engine.handle_all(map(NodeUpdated, nodes), now)
    for asked in came:
        _start(engine.handle(RequestAdded(asked), now), engine, running, now, rng)
    for _ in range(40):
        now += 11.0  # longer than any rest
        actions = engine.handle(Tick(), now)
        _start(actions, engine, running, now, rng)
        waiting = _judge(gangs, nodes, running, is_quiet=not actions)
        if actions:
            continue
        if not waiting:
            return
        if not running:
            break
        ended = next(gang for gang in gangs if gang[0].key in running)
        gangs.remove(ended)
        for each in ended:
            running.pop(each.key)
        _start(engine.handle_all([RequestRemoved(e.key) for e in ended], now), engine, running, now, rng)
    assert not any(gang_search.fits(_gang(each), nodes, {}) for each in waiting)


def _members(rng: Random, name: str) -> list[Request]:
    sizes = [rng.choice([0, 1, 1, 2, 2, 3, 4]) for _ in range(rng.randint(2, 4))]
    if rng.random() < 0.5:
        sizes = [rng.choice([1, 2, 4])] * len(sizes)
    terms = GangTerms(name, len(sizes))
    return [request(f"{name}{at}", size, gang=terms, priority=len(sizes)) for at, size in enumerate(sizes)]


def _gang(members: list[Request]) -> Gang:
    assert members[0].gang is not None
    return Gang(members[0].gang, tuple(members), len(members))


def _start(
    actions: list[Action], engine: Engine, running: dict[str, Placement], now: float, rng: Random
) -> None:
    """Carry out what the engine wants; sometimes it cannot be done, and then none of a gang is."""
    for action in actions:
        if isinstance(action, PlaceGang):
            keys = [each.request.key for each in action.places]
            if rng.random() < 0.2:
                later = engine.handle_all(map(PlaceFailed, keys), now)
            else:
                running |= {each.request.key: each.placement for each in action.places}
                later = engine.handle_all(map(Placed, keys), now)
            _start(later, engine, running, now, rng)


def _judge(
    gangs: list[list[Request]], nodes: list[Node], running: dict[str, Placement], *, is_quiet: bool
) -> list[list[Request]]:
    """Return the gangs that wait, after checking that each runs whole or not at all, and rightly waits."""
    held: dict[str, list[Placement]] = {}
    for placement in running.values():
        held.setdefault(placement.node, []).append(placement)
    for node in nodes:
        used = [device for each in held.get(node.name, ()) for device in each.devices]
        assert len(used) == len(set(used)) <= len(node.devices)
    waiting = [gang for gang in gangs if gang[0].key not in running]
    for gang in gangs:
        assert len({each.key in running for each in gang}) == 1, "a part of the gang runs"
    for gang in waiting if is_quiet else ():
        assert not gang_search.fits(_gang(gang), nodes, held), "it fits and waits"
    return waiting
