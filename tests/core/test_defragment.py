"""Which pods would have to move so that a shape finds room, and what is said if none can."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.defragment import Movable, Moves, NoMoves, Terms, find
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.core.victims import Evictable
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, request, two_islands, whole

REGISTRY = Registry()


def movable(
    *held: Placement, terms: GangTerms | None = None, asks: dict[str, Any] | None = None, **more: Any
) -> Movable:
    members = tuple(request(each.key, len(each.devices), **(asks or {})) for each in held)
    return Movable(Evictable(held[0].key, held, pods=len(held), **more), members, terms)


def sought(
    gpus: int,
    *movables: Movable,
    nodes: str | tuple[Node, ...] = "abc",
    count: int = 1,
    stays: tuple[Placement, ...] = (),
    budgets: dict[str, int] | None = None,
    **shape: Any,
) -> Moves | NoMoves:
    """Nodes given as letters have four GPUs."""
    made = tuple(node(name, 4) for name in nodes) if isinstance(nodes, str) else nodes
    held = [*stays, *(each for movable in movables for each in movable.held.placements)]
    world = cluster(*made, held=held)
    before = {each.name: world.held_on(each.name) for each in made}
    wanted = [request(f"wanted {at}", gpus, **shape) for at in range(count)]
    terms = Terms(lambda _: REGISTRY.policy(), random.Random(1), budgets or {})
    answer = find(wanted, world, movables, terms)
    assert {each.name: world.held_on(each.name) for each in made} == before  # it changes nothing
    return answer


def moved(answer: Moves | NoMoves) -> dict[str, str]:
    """Return where each that moves could go."""
    assert isinstance(answer, Moves), answer.message
    return {place.key: place.node for each in answer.moves for place in each.places}


def room(answer: Moves | NoMoves) -> list[str]:
    assert isinstance(answer, Moves), answer.message
    return sorted(each.node for each in answer.room)


def why(answer: Moves | NoMoves) -> str:
    assert isinstance(answer, NoMoves), answer
    return answer.message


def test_nothing_moves_where_there_is_room_already() -> None:
    answer = sought(4, movable(whole("p", "a", 0)), nodes="ab")
    assert (moved(answer), room(answer)) == ({}, ["b"])


def test_node_from_which_the_fewest_must_go_is_cleared() -> None:
    one, two = movable(whole("one", "a", 0)), movable(whole("two", "b", 0), lost_gpu_s=9.0)
    answer = sought(4, one, movable(whole("x", "b", 1)), two, stays=(whole("kept", "c", 0, 1),))
    assert (set(moved(answer)), room(answer)) == ({"one"}, ["a"])


def test_of_equally_few_those_that_lose_the_least_work_go() -> None:
    old, young = movable(whole("old", "a", 0), lost_gpu_s=900.0), movable(whole("young", "b", 0))
    answer = sought(4, old, young, nodes="ab")
    assert moved(answer) == {"young": "a"}


def test_pod_that_fits_nowhere_else_does_not_move() -> None:
    large, small = movable(whole("large", "a", 0, 1, 2)), movable(whole("small", "b", 0))
    others = movable(whole("x", "b", 1)), movable(whole("y", "b", 2))
    answer = sought(3, large, small, *others, nodes="ab")
    assert why(answer) == (
        "0/2 nodes fit: 2 have fewer than 3 free GPUs; no moves make room: "
        "on 2 nodes what would have to move fits nowhere else"
    )
    answer = sought(3, large, small, *others, nodes="abc", stays=(whole("kept", "c", 0, 1),))
    assert moved(answer) == {"small": "c", "x": "c"} or len(moved(answer)) == 2


def test_pod_does_not_move_to_a_node_that_is_being_cleared() -> None:
    """Two nodes are wanted. Each could take what the other one has."""
    answer = sought(4, movable(whole("p", "a", 0)), movable(whole("q", "b", 0)), nodes="ab", count=2)
    assert why(answer).endswith("fits nowhere else")
    answer = sought(4, movable(whole("p", "a", 0)), movable(whole("q", "b", 0)), nodes="abc", count=2)
    assert (len(moved(answer)), len(set(room(answer)))) == (1, 2)


def test_several_of_a_shape_share_a_node_that_is_cleared() -> None:
    answer = sought(2, movable(whole("p", "a", 0)), nodes="ab", count=2, stays=(whole("kept", "b", 0, 1, 2),))
    assert (moved(answer), room(answer)) == ({"p": "b"}, ["a", "a"])


def test_pods_whose_owner_does_not_allow_it_stay() -> None:
    answer = sought(
        4, movable(whole("p", "a", 0)), nodes="ab", stays=(whole("q", "a", 1), whole("r", "b", 0))
    )
    assert why(answer).endswith("no moves make room: on 2 nodes what is in the way may not be moved")


def test_budget_is_kept_and_named() -> None:
    guarded = (
        movable(whole("p", "a", 0), budgets=("ml/web",)),
        movable(whole("q", "a", 1), budgets=("ml/web",)),
    )
    full = (whole("kept", "b", 0),)
    answer = sought(4, *guarded, nodes="ab", stays=full, budgets={"ml/web": 1})
    assert why(answer).endswith(
        "on 1 node what is in the way may not be moved, on 1 node disruption budget ml/web forbids it"
    )
    assert moved(sought(4, *guarded, nodes="ab", stays=full, budgets={"ml/web": 2})) == {"p": "b", "q": "b"}


def test_gang_moves_whole_or_not() -> None:
    gang = movable(whole("g0", "a", 0), whole("g1", "b", 0), terms=GangTerms("g", 2))
    assert moved(sought(4, gang, nodes="abc", stays=(whole("kept", "c", 0),))).keys() == {"g0", "g1"}
    full = (whole("kept", "c", 0, 1, 2, 3), whole("more", "b", 1, 2, 3))
    assert isinstance(sought(4, gang, nodes="abc", stays=full), NoMoves)


def test_gang_stays_in_one_domain() -> None:
    racks = tuple(
        node(name, 4, labels={"rack": rack})
        for name, rack in (("a", "1"), ("b", "2"), ("c", "3"), ("d", "3"))
    )
    gang = movable(whole("g0", "a", 0, 1), whole("g1", "a", 2, 3), terms=GangTerms("g", 2, "rack"))
    stays = (whole("k1", "b", 0, 1), whole("k2", "c", 0, 1), whole("k3", "d", 0, 1))
    answer = sought(4, gang, nodes=racks, stays=stays)
    assert set(moved(answer).values()) == {"c", "d"}


def test_moved_pod_is_asked_for_as_its_owner_did() -> None:
    picky = movable(whole("p", "a", 0), asks={"labels": {"disk": "fast"}})
    assert isinstance(sought(4, picky, nodes="ab", stays=(whole("kept", "b", 0),)), NoMoves)
    fast = node("a", 4), node("b", 4), node("c", 4, labels={"disk": "fast"})
    stays = (whole("kept", "b", 0), whole("more", "c", 0))
    assert moved(sought(4, picky, nodes=fast, stays=stays)) == {"p": "c"}


def test_links_between_the_devices_count() -> None:
    """Four are free on the node, two in each island."""
    made = node("a", 8, links=two_islands()), node("b", 2)
    held = [movable(whole(f"p{at}", "a", at)) for at in (0, 1, 4, 5)]
    answer = sought(4, *held, nodes=made, mode="Required", min_bandwidth_gbps=600)
    assert set(moved(answer)) in ({"p0", "p1"}, {"p4", "p5"})
    assert set(moved(answer).values()) == {"b"}


def test_small_nodes_are_not_said_to_be_in_the_way() -> None:
    answer = sought(8, nodes=(node("a", 8), node("b", 2)), stays=(whole("kept", "a", 0), whole("x", "b", 0)))
    assert why(answer).endswith("on 1 node what is in the way may not be moved")


@pytest.mark.parametrize("count", [1, 3])
def test_large_world_is_cleared_where_it_costs_least(count: int) -> None:
    nodes = tuple(node(f"n{at:03}", 8) for at in range(200))
    held = [movable(whole(f"p{at}-{gpu}", f"n{at:03}", gpu)) for at in range(200) for gpu in range(0, 8, 2)]
    answer = sought(8, *held, nodes=nodes, count=count)
    assert (len(moved(answer)), len(set(room(answer)))) == (4 * count, count)
