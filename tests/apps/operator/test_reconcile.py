"""What is done about a workload, for every state it can be found in. No server, no clock."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.apps.operator.facts import Ask, Facts, Given
from gpu_orchestrator.apps.operator.plan import (
    AddFinalizer,
    CreateJob,
    DeleteJob,
    Plan,
    RemoveFinalizer,
    SetTtl,
)
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.policies.registry import Registry
from tests.apps.operator.builders import (
    NOW,
    after,
    gives,
    job,
    later,
    never,
    plan_for,
    pod,
    refuses,
    workload,
)

COMPLETE: dict[str, Any] = {
    "conditions": {"Complete": ""},
    "status": {"completionTime": "2026-01-01T11:00:00Z"},
}
FAILED: dict[str, Any] = {"conditions": {"Failed": "BackoffLimitExceeded"}}


def status_of(plan: Plan) -> dict[str, Any]:
    assert plan.status is not None
    conditions = {each.type: (each.status, each.reason) for each in plan.status.conditions}
    return {"phase": plan.status.phase, "retries": plan.status.retry_count, **conditions}


def reasons(plan: Plan) -> list[str]:
    return [note.reason for note in plan.notes]


def scheduled(**fields: Any) -> GPUWorkload:
    """A workload whose first Job is recorded."""
    new = workload(**fields)
    return after(Facts(new), plan_for(Facts(new), gives("a")))


def test_a_new_workload_gets_job_and_status_in_one_pass_and_its_finalizer_in_the_next() -> None:
    facts = Facts(workload(meta={"finalizers": []}))
    plan = plan_for(facts, gives("a"))
    (create,) = plan.actions
    assert isinstance(create, CreateJob)
    assert create.manifest["metadata"]["name"] == "bert-job-0a1b2c3d"
    assert create.manifest["metadata"]["ownerReferences"][0]["controller"] is True
    assert create.manifest["spec"]["backoffLimit"] == 0
    assert status_of(plan) == {
        "phase": "Scheduled",
        "retries": 0,
        "Scheduled": ("True", "Placed"),
        "Running": ("False", "Starting"),
    }
    assert plan.status
    assert plan.status.assigned_node == "a"
    assert reasons(plan) == ["Scheduled", "JobCreated"]
    placed = after(facts, plan)
    assert plan_for(Facts(placed, (job(placed, "a"),))) == Plan((AddFinalizer(),))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_ended_before_it_had_its_finalizer_gets_it_all_the_same(phase: str) -> None:
    """Or its Job would outlive it for a moment when it is deleted."""
    ended = workload(meta={"finalizers": []}, status={"phase": phase})
    assert plan_for(Facts(ended)) == Plan((AddFinalizer(),))


def test_a_runtime_limit_becomes_the_jobs_deadline() -> None:
    plan = plan_for(Facts(workload(maxRuntimeSeconds=60)), gives("a"))
    (create,) = plan.actions
    assert isinstance(create, CreateJob)
    assert create.manifest["spec"]["activeDeadlineSeconds"] == 60
    assert "ttlSecondsAfterFinished" not in create.manifest["spec"]


def test_a_job_that_the_status_does_not_know_yet_is_recorded_as_if_just_made() -> None:
    """We were stopped between the Job and the status."""
    new = workload()
    made = plan_for(Facts(new), gives("a"))
    found = plan_for(Facts(new, (job(new, "a"),)))
    assert (found.actions, found.status, found.notes) == ((), made.status, made.notes)


@pytest.mark.parametrize(
    ("state", "pods", "expected"),
    [
        pytest.param({}, [], None, id="nothing new"),
        pytest.param({}, [pod(phase="Pending", node="a")], None, id="pod starts"),
        pytest.param(
            {},
            [pod(phase="Running", node="a")],
            {"phase": "Running", "Scheduled": ("True", "Placed"), "Running": ("True", "PodRunning")},
            id="pod runs",
        ),
        pytest.param(
            COMPLETE,
            [],
            {
                "phase": "Succeeded",
                "Scheduled": ("True", "Placed"),
                "Running": ("False", "Finished"),
                "Complete": ("True", "JobSucceeded"),
            },
            id="complete",
        ),
        pytest.param(
            FAILED,
            [],
            {
                "phase": "Pending",
                "retries": 1,
                "Scheduled": ("False", "BackingOff"),
                "Running": ("False", "BackingOff"),
            },
            id="failed",
        ),
        pytest.param(
            {"conditions": {"FailureTarget": "BackoffLimitExceeded"}},
            [],
            {
                "phase": "Pending",
                "retries": 1,
                "Scheduled": ("False", "BackingOff"),
                "Running": ("False", "BackingOff"),
            },
            id="bound to fail",
        ),
        pytest.param(
            {"conditions": {"Failed": "DeadlineExceeded"}},
            [],
            {
                "phase": "Failed",
                "Scheduled": ("True", "DeadlineExceeded"),
                "Running": ("False", "DeadlineExceeded"),
                "Complete": ("False", "DeadlineExceeded"),
            },
            id="ran too long",
        ),
    ],
)
def test_a_job_is_mirrored(
    state: dict[str, Any], pods: Sequence[Any], expected: dict[str, Any] | None
) -> None:
    known = scheduled()
    plan = plan_for(Facts(known, (job(known, "a", **state),), tuple(pods)))
    assert plan.actions == ()
    if expected is None:
        assert plan.status is None
    else:
        assert status_of(plan) == {"retries": 0, **expected}


def test_a_workload_that_runs_is_left_alone() -> None:
    known = scheduled()
    facts = Facts(known, (job(known, "a"),), (pod(phase="Running"),))
    again = Facts(after(facts, plan_for(facts)), facts.jobs, facts.pods)
    assert plan_for(again) == Plan()
    ended = Facts(again.workload, again.jobs)  # its pod ended, its Job does not say so yet
    assert plan_for(ended) == Plan()


def test_a_failed_job_is_tried_again_elsewhere_after_its_wait() -> None:
    known = scheduled(retryPolicy={"backoffSeconds": 10})
    facts = Facts(known, (job(known, "a", **FAILED),), trouble="node a is gone")
    plan = plan_for(facts)
    assert reasons(plan) == ["JobFailed", "Retrying"]
    assert "node a is gone" in plan.notes[0].text
    waiting = Facts(after(facts, plan), facts.jobs)
    assert plan_for(waiting, at=later(8)).again_at is not None  # nothing shortens this wait: nobody asks
    asked: list[Request] = []

    def ask(wishes: Sequence[Request]) -> Given:
        asked.extend(wishes)
        return Given("b", "nvidia.com/gpu")

    retried = plan_for(waiting, ask, at=later(12))
    (create,) = retried.actions
    assert isinstance(create, CreateJob)
    assert create.manifest["metadata"]["name"] == "bert-job-0a1b2c3d-r1"
    first, any_node = asked
    assert [(e.operator, e.values) for term in first.shape.affinity for e in term.fields] == [
        ("NotIn", ("a",))
    ]
    assert any_node.shape.affinity == ()


def test_a_job_that_failed_before_it_was_recorded_ends_like_one_that_was() -> None:
    """We were stopped after the Job was made, and it failed for the last time meanwhile."""
    fields: dict[str, Any] = {"retryPolicy": {"maxRetries": 1}}
    known, unknown = scheduled(**fields), workload(**fields)
    ends = [plan_for(Facts(each, (job(each, "a", **FAILED),))).status for each in (known, unknown)]
    assert [status and status.assigned_node for status in ends] == ["a", "a"]
    assert [status and status.job_name for status in ends] == ["bert-job-0a1b2c3d"] * 2
    states = [{c.type: (c.status, c.reason) for c in status.conditions} for status in ends if status]
    assert states[0] == states[1]


def test_preemption_is_told_by_its_name() -> None:
    known = scheduled()
    plan = plan_for(Facts(known, (job(known, "a", **FAILED),), preempted=True))
    assert reasons(plan) == ["Preempted", "Retrying"]


def test_a_pod_that_no_node_takes_costs_a_try_after_ten_seconds() -> None:
    known = scheduled()
    old = job(known, "a")
    facts = Facts(known, (old,), (pod(unschedulable_since=NOW),))
    assert plan_for(facts, at=later(9.9)) == Plan(again_at=later(10))
    plan = plan_for(facts, at=later(10))
    assert status_of(plan)["phase"] == "Pending"
    assert status_of(plan)["retries"] == 1
    assert plan.actions == ()  # counted first: if we die here, the Job is stale and goes all the same
    counted = after(facts, plan)
    assert plan_for(Facts(counted, (old,))).actions == (DeleteJob(old),)
    leaving = job(known, "a", deleting=True)
    assert plan_for(Facts(counted, (leaving,))) == Plan()  # two tries never run at once
    assert isinstance(plan_for(Facts(counted), gives("b")).actions[0], CreateJob)  # no need to wait longer


def test_a_job_that_makes_no_pod_is_told_once() -> None:
    known = scheduled()
    made = job(known, "a", created=NOW)
    assert plan_for(Facts(known, (made,)), at=later(29)) == Plan(again_at=later(30))
    plan = plan_for(Facts(known, (made,)), at=later(30))
    assert plan.status
    assert plan.status.phase == "Scheduled"
    assert "makes no pod; see: kubectl describe job bert-job-0a1b2c3d" in plan.status.message
    assert plan_for(Facts(after(Facts(known), plan), (made,)), at=later(31)) == Plan()


def test_a_job_that_somebody_deleted_is_made_again_without_spending_a_try() -> None:
    known = scheduled()
    assert plan_for(Facts(known, (job(known, "a", deleting=True),))) == Plan()
    leaving = Facts(known, pods=(pod(phase="Running", node="a"),))
    assert plan_for(leaving) == Plan(again_at=later(1))  # never beside a pod that still runs
    plan = plan_for(Facts(known), gives("b"))
    assert isinstance(plan.actions[0], CreateJob)
    assert status_of(plan)["retries"] == 0


def test_no_room_costs_a_try_and_says_why() -> None:
    plan = plan_for(Facts(workload()), refuses)
    assert status_of(plan) == {
        "phase": "Pending",
        "retries": 1,
        "Scheduled": ("False", "Unschedulable"),
        "Running": ("False", "Unschedulable"),
    }
    assert plan.status
    assert plan.status.message == "0/2 nodes fit: 2 have fewer than 4 free GPUs"
    assert reasons(plan) == ["FailedScheduling", "Retrying"]


def test_what_can_never_fit_is_told_so() -> None:
    plan = plan_for(
        Facts(workload()), lambda _: Refusal(2, (("have fewer than 4 free GPUs", 2),), never=True)
    )
    assert plan.status
    assert plan.status.message.endswith("no node of this cluster can ever fit these 4 GPUs")


def test_while_it_waits_a_refusal_costs_nothing_and_a_place_is_taken_at_once() -> None:
    facts = Facts(workload())
    waiting = Facts(after(facts, plan_for(facts, refuses)))
    woken = plan_for(waiting, refuses, at=later(1))
    assert (woken.status, woken.again_at) == (
        None,
        timestamps.parse_optional(waiting.workload.status.next_retry_time),
    )
    placed = plan_for(waiting, gives("b"), at=later(1))
    assert status_of(placed)["retries"] == 1  # what was spent stays spent, no more
    assert isinstance(placed.actions[0], CreateJob)


def play(facts: Facts, ask: Ask, *, tries: int, seed: int) -> list[tuple[datetime, Plan]]:
    """Every pass that wrote a status, under a clock that jumps to when the plan wants to look again."""
    now = NOW
    written: list[tuple[datetime, Plan]] = []
    for _ in range(2 * tries):
        plan = plan_for(facts, ask, at=now, seed=seed + len(written))
        if plan.status is not None:
            written.append((now, plan))
        facts = Facts(after(facts, plan), facts.jobs)
        if plan.again_at is None:
            break
        now = plan.again_at
    return written


@pytest.mark.parametrize("seed", range(20))
def test_tries_are_spaced_by_doubling_waits_until_they_are_spent(seed: int) -> None:
    facts = Facts(workload(retryPolicy={"maxRetries": 10, "backoffSeconds": 3}))
    written = play(facts, refuses, tries=10, seed=seed)
    waits = [(b[0] - a[0]).total_seconds() for a, b in pairwise(written)]
    assert len(waits) == 9
    for number, wait in enumerate(waits):
        exact = 3 * 2**number
        assert min(exact * 0.9, 300) - 0.001 <= wait <= min(exact * 1.1, 300)
    last = written[-1][1]
    assert status_of(last)["phase"] == "Failed"
    assert status_of(last)["Complete"] == ("False", "MaxRetriesExceeded")
    assert reasons(last) == ["FailedScheduling", "MaxRetriesExceeded"]
    assert [plan.status.retry_count for _, plan in written if plan.status] == list(range(1, 11))


def test_a_restart_changes_nothing_about_the_tries() -> None:
    """Looks between the writes, as a new process makes them, spend nothing and move nothing."""
    facts = Facts(workload(retryPolicy={"maxRetries": 3, "backoffSeconds": 100}))
    waiting = Facts(after(facts, plan_for(facts, refuses)))
    for seconds in (0, 1, 50, 89):
        plan = plan_for(waiting, refuses, at=later(seconds), seed=seconds)
        assert (plan.status, plan.actions) == (None, ())


def test_an_edited_wish_is_answered_anew_without_spending_a_try() -> None:
    facts = Facts(workload())
    waiting = after(facts, plan_for(facts, refuses))
    edited = workload(gpuCount=8, meta={"generation": 2}, status=_plain(waiting))
    plan = plan_for(Facts(edited), lambda _: Refusal(2, (("have fewer than 8 free GPUs", 2),)), at=later(1))
    assert plan.status
    assert "8 free GPUs" in plan.status.message
    assert (plan.status.retry_count, plan.status.next_retry_time) == (1, waiting.status.next_retry_time)


def _plain(found: GPUWorkload) -> Any:
    return msgspec.to_builtins(found.status)


def test_a_gang_waits_and_says_so_once() -> None:
    facts = Facts(workload(replicas=3))
    plan = plan_for(facts, never)
    assert plan.status
    assert "gangs are not served yet; create 3 workloads" in plan.status.message
    assert status_of(plan)["retries"] == 0
    assert plan_for(Facts(after(facts, plan)), never) == Plan()


def test_an_unknown_strategy_waits_with_the_names_of_those_there_are() -> None:
    def ask(wishes: Sequence[Request]) -> Given:
        raise AssertionError(Registry(strategies={}).policy_of(wishes[0]))

    plan = plan_for(Facts(workload(schedulingStrategy="leastFragmenting")), ask)
    assert plan.status
    assert plan.status.message.startswith("unknown strategy 'leastFragmenting'")
    assert status_of(plan)["phase"] == "Pending"
    assert status_of(plan)["retries"] == 0


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeName": "x"}, id="not for the user to say"),
        pytest.param(
            {"containers": [{"name": "main", "resources": {"requests": {"memory": "100E"}}}]},
            id="more than can be counted",
        ),
    ],
)
def test_a_bad_template_fails_at_once(spec: dict[str, Any]) -> None:
    plan = plan_for(Facts(workload(template={"spec": spec})), never)
    assert status_of(plan)["phase"] == "Failed"
    assert status_of(plan)["Scheduled"] == ("False", "InvalidTemplate")


def suspended() -> GPUWorkload:
    return workload(suspend=True, meta={"generation": 2}, status=_plain(scheduled()))


class TestSuspend:
    def test_holds_nothing_and_loses_no_try(self) -> None:
        known = suspended()
        old = job(known, "a")
        plan = plan_for(Facts(known, (old,)))
        assert plan.actions == (DeleteJob(old),)
        assert status_of(plan)["phase"] == "Pending"
        assert status_of(plan)["Scheduled"] == ("False", "Suspended")
        assert status_of(plan)["retries"] == 0
        resting = after(Facts(known), plan)
        assert plan_for(Facts(resting)) == Plan()

    def test_resumed_it_is_placed_anew(self) -> None:
        known = suspended()
        resting = after(Facts(known), plan_for(Facts(known)))
        resumed = workload(meta={"generation": 3}, status=_plain(resting))
        assert isinstance(plan_for(Facts(resumed), gives("b")).actions[0], CreateJob)

    def test_what_has_ended_stays_ended(self) -> None:
        known = suspended()
        assert status_of(plan_for(Facts(known, (job(known, "a", **COMPLETE),))))["phase"] == "Succeeded"


class TestFinal:
    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_nothing_is_started_again(self, phase: str) -> None:
        assert plan_for(Facts(workload(status={"phase": phase})), never) == Plan()

    def test_only_then_may_the_cluster_remove_the_jobs(self) -> None:
        known = scheduled(ttlSecondsAfterFinished=5)
        done = job(known, "a", **COMPLETE)
        plan = plan_for(Facts(known, (done,)))
        assert plan.actions == ()
        ended = after(Facts(known), plan)
        assert plan_for(Facts(ended, (done,))).actions == (SetTtl(done, 5),)
        assert plan_for(Facts(ended, (job(known, "a", ttl=5, **COMPLETE),))) == Plan()
        assert plan_for(Facts(ended), never) == Plan()

    def test_a_job_left_over_goes(self) -> None:
        over = workload(status={"phase": "Failed", "retryCount": 1})
        left = job(over, "a")
        assert plan_for(Facts(over, (left,))).actions == (DeleteJob(left),)


LEAVING = {"deletionTimestamp": "2026-01-01T12:00:00Z"}


class TestDeletion:
    @pytest.mark.parametrize("phase", ["Pending", "Scheduled", "Running", "Succeeded", "Failed"])
    def test_jobs_go_first_then_the_finalizer(self, phase: str) -> None:
        leaving = workload(meta=LEAVING, status={"phase": phase})
        old = job(leaving, "a")
        assert plan_for(Facts(leaving, (old,))).actions == (DeleteJob(old, as_seen=False),)
        assert plan_for(Facts(leaving, (job(leaving, "a", deleting=True),))) == Plan()
        assert plan_for(Facts(leaving)).actions == (RemoveFinalizer(),)

    def test_without_our_finalizer_it_is_none_of_our_business(self) -> None:
        leaving = workload(meta={**LEAVING, "finalizers": ["other/one"]})
        assert plan_for(Facts(leaving)) == Plan()


def test_the_same_facts_give_the_same_plan() -> None:
    facts = Facts(workload(retryPolicy={"maxRetries": 2}))
    assert plan_for(facts, refuses, seed=5) == plan_for(facts, refuses, seed=5)
