"""What is free and which workloads wait for it, from the events of the watches."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import structlog

from gpu_orchestrator.api import translate
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.jobs import template
from gpu_orchestrator.apps.operator.observe.capacity import Capacity
from gpu_orchestrator.apps.operator.observe.claimed_nodes import CLAIMED
from gpu_orchestrator.apps.operator.planning import place
from gpu_orchestrator.apps.operator.planning.snapshot import Given, Volumes, WorkloadSnapshot
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.columns import Floats
from gpu_orchestrator.core.offers import Offers
from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.core.request import Expression, Request, Term
from gpu_orchestrator.policies.registry import Registry, UnknownPolicy
from tests.support.operator_builders import UID, job, node, pod, workload

NVIDIA = "nvidia.com/gpu"


class Stage:
    """A `Capacity`, and the workloads that it found a place for while they waited."""

    def __init__(self, *nodes: str, gpus: int = 4, seed: int = 1) -> None:
        self.found: list[str] = []
        self.capacity = Capacity(Registry(), random.Random(seed), clock=lambda: 0.0, found=self.found.append)
        for name in nodes:
            self.capacity.see_node(None, node(name, gpus))

    def ask(self, name: str, *, since: float = 0.0, most: int = 1, **fields: Any) -> Given | Refusal:
        self.capacity.see_workload(None, workload(name, **fields))
        return self.capacity.ask(f"team/{name}", wishes(name, **fields), since, most)

    def free(self, name: str) -> int:
        return self.capacity.engine.cluster.free_gpus(name)


def wishes(name: str, **fields: Any) -> list[Request]:
    snapshot = WorkloadSnapshot(workload(name, **fields))
    return place.wishes(snapshot, template.read(snapshot.workload))


def test_place_is_counted_once_as_decision_job_and_pod() -> None:
    stage = Stage("a")
    assert stage.ask("x", gpuCount=2) == Given("a", NVIDIA)
    assert stage.free("a") == 2
    made = job(workload("x", gpuCount=2), "a")
    stage.capacity.see_job(None, made)
    assert stage.free("a") == 2
    waiting = pod(made.metadata.name, gpus=2)
    stage.capacity.see_pod(None, waiting)
    assert stage.free("a") == 2
    bound = pod(made.metadata.name, gpus=2, node="a")
    stage.capacity.see_pod(waiting, bound)
    assert stage.free("a") == 2
    stage.capacity.see_pod(bound, None)  # ended; the Job does not show it yet
    assert stage.free("a") == 2
    stage.capacity.see_job(made, job(workload("x", gpuCount=2), "a", conditions={"Complete": ""}))
    assert stage.free("a") == 4


def test_pod_on_a_nearly_full_node_is_counted_once() -> None:
    stage = Stage("a", gpus=8)
    stage.capacity.see_pod(None, pod(uid="other", node="a", gpus=5))
    assert stage.ask("x", gpuCount=2) == Given("a", NVIDIA)
    made = job(workload("x", gpuCount=2), "a")
    stage.capacity.see_job(None, made)
    stage.capacity.see_pod(None, pod(made.metadata.name, gpus=2, node="a"))
    assert stage.free("a") == 1


def test_pod_seen_before_its_job_is_counted_once() -> None:
    stage = Stage("a")
    assert stage.ask("x", gpuCount=2) == Given("a", NVIDIA)
    made = job(workload("x", gpuCount=2), "a")
    bound = pod(made.metadata.name, gpus=2, node="a")
    stage.capacity.see_pod(None, bound)
    stage.capacity.see_job(None, made)
    assert stage.free("a") == 2
    stage.capacity.see_pod(bound, None)
    stage.capacity.see_job(made, None)
    assert stage.free("a") == 4
    assert stage.capacity.engine.counts()["in flight"] == 0


def test_job_found_after_a_restart_is_counted() -> None:
    stage = Stage("a")
    stage.capacity.see_job(None, job(workload("x"), "a"))
    stage.capacity.see_workload(None, workload("x"))
    assert isinstance(stage.ask("y"), Refusal)


@pytest.mark.parametrize(
    ("owner", "more"),
    [
        pytest.param({}, {}, id="workload that does not exist"),
        pytest.param({"uid": "another"}, {}, id="workload of the same name, created later"),
        pytest.param({"uid": UID}, {"suspend": True}, id="suspended"),
        pytest.param({"uid": UID}, {"deleting": True}, id="being deleted, maybe kept by a finalizer"),
    ],
)
def test_job_that_cannot_run_counts_for_nothing(owner: dict[str, str], more: dict[str, Any]) -> None:
    stage = Stage("a")
    if owner:
        stage.capacity.see_workload(None, workload("x", meta=owner))
    stage.capacity.see_job(None, job(workload("x"), "a", **more))
    assert stage.free("a") == 4
    assert stage.ask("y") == Given("a", NVIDIA)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"controller": False}, id="not the controller"),
        pytest.param({"kind": "Deployment"}, id="another kind"),
        pytest.param({"apiVersion": "example.com/v1"}, id="another group"),
    ],
)
def test_job_counts_only_if_a_workload_controls_it(change: dict[str, Any]) -> None:
    stage = Stage("a")
    stage.capacity.see_workload(None, workload("x"))
    made = job(workload("x"), "a")
    plain = msgspec.to_builtins(made)
    plain["metadata"]["ownerReferences"][0] |= change
    stage.capacity.see_job(None, msgspec.convert(plain, Job))
    assert stage.free("a") == 4
    stage.capacity.see_job(None, made)
    assert stage.free("a") == 0


def test_job_counts_while_its_workload_exists_and_it_is_not_suspended() -> None:
    stage = Stage("a")
    owner, made = workload("x"), job(workload("x"), "a")
    stage.capacity.see_job(None, made)
    stage.capacity.see_workload(None, owner)
    assert stage.free("a") == 0
    stage.capacity.see_job(made, job(owner, "a", suspend=True))
    assert stage.free("a") == 4
    stage.capacity.see_job(made, made)
    assert stage.free("a") == 0
    stage.capacity.see_workload(owner, None)
    assert stage.free("a") == 4
    stage.capacity.see_job(made, None)
    assert stage.free("a") == 4


def test_bound_pod_of_a_job_that_is_being_deleted_counts() -> None:
    stage = Stage("a")
    owner = workload("x")
    stage.capacity.see_workload(None, owner)
    made = job(owner, "a")
    bound = pod(made.metadata.name, gpus=4, node="a")
    stage.capacity.see_job(None, made)
    stage.capacity.see_pod(None, bound)
    stage.capacity.see_job(made, job(owner, "a", deleting=True))
    assert stage.free("a") == 0
    stage.capacity.see_pod(bound, None)
    assert stage.free("a") == 4


def test_suspended_job_uses_its_reservation_up() -> None:
    stage = Stage("a")
    assert stage.ask("x") == Given("a", NVIDIA)
    stage.capacity.see_job(None, job(workload("x"), "a", suspend=True))
    assert stage.ask("y") == Given("a", NVIDIA)


def test_forged_job_of_the_same_name_leaves_the_reservation() -> None:
    stage = Stage("a")
    assert stage.ask("x") == Given("a", NVIDIA)
    stage.capacity.see_job(None, job(workload("x"), "a", owned_by="another"))
    assert stage.ask("x") == Given("a", NVIDIA)
    assert isinstance(stage.ask("y"), Refusal)


def test_job_with_several_nodes_counts_on_the_first_until_its_pod_is_bound() -> None:
    stage = Stage("a", "b", "c")
    stage.capacity.see_node(None, node("d", 4, resource="amd.com/gpu"))
    assert stage.ask("x", gpuCount=2, most=3) == Given("a", NVIDIA, ("b", "c"))
    assert stage.ask("x", gpuCount=2, most=2) == Given("a", NVIDIA, ("b",))
    made = job(workload("x", gpuCount=2), "a", "b", "c")
    stage.capacity.see_job(None, made)
    assert [stage.free(name) for name in "abc"] == [2, 4, 4]
    stage.capacity.see_pod(None, pod(made.metadata.name, gpus=2, node="c"))
    assert [stage.free(name) for name in "abc"] == [4, 4, 2]


def test_other_nodes_are_named_in_the_order_of_the_strategy() -> None:
    stage = Stage("a", "b", "c")
    for name, used in (("a", 1), ("b", 3), ("c", 2)):
        stage.capacity.see_pod(None, pod(uid=name, node=name, gpus=used))
    assert stage.ask("x", gpuCount=1, most=9) == Given("a", NVIDIA, ("c", "b"))
    stage.capacity.withdraw("team/x")
    assert stage.ask("y", gpuCount=1, schedulingStrategy="binPack", most=9) == Given("b", NVIDIA, ("c", "a"))


def test_volumes_decide_where_a_workload_fits() -> None:
    stage = Stage("a")
    stage.capacity.see_node(None, node("b", 2, labels={"zone": "c"}))
    there = ((Term((Expression("zone", "In", ("c",)),)),),)
    for shunned, expected in ((frozenset[str](), "b"), (frozenset("b"), "b")):
        snapshot = WorkloadSnapshot(workload("x", gpuCount=1), volumes=Volumes(there), shunned=shunned)
        asked = place.wishes(snapshot, template.read(snapshot.workload))
        assert stage.capacity.ask("team/x", asked, 0.0) == Given(expected, NVIDIA)


def test_alternatives_of_many_volumes_do_not_multiply() -> None:
    stage = Stage("a")
    stage.capacity.see_node(None, node("b", 2, labels={"zone": "c"}))
    here, elsewhere = (Term((Expression("zone", "In", (name,)),)) for name in "cd")
    other = (Term((Expression(f"rack-{number}", "Exists"),)) for number in range(64))
    reach = tuple((here, elsewhere, each) for each in other)
    snapshot = WorkloadSnapshot(workload("x", gpuCount=1), volumes=Volumes(reach))
    asked = place.wishes(snapshot, template.read(snapshot.workload))
    assert stage.capacity.ask("team/x", asked, 0.0) == Given("b", NVIDIA)


@pytest.mark.parametrize(
    ("scheduler", "is_barred"), [("gpu-scheduler", True), ("another", True), ("default-scheduler", False)]
)
def test_only_pods_of_other_schedulers_can_have_claimed_devices(scheduler: str, is_barred: bool) -> None:
    stage = Stage("a")
    stage.capacity.see_pod(None, pod(uid="p", node="a", given="3", scheduler=scheduler))
    assert isinstance(stage.ask("x", gpuCount=1), Refusal) is is_barred


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"scheduler": "gpu-scheduler"}, id="names our scheduler"),
        pytest.param({"scheduler": "gpu-scheduler", "milligpu": 0}, id="requests nothing"),
        pytest.param({"scheduler": "default-scheduler", "milligpu": 1000}, id="was not bound by us"),
        pytest.param({"scheduler": "gpu-scheduler", "allocated": "b:0"}, id="names another node"),
    ],
)
def test_pod_without_a_claim_keeps_no_node_from_plain_workloads(forged: dict[str, Any]) -> None:
    """A tenant may write the name of any node into a pod, and would block that node for everybody."""
    stage = Stage("a")
    stage.capacity.see_pod(None, pod(uid="p", node="a", **forged))
    assert stage.ask("x", gpuCount=4) == Given("a", NVIDIA)


def test_node_kept_for_claims_takes_no_plain_workload() -> None:
    stage = Stage()
    kept = [node(name, labels={"gpu.scheduling/mode": "claims"}) for name in "abc"]
    for each in kept:
        stage.capacity.see_node(None, each)
    refusal = stage.ask("x", gpuCount=1)
    assert isinstance(refusal, Refusal)
    assert refusal.message == "0/3 nodes fit: 3 are kept for claims (label gpu.scheduling/mode)"
    holder = pod(uid="p", node="b", given="0")
    stage.capacity.see_pod(None, holder)
    stage.capacity.see_node(kept[0], node("a", labels={"gpu.scheduling/mode": "plugin"}))
    assert stage.found == ["team/x"]
    assert stage.ask("x", gpuCount=1) == Given("a", NVIDIA)
    stage.capacity.see_node(kept[1], node("b"))  # the label is gone, the claimed pod is not
    assert isinstance(stage.ask("y", gpuCount=4), Refusal)


def test_node_kept_for_claims_that_cannot_be_counted_says_so() -> None:
    stage = Stage()
    stage.capacity.see_node(None, node("a", 1025, labels={"gpu.scheduling/mode": "claims"}))
    refusal = stage.ask("x", gpuCount=1)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith("0/1 nodes fit: 1 cannot be counted")


def test_unknown_mode_counts_as_none_and_is_logged_once() -> None:
    stage, odd = Stage(), {"gpu.scheduling/mode": "Claims"}
    with structlog.testing.capture_logs() as logged:
        stage.capacity.see_node(None, node("a", labels=odd))
        stage.capacity.see_node(node("a", labels=odd), node("a", labels={**odd, "zone": "b"}))
    assert stage.ask("x", gpuCount=1) == Given("a", NVIDIA)
    assert [(each["event"], each["found"]) for each in logged] == [("mode of node ignored", "Claims")]


def test_pod_of_the_kube_scheduler_holds_no_gpus_by_its_annotation() -> None:
    stage = Stage("a")
    forged = pod(uid="p", node="a", allocated="a:0,1,2,3", scheduler="default-scheduler")
    stage.capacity.see_pod(None, forged)
    assert stage.ask("x", gpuCount=4) == Given("a", NVIDIA)


def test_claimed_pod_bars_its_node_without_its_annotation_while_it_is_there() -> None:
    """After a restart the pod may be seen for the first time without it. Its request stays."""
    stage = Stage("a")
    bare = pod(uid="p", node="a", scheduler="gpu-scheduler", milligpu=500)
    stage.capacity.see_pod(None, bare)
    assert isinstance(stage.ask("x", gpuCount=1), Refusal)
    stage.capacity.see_pod(bare, None)
    assert stage.ask("x", gpuCount=1) == Given("a", NVIDIA)


@pytest.mark.parametrize("scheduler", ["gpu-scheduler", "another"])
def test_pod_that_lost_its_annotation_leaves_its_node_free_when_it_ends(scheduler: str) -> None:
    stage = Stage("a")
    holder = pod(uid="p", node="a", given="0,1", scheduler=scheduler)
    stage.capacity.see_pod(None, holder)
    assert isinstance(stage.ask("x", gpuCount=1), Refusal)
    bare = pod(uid="p", node="a", scheduler=scheduler)
    stage.capacity.see_pod(holder, bare)
    assert isinstance(stage.ask("x", gpuCount=1), Refusal)
    stage.capacity.see_pod(bare, None)
    assert stage.ask("x", gpuCount=1) == Given("a", NVIDIA)


def test_pod_seen_before_its_node_is_counted_with_the_node() -> None:
    stage = Stage()
    stage.capacity.see_pod(None, pod(uid="p", gpus=3, node="a"))
    stage.capacity.see_node(None, node("a", 4))
    assert stage.free("a") == 1


def test_waiting_workload_gets_the_place_of_one_that_ends() -> None:
    stage = Stage("a", "b")
    assert stage.ask("x") == Given("a", NVIDIA)
    assert stage.ask("y") == Given("b", NVIDIA)
    refused = stage.ask("z")
    assert isinstance(refused, Refusal)
    assert refused.message == "0/2 nodes fit: 2 have fewer than 4 free GPUs"
    stage.capacity.withdraw("team/x")
    assert stage.found == ["team/z"]
    assert stage.ask("z") == Given("a", NVIDIA)


def test_higher_priority_goes_first_then_older() -> None:
    stage = Stage("a")
    stage.ask("x")
    stage.ask("young", since=3.0)
    stage.ask("old", since=1.0)
    stage.ask("high", since=9.0, priority="high")
    for name in ("x", "high", "old"):
        stage.capacity.withdraw(f"team/{name}")
    assert stage.found == ["team/high", "team/old", "team/young"]


def test_withdrawn_wish_gets_no_place() -> None:
    stage = Stage("a")
    stage.ask("x")
    stage.ask("y")
    stage.capacity.withdraw("team/y")
    stage.capacity.withdraw("team/x")
    assert stage.found == []
    assert stage.free("a") == 4


def test_edited_wish_replaces_the_old_one() -> None:
    stage = Stage("a")
    assert stage.ask("x", gpuCount=2) == Given("a", NVIDIA)
    assert stage.ask("x", gpuCount=3) == Given("a", NVIDIA)
    assert stage.free("a") == 1


def test_asking_again_gives_the_same_place() -> None:
    stage = Stage("a", "b")
    assert stage.ask("x") == stage.ask("x")
    assert stage.free("a") + stage.free("b") == 4


def test_job_on_another_node_frees_the_reserved_place() -> None:
    """AlreadyExists: an earlier process created it for another node."""
    stage = Stage("a", "b")
    assert stage.ask("x") == Given("a", NVIDIA)
    stage.capacity.see_job(None, job(workload("x"), "b"))
    assert (stage.free("a"), stage.free("b")) == (4, 0)


def test_retry_prefers_another_node() -> None:
    stage = Stage("a", "b")
    owner = workload("x", status={"retryCount": 1})
    failed = WorkloadSnapshot(owner, (job(owner, "a", conditions={"Failed": "BackoffLimitExceeded"}),))
    wanted = place.wishes(failed, template.read(owner))
    assert stage.capacity.ask("team/x", wanted, 0.0) == Given("b", NVIDIA)
    stage.capacity.withdraw("team/x")
    stage.capacity.see_node(None, node("b", 0))
    assert stage.capacity.ask("team/x", wanted, 0.0) == Given("a", NVIDIA)


def test_unknown_strategy_raises_and_stores_nothing() -> None:
    capacity = Capacity(Registry(strategies={}), random.Random(1), clock=lambda: 0.0, found=lambda _: None)
    with pytest.raises(UnknownPolicy):
        capacity.ask("team/x", wishes("x"), 0.0)
    capacity.withdraw("team/x")
    assert capacity.engine.counts()["active"] == 0


def test_random_is_uniform() -> None:
    """Chi-square over 1,000 placements on 10 nodes: below 27.9 in 999 of 1,000 fair runs."""
    stage = Stage(*(f"n{i}" for i in range(10)), gpus=4, seed=7)
    chosen: Counter[str] = Counter()
    for number in range(1000):
        given = stage.ask(f"w{number}", schedulingStrategy="random")
        assert isinstance(given, Given)
        chosen[given.node] += 1
        stage.capacity.withdraw(f"team/w{number}")
    assert sum((count - 100) ** 2 / 100 for count in chosen.values()) < 27.9
    assert len(chosen) == 10


def test_least_loaded_spreads() -> None:
    stage = Stage("a", "b", "c")
    chosen = [stage.ask(f"w{number}", gpuCount=1) for number in range(6)]
    assert Counter(each.node for each in chosen if isinstance(each, Given)) == {"a": 2, "b": 2, "c": 2}


def test_cost_optimized_prefers_cheap_nodes_and_falls_back() -> None:
    stage = Stage("a")
    stage.capacity.see_node(None, node("cheap", 4, labels={"gpu-orchestrator/cheap-node": "true"}))
    chosen = [stage.ask(f"w{number}", schedulingStrategy="costOptimized") for number in range(2)]
    assert chosen == [Given("cheap", NVIDIA), Given("a", NVIDIA)]


def test_place_names_the_vendors_resource() -> None:
    stage = Stage()
    stage.capacity.see_node(None, node("a", 4, resource="amd.com/gpu"))
    assert stage.ask("x") == Given("a", "amd.com/gpu")


def test_pod_event_causes_no_decisions_for_a_thousand_waiting() -> None:
    """The end of a pod on a node where no waiting workload fits decides nothing."""
    stage = Stage("a")
    stage.ask("x", gpuCount=2)
    for number in range(1000):
        stage.ask(f"w{number}")
    before = stage.capacity.engine.cluster.changed.mark
    held = pod(uid="p", node="a", gpus=1)
    stage.capacity.see_pod(None, held)
    stage.capacity.see_pod(held, None)
    assert stage.found == []
    assert stage.capacity.engine.cluster.changed.mark - before == 2


def test_job_counts_what_its_template_requests() -> None:
    made = job(workload("x", gpuCount=3), "a")
    taken = translate.placement("team/x", made.node, made.spec.template.spec)
    assert (taken.key, taken.node, taken.unnamed, dict(taken.resources)) == ("team/x", "a", 3, {"pods": 1})
    assert jobs.key_of(workload("x"), 0) == "team/x-job-0a1b2c3d"


def test_node_with_claimed_pods_takes_no_plain_workload() -> None:
    """A device plugin does not know of claims and would assign a claimed device a second time."""
    stage = Stage("a")
    holder = pod(uid="p", node="a", given="0,1")
    stage.capacity.see_pod(None, holder)
    refusal = stage.ask("x", gpuCount=1)
    assert isinstance(refusal, Refusal)
    assert refusal.message == f"0/1 nodes fit: 1 {CLAIMED.replace('have', 'has', 1)}"
    stage.capacity.see_node(None, node("a", 4, labels={"changed": "yes"}))
    assert isinstance(stage.ask("x", gpuCount=1), Refusal)
    stage.capacity.see_pod(holder, None)
    assert stage.found == ["team/x"]
    assert stage.ask("x", gpuCount=1) == Given("a", NVIDIA)


def test_node_that_can_no_longer_be_counted_is_not_used_as_it_was_before() -> None:
    stage = Stage("a")
    stage.capacity.see_node(None, node("a", 1025))
    holder = pod(uid="p", node="a", given="0,1")
    for _ in range(2):  # also while claimed pods come and go
        refusal = stage.ask("x", gpuCount=1)
        assert isinstance(refusal, Refusal)
        assert refusal.message.startswith("0/1 nodes fit: 1 cannot be counted: 1025 nvidia.com/gpu")
        stage.capacity.see_pod(None, holder)
        stage.capacity.see_pod(holder, None)
    stage.capacity.see_node(None, node("a", 4))
    assert stage.ask("x", gpuCount=1) == Given("a", NVIDIA)


def test_pod_does_not_hold_devices_of_another_node() -> None:
    stage = Stage("a")
    forged = pod(uid="p", node="a", allocated="b:0,1,2,3")
    stage.capacity.see_pod(None, forged)
    assert stage.ask("x", gpuCount=4) == Given("a", NVIDIA)


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param(lambda capacity: capacity.see_node(None, node("a", unschedulable=True)), id="cordoned"),
        pytest.param(lambda capacity: capacity.see_node(None, node("a", ready=False)), id="not ready"),
        pytest.param(lambda capacity: capacity.see_node(node("a"), None), id="gone"),
        pytest.param(
            lambda capacity: capacity.see_pod(None, pod(uid="p", node="a", given="0")), id="claimed"
        ),
    ],
)
def test_node_closed_after_the_decision_is_not_used(closed: Callable[[Capacity], None]) -> None:
    """A waiting workload got a place, and the node is closed before it uses it."""
    stage = Stage("a")
    holder = pod(uid="h", node="a", gpus=4)
    stage.capacity.see_pod(None, holder)
    assert isinstance(stage.ask("x"), Refusal)
    stage.capacity.see_pod(holder, None)
    assert stage.found == ["team/x"]
    closed(stage.capacity)
    assert isinstance(stage.ask("x"), Refusal)
    stage.capacity.see_node(None, node("b"))
    assert stage.ask("x") == Given("b", NVIDIA)


def test_policy_that_raises_refuses_and_is_asked_again_in_the_next_pass() -> None:
    """No event arrives after the backoff, and the next pass decides all the same."""
    now, broken = 0.0, True

    def opinion(offers: Offers) -> Floats:
        if broken:
            raise RuntimeError("out of order")
        return np.zeros(len(offers))

    strategies = {"leastLoaded": Strategy("leastLoaded", ((1.0, opinion),))}
    capacity = Capacity(
        Registry(strategies=strategies), random.Random(1), clock=lambda: now, found=lambda _: None
    )
    capacity.see_node(None, node("a"))
    elsewhere_or_any = place.wishes(
        WorkloadSnapshot(workload("x"), shunned=frozenset("b")), template.read(workload("x"))
    )
    assert len(elsewhere_or_any) == 2
    refusal = capacity.ask("team/x", elsewhere_or_any, 0.0)
    assert isinstance(refusal, Refusal)
    assert "RuntimeError: out of order" in refusal.message
    now, broken = 60.0, False
    assert capacity.ask("team/x", elsewhere_or_any[-1:], 0.0) == Given("a", NVIDIA)


def test_node_that_rejected_the_pod_is_chosen_last() -> None:
    stage = Stage("a", "b")
    snapshot = WorkloadSnapshot(workload("x"), shunned=frozenset("a"))
    assert stage.capacity.ask(
        "team/x", place.wishes(snapshot, template.read(snapshot.workload)), 0.0
    ) == Given("b", NVIDIA)


class TestReservation:
    def test_exception_in_block_withdraws_the_place(self) -> None:
        stage = Stage("a")

        def fail_after_asking() -> None:
            with stage.capacity.reserve("team/x", 0.0) as reservation:
                assert reservation.ask(wishes("x")) == Given("a", NVIDIA)
                assert stage.free("a") == 0
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail_after_asking()
        assert stage.free("a") == 4
        assert stage.capacity.engine.counts()["in flight"] == 0

    def test_block_that_ends_without_keep_withdraws_the_place(self) -> None:
        stage = Stage("a")
        with stage.capacity.reserve("team/x", 0.0) as reservation:
            reservation.ask(wishes("x"))
        assert stage.free("a") == 4

    def test_kept_place_stays_reserved_and_next_pass_gets_the_same(self) -> None:
        stage = Stage("a")
        for _ in range(2):
            with stage.capacity.reserve("team/x", 0.0) as reservation:
                assert reservation.ask(wishes("x")) == Given("a", NVIDIA)
                reservation.drop_unused()
                reservation.keep()
            assert stage.free("a") == 0

    def test_kept_refusal_stays_in_the_queue(self) -> None:
        stage = Stage("a")
        stage.ask("x")
        with stage.capacity.reserve("team/y", 0.0) as reservation:
            assert isinstance(reservation.ask(wishes("y")), Refusal)
            reservation.keep()
        stage.capacity.withdraw("team/x")
        assert stage.found == ["team/y"]

    def test_pass_that_does_not_ask_drops_what_an_earlier_pass_kept(self) -> None:
        stage = Stage("a")
        stage.ask("x")
        with stage.capacity.reserve("team/x", 0.0) as reservation:
            reservation.drop_unused()
            assert stage.free("a") == 4
            reservation.keep()
        assert stage.free("a") == 4

    def test_place_that_became_a_job_is_not_withdrawn(self) -> None:
        stage = Stage("a")
        stage.capacity.see_workload(None, workload("x"))
        with stage.capacity.reserve("team/x", 0.0) as reservation:
            reservation.ask(wishes("x"))
            stage.capacity.see_job(None, job(workload("x"), "a"))
        assert stage.free("a") == 0
