"""Which bound pods may move, and what to make room for."""

from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import OwnerReference
from gpu_orchestrator.apps.scheduler.cycle.preemptible import Budget
from gpu_orchestrator.apps.scheduler.defrag import movable, plan
from gpu_orchestrator.apps.scheduler.defrag.look import Seen
from gpu_orchestrator.apps.scheduler.defrag.plan import BadWish, Wish
from gpu_orchestrator.cli import defrag_run
from gpu_orchestrator.core.defragment import Moves, NoMoves
from gpu_orchestrator.core.pod_rules import PodSelector
from gpu_orchestrator.policies.registry import Registry
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod

NOW = datetime(2026, 11, 19, 12, 0, 0, tzinfo=UTC)
OWNER = OwnerReference("apps/v1", "ReplicaSet", "r", "uid-r", controller=True)


def bound(name: str, where: str, *, movable: str | None = "true", owner: bool = True, **more: Any) -> Pod:
    """Return a bound pod that may move."""
    ids = where.partition(":")[2].split(",")
    made = pod(name, gpus=len(ids), node=where.partition(":")[0], allocated=where, phase="Running", **more)
    annotations = made.metadata.annotations | ({} if movable is None else {"gpu.scheduling/movable": movable})
    owners = [OWNER] if owner else []
    meta = msgspec.structs.replace(made.metadata, annotations=annotations, owner_references=owners)
    return msgspec.structs.replace(made, metadata=meta)


def seen(*pods: Pod, nodes: str = "ab", budgets: tuple[Budget, ...] = (), **labels: Any) -> Seen:
    """Nodes have eight GPUs."""
    world = World(*(node(name, **labels) for name in nodes), opened=False, uses_leases=False)
    for each in pods:
        world.pod(each)
    list(world.coordinator.count_holdings())
    return Seen(world.coordinator, budgets, Registry(), NOW)


def found(*pods: Pod, **more: Any) -> tuple[list[str], dict[str, int]]:
    answer = movable.find(seen(*pods, **more))
    return [each.held.key for each in answer.movables], dict(answer.kept)


@pytest.mark.parametrize("said", [None, "True", "yes", "", "true ", "t" * 10_000])
def test_only_the_word_true_allows_it(said: str | None) -> None:
    assert found(bound("p", "a:0", movable=said)) == ([], {movable.NOT_ALLOWED: 1})
    assert found(bound("p", "a:0")) == (["uid-p"], {})


def test_pod_that_nobody_makes_again_stays() -> None:
    assert found(bound("p", "a:0", owner=False)) == ([], {movable.NOT_MADE_AGAIN: 1})


def test_gang_moves_if_all_of_its_members_may() -> None:
    members = [bound(f"m{at}", f"a:{at}", gang="g", gang_size=2) for at in range(2)]
    [gang] = movable.find(seen(*members)).movables
    assert (gang.held.pods, gang.terms and gang.terms.name) == (2, "default/g")
    assert found(members[0], bound("m1", "a:1", movable=None, gang="g", gang_size=2)) == (
        [],
        {movable.WITH_OTHERS: 2},
    )


def test_pod_that_would_be_refused_stays() -> None:
    made = bound("p", "a:0")
    two_ways = {**made.metadata.annotations, "gpu.scheduling/claim": "c"}
    meta = msgspec.structs.replace(made.metadata, annotations=two_ways)
    odd = msgspec.structs.replace(made, metadata=meta)
    assert found(odd) == ([], {movable.CANNOT_BE_ASKED: 1})


def planned(view: Seen, **wish: Any) -> plan.Plan:
    return plan.make(view, Wish(**wish), Random(1))


def test_moves_are_told_with_their_nodes_and_what_is_lost() -> None:
    view = seen(bound("p", "a:0"), bound("q", "b:0,1", movable=None))
    made = planned(view, gpus=8)
    assert isinstance(made.answer, Moves)
    told = defrag_run.as_json(made)
    [move] = told["moves"]
    assert (move["pod"], move["from"], move["to"], move["gpus"]) == ("default/p", "a", "b", 1)
    assert [each["node"] for each in told["room"]] == ["a"]
    assert (told["movablePods"], sum(told["keptPods"].values())) == (1, 1)


def test_budget_of_its_namespace_keeps_a_pod() -> None:
    guard = Budget("default/all", PodSelector(frozenset({"default"}), ()), 0)
    made = planned(seen(bound("p", "a:0"), bound("q", "b:0,1", movable=None), budgets=(guard,)), gpus=8)
    assert isinstance(made.answer, NoMoves)
    assert "disruption budget default/all forbids it" in made.answer.message


def test_pod_that_waits_is_made_room_for_with_its_gang() -> None:
    waiting = [pod(f"m{at}", gpus=8, gang="g", gang_size=2) for at in range(2)]
    view = seen(bound("p", "a:0"), bound("q", "b:0"), *waiting, nodes="abc")
    made = planned(view, pod="default/m0")
    assert len(made.wanted) == 2
    assert isinstance(made.answer, Moves)
    assert made.answer.cost[0] == 1


def test_gang_that_wants_one_rack_gets_one() -> None:
    more: dict[str, Any] = {"gang": "g", "gang_size": 2, "topology_required": "kubernetes.io/hostname"}
    waiting = [pod(f"m{at}", gpus=4, **more) for at in range(2)]
    view = seen(bound("p", "a:0"), bound("q", "b:0,1", movable=None), *waiting)
    with pytest.raises(BadWish, match=r"no node has the label kubernetes\.io/hostname"):
        planned(view, pod="default/m0")


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        pytest.param({"pod": "default/none"}, "there is no pod default/none", id="no such pod"),
        pytest.param({"pod": "default/p"}, "has a node already: a", id="bound"),
        pytest.param({"pod": "default/mine"}, "is for the scheduler 'mine'", id="another scheduler"),
        pytest.param({"pod": "default/bad"}, "gpus is 'many'", id="bad request"),
        pytest.param({"gpus": 1, "strategy": "best"}, "unknown strategy 'best'", id="unknown strategy"),
        pytest.param({"gpus": 1, "policy": "best"}, "unknown .*'best'", id="unknown policy"),
    ],
)
def test_what_nobody_could_make_room_for_is_refused(wish: dict[str, Any], why: str) -> None:
    view = seen(bound("p", "a:0"), pod("mine", gpus=1, schedulerName="mine"), pod("bad", gpus="many"))
    with pytest.raises(BadWish, match=why):
        planned(view, **wish)
