"""What a queue has back for a gang: compared with every set of pods there is."""

from collections import defaultdict
from itertools import chain, combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.gang_victims import Asked, GangVictims, choose, rooms_without
from gpu_orchestrator.core.queues import Queues
from gpu_orchestrator.core.reclaim import ByQueues
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.core.victims import Cost, Evictable, NoVictims
from tests.properties.test_reclaim import MODEL_OF, POLICY, World, a_world, cost_of, is_allowed
from tests.support import gang_search, quota_oracle
from tests.support.examples import cases

Gone = tuple[Evictable, ...]


@cases(300)
@given(seed=st.integers(0, 2**32))
def test_gang_has_back_what_its_queue_is_guaranteed_by_the_fewest(seed: int) -> None:
    rng = Random(seed)
    world, count = a_world(rng), rng.choice([2, 2, 3])
    queue = rng.choice(["a", "a", "c", "d", "org"])
    shape = Shape(gpus=rng.choice([1, 1, 2]), models=rng.choice([(), (), ("H100",)]))
    terms, preempts = GangTerms("g", count), rng.random() < 0.5
    members = tuple(
        Request(f"m{at}", shape, priority=rng.choice([1, 2]), queue=queue, gang=terms) for at in range(count)
    )
    gang, together = Gang(terms, members, count), _as_one(members)
    cluster, queues = Cluster(world.nodes), Queues()
    for each in world.terms.values():
        queues.update(each)
    for placement in world.held:
        cluster.place(placement)
        amounts = ((MODEL_OF[placement.node], 1000 * len(placement.devices)),)
        queues.take(placement.key, world.queue_of[placement.key], amounts)
    models = [MODEL_OF[each.name] for each in world.nodes]
    rules = ByQueues(members, queues, lambda: models, preempts=preempts)
    asked = Asked(gang, lambda _: POLICY, rng)
    fits_now = rooms_without(asked, cluster, (), rules) is not None
    assert fits_now == _fits(gang, together, (), world)
    if fits_now:
        return
    answer = choose(asked, cluster, world.evictables, world.budgets, rules)
    best = _cheapest(gang, together, world, preempts=preempts)
    if isinstance(answer, NoVictims):
        assert best is None, best
        return
    assert is_allowed(together, answer.evictables, world, preempts=preempts)
    assert _fits(gang, together, answer.evictables, world)
    assert cost_of(answer.evictables) == best
    _check_that_it_starts(gang, answer, world)


def _as_one(members: tuple[Request, ...]) -> Request:
    """Return one request for all that the members ask for, with the lowest priority of them."""
    shape, lowest = members[0].shape, min(each.priority for each in members)
    gpus = sum(each.shape.gpus for each in members)
    return Request("together", Shape(gpus=gpus, models=shape.models), lowest, queue=members[0].queue)


def _cheapest(gang: Gang, together: Request, world: World, *, preempts: bool) -> Cost | None:
    all_of = world.evictables
    sets = chain.from_iterable(combinations(all_of, size) for size in range(1, len(all_of) + 1))
    allowed = (each for each in sets if is_allowed(together, each, world, preempts=preempts))
    return next(
        (cost_of(each) for each in sorted(allowed, key=cost_of) if _fits(gang, together, each, world)), None
    )


def _fits(gang: Gang, together: Request, gone: Gone, world: World) -> bool:
    """On nodes of models of which all queues above have room for the whole gang."""
    ended, left = {place.key for each in gone for place in each.placements}, defaultdict(list)
    for each in world.held:
        if each.key not in ended:
            left[each.node].append(each)
    used, milli = world.used(gone), 1000 * together.shape.gpus
    path = quota_oracle.path(together.queue, world.terms) or []

    def has_room(model: str) -> bool:
        return all(used[name][model] + milli <= quota_oracle.most(name, model, world.terms) for name in path)

    nodes = [each for each in world.nodes if has_room(MODEL_OF[each.name])]
    wanted = together.shape.models
    nodes = [each for each in nodes if not wanted or MODEL_OF[each.name] in wanted]
    return bool(path) and has_room("*") and gang_search.fits(gang, nodes, left)


def _check_that_it_starts(gang: Gang, answer: GangVictims, world: World) -> None:
    """The rooms are free once the victims are gone."""
    cluster = Cluster(world.nodes)
    gone = {place.key for each in answer.evictables for place in each.placements}
    for placement in (*(each for each in world.held if each.key not in gone), *answer.rooms):
        cluster.place(placement)  # raises if anything is given twice
    assert {each.key for each in answer.rooms} == {each.key for each in gang.members}
