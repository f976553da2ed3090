"""What a queue has back of what it is guaranteed: compared with every set of pods there is."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.node import Node, node
from gpu_orchestrator.core.node_victims import Victims, choose
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.queues import Full, Queues
from gpu_orchestrator.core.reclaim import ByQueues
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.victims import Cost, Evictable, NoVictims
from gpu_orchestrator.policies.registry import Registry
from tests.support import oracle, quota_oracle
from tests.support.examples import cases

POLICY = Registry().policy()
PARENTS = {"org": "", "a": "org", "b": "org", "c": "", "d": "c"}
MODEL_OF = {"n": "H100", "m": "L4"}
Used = dict[str, dict[str, int]]


@dataclass
class World:
    nodes: list[Node]
    terms: dict[str, QueueTerms]
    held: list[Placement]
    queue_of: dict[str, str]
    evictables: list[Evictable]
    budgets: dict[str, int]

    def used(self, gone: Iterable[Evictable] = ()) -> Used:
        """Return what each queue and all below it use, by model."""
        ended = {each.key for evictable in gone for each in evictable.placements}
        found: Used = defaultdict(lambda: defaultdict(int))
        for each in self.held:
            for name in quota_oracle.path(self.queue_of[each.key], self.terms) or ():
                if each.key not in ended:
                    found[name][MODEL_OF[each.node]] += 1000 * len(each.devices)
                    found[name]["*"] += 1000 * len(each.devices)
        return found


def a_world(rng: Random) -> World:
    nodes = [node("n", 4, model="H100"), node("m", 3, model="L4")][: rng.choice([1, 2, 2])]
    terms = {name: _terms(rng, name) for name in PARENTS}
    cluster, held, queue_of = Cluster(nodes), list[Placement](), dict[str, str]()
    for number in range(rng.choice([4, 7, 9])):
        asked = Request(f"p{number}", Shape(gpus=rng.choice([1, 1, 1, 2])))
        answer = decide(asked, cluster, POLICY, rng)
        if isinstance(answer, Placement):
            cluster.place(answer)
            held.append(answer)
            queue_of[asked.key] = rng.choice(["", "a", "b", "b", "c", "d", "org"])
    evictables = [_unit(rng, part) for part in _parts(rng, held)]
    return World(nodes, terms, held, queue_of, evictables, {"x": rng.randint(0, 1)})


def _terms(rng: Random, name: str) -> QueueTerms:
    def amounts(most: int) -> dict[str, int]:
        some = {model: rng.randint(0, most) * 1000 for model in MODEL_OF.values() if rng.random() < 0.2}
        return some | ({"*": rng.randint(0, most) * 1000} if rng.random() < 0.7 else {})

    return QueueTerms(
        name,
        PARENTS[name],
        guaranteed=amounts(4),
        limit=amounts(7) if rng.random() < 0.4 else {},
        borrowing=rng.random() < 0.8,
        reclaim=rng.choice(["never", "lower", "any", "any"]),
        within=rng.choice(["never", "lower"]),
    )


def _parts(rng: Random, held: list[Placement]) -> list[tuple[Placement, ...]]:
    left, found = list(held), list[tuple[Placement, ...]]()
    while left:
        size = rng.choice([1, 1, 1, 2])
        found.append(tuple(left[:size]))
        left = left[size:]
    return found


def _unit(rng: Random, members: tuple[Placement, ...]) -> Evictable:
    budgets = ("x",) * len(members) if rng.random() < 0.15 else ()
    lost = rng.choice([10.0, 10.0, 300.0])
    return Evictable(members[0].key, members, rng.choice([0, 0, 1, 2]), lost, budgets)


@cases(400)
@given(seed=st.integers(0, 2**32))
def test_reclaim_takes_the_fewest_that_its_rules_allow(seed: int) -> None:
    rng = Random(seed)
    world = a_world(rng)
    queue = rng.choice(["a", "a", "c", "d", "org"])
    shape = Shape(gpus=rng.choice([1, 2, 3]), models=rng.choice([(), (), ("H100",)]))
    asked, preempts = Request("asked", shape, priority=rng.choice([1, 1, 2]), queue=queue), rng.random() < 0.5
    cluster, queues = Cluster(world.nodes), Queues()
    for each in world.terms.values():
        queues.update(each)
    for placement in world.held:
        cluster.place(placement)
        amounts = ((MODEL_OF[placement.node], 1000 * len(placement.devices)),)
        queues.take(placement.key, world.queue_of[placement.key], amounts)
    models = [MODEL_OF[each.name] for each in world.nodes]
    fits = any(_fits(asked, (), each, world) for each in world.nodes)
    rules = ByQueues((asked,), queues, lambda: models, preempts=preempts)
    if fits and not isinstance(queues.judge(queue, shape.gpus * 1000, shape.models, lambda: models), Full):
        return
    answer = choose(asked, cluster, POLICY, world.evictables, world.budgets, rules)
    best = _cheapest(asked, world, preempts=preempts)
    if isinstance(answer, NoVictims):
        assert best is None, best
        return
    _check(asked, answer, world, preempts=preempts)
    assert cost_of(answer.evictables) == best


def _check(asked: Request, answer: Victims, world: World, *, preempts: bool) -> None:
    where = next(each for each in world.nodes if each.name == answer.node)
    assert is_allowed(asked, answer.evictables, world, preempts=preempts)
    assert _fits(asked, answer.evictables, where, world)


def _cheapest(asked: Request, world: World, *, preempts: bool) -> Cost | None:
    all_of = world.evictables
    sets = chain.from_iterable(combinations(all_of, size) for size in range(1, len(all_of) + 1))
    return min(
        (
            cost_of(each)
            for each in sets
            if is_allowed(asked, each, world, preempts=preempts)
            and any(_fits(asked, each, where, world) for where in world.nodes)
        ),
        default=None,
    )


def cost_of(chosen: tuple[Evictable, ...]) -> Cost:
    highest = max(each.priority for each in chosen)
    return sum(len(each.placements) for each in chosen), highest, sum(each.lost_gpu_s for each in chosen)


def _fits(asked: Request, gone: tuple[Evictable, ...], where: Node, world: World) -> bool:
    """On this node, and by the limits of its queue and those above it."""
    ended = {each.key for evictable in gone for each in evictable.placements}
    left = [each for each in world.held if each.key not in ended and each.node == where.name]
    used, model, milli = world.used(gone), MODEL_OF[where.name], asked.shape.gpus * 1000
    return oracle.fits(asked.shape, where, left) and all(
        used[name][each] + milli <= quota_oracle.most(name, each, world.terms)
        for name in quota_oracle.path(asked.queue, world.terms) or ()
        for each in ("*", model)
    )


def is_allowed(asked: Request, chosen: tuple[Evictable, ...], world: World, *, preempts: bool) -> bool:
    budgets = [name for evictable in chosen for name in evictable.budgets]
    if any(budgets.count(name) > allowed for name, allowed in world.budgets.items()):
        return False
    return all(may_go(asked, each, world, preempts=preempts) for each in chosen) and keep_theirs(
        asked, chosen, world
    )


def may_go(asked: Request, evictable: Evictable, world: World, *, preempts: bool) -> bool:
    """A gang may be in several queues, and may go if each allows it."""
    in_queues = [each for each in evictable.placements if world.queue_of[each.key]]
    is_lower = evictable.priority < asked.priority
    if not in_queues:
        return preempts and is_lower
    terms, used, milli = world.terms[asked.queue], world.used(), asked.shape.gpus * 1000
    mine = quota_oracle.path(asked.queue, world.terms) or []
    for each in in_queues:
        other = quota_oracle.path(world.queue_of[each.key], world.terms) or []
        if other[0] == asked.queue:
            if terms.within != "lower" or not is_lower:
                return False
            continue
        beside = [name for name in mine if name not in other]
        if not beside or terms.reclaim == "never" or (terms.reclaim == "lower" and not is_lower):
            return False
        for model in ("*", MODEL_OF[each.node]):
            if used[beside[-1]][model] + milli > quota_oracle.guaranteed(beside[-1], model, world.terms):
                return False
    return True


def keep_theirs(asked: Request, chosen: tuple[Evictable, ...], world: World) -> bool:
    left = world.used(chosen)
    mine = quota_oracle.path(asked.queue, world.terms) or []
    gone = [each for evictable in chosen for each in evictable.placements]
    for each in gone:
        other = quota_oracle.path(world.queue_of[each.key], world.terms) or []
        if other and other[0] in mine:
            continue
        for name in other:
            if name in mine:
                continue
            lost = {MODEL_OF[e.node] for e in gone if name in _path_of(e, world)}
            has_all = left[name]["*"] >= quota_oracle.guaranteed(name, "*", world.terms)
            has_each = all(left[name][m] >= quota_oracle.guaranteed(name, m, world.terms) for m in lost)
            if not (has_all or has_each):
                return False
    return True


def _path_of(placement: Placement, world: World) -> list[str]:
    return quota_oracle.path(world.queue_of[placement.key], world.terms) or []
