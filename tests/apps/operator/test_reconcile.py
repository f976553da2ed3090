"""The plan for a workload in every state it can be in. No server, no clock."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.podtemplate import PodTemplate
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.planning.plan import (
    AddFinalizer,
    ChangeJob,
    CreateJob,
    DeleteJob,
    Plan,
    RemoveFinalizer,
)
from gpu_orchestrator.apps.operator.planning.snapshot import Ask, Given, WorkloadSnapshot
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request
from tests.support.operator_builders import (
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
    return after(WorkloadSnapshot(new), plan_for(WorkloadSnapshot(new), gives("a")))


def test_new_workload_gets_job_and_status_then_its_finalizer() -> None:
    snapshot = WorkloadSnapshot(workload(meta={"finalizers": []}))
    plan = plan_for(snapshot, gives("a"))
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
    placed = after(snapshot, plan)
    assert plan_for(WorkloadSnapshot(placed, (job(placed, "a"),))) == Plan((AddFinalizer(),))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_workload_without_finalizer_gets_it(phase: str) -> None:
    """Otherwise its Job would outlive it for a moment when it is deleted."""
    ended = workload(meta={"finalizers": []}, status={"phase": phase})
    assert plan_for(WorkloadSnapshot(ended)) == Plan((AddFinalizer(),))


def test_runtime_limit_becomes_the_jobs_deadline() -> None:
    plan = plan_for(WorkloadSnapshot(workload(maxRuntimeSeconds=60)), gives("a"))
    (create,) = plan.actions
    assert isinstance(create, CreateJob)
    assert create.manifest["spec"]["activeDeadlineSeconds"] == 60
    assert "ttlSecondsAfterFinished" not in create.manifest["spec"]


def test_unrecorded_job_is_recorded_like_a_new_one() -> None:
    """The operator stopped after it created the Job and before it wrote the status."""
    new = workload()
    made = plan_for(WorkloadSnapshot(new), gives("a"))
    found = plan_for(WorkloadSnapshot(new, (job(new, "a"),)))
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
            id="about to fail",
        ),
        pytest.param(
            {"conditions": {"Failed": "DeadlineExceeded"}},
            [],
            {
                "phase": "Failed",
                "Scheduled": ("True", "DeadlineExceeded"),
                "Running": ("False", "DeadlineExceeded"),
                "Complete": ("False", "DeadlineExceeded"),
                "Failed": ("True", "DeadlineExceeded"),
            },
            id="ran too long",
        ),
    ],
)
def test_status_follows_the_job(
    state: dict[str, Any], pods: Sequence[Any], expected: dict[str, Any] | None
) -> None:
    known = scheduled()
    plan = plan_for(WorkloadSnapshot(known, (job(known, "a", **state),), tuple(pods)))
    assert plan.actions == ()
    if expected is None:
        assert plan.status is None
    else:
        assert status_of(plan) == {"retries": 0, **expected}


def test_running_workload_needs_no_writes() -> None:
    known = scheduled()
    snapshot = WorkloadSnapshot(known, (job(known, "a"),), (pod(phase="Running"),))
    again = WorkloadSnapshot(after(snapshot, plan_for(snapshot)), snapshot.jobs, snapshot.pods)
    assert plan_for(again) == Plan()
    ended = WorkloadSnapshot(again.workload, again.jobs)  # its pod ended, its Job does not show it yet
    assert plan_for(ended) == Plan()


def test_failed_job_is_retried_on_another_node_after_its_backoff() -> None:
    known = scheduled(retryPolicy={"backoffSeconds": 10})
    snapshot = WorkloadSnapshot(known, (job(known, "a", **FAILED),), trouble="node a is gone")
    plan = plan_for(snapshot)
    assert reasons(plan) == ["JobFailed", "Retrying"]
    assert "node a is gone" in plan.notes[0].text
    waiting = WorkloadSnapshot(after(snapshot, plan), snapshot.jobs)
    assert (
        plan_for(waiting, at=later(8)).again_at is not None
    )  # nothing shortens this wait: no place is asked for
    asked: list[Request] = []

    def ask(wishes: Sequence[Request], most: int = 1) -> Given:
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


def test_unrecorded_failed_job_ends_like_a_recorded_one() -> None:
    """The operator stopped after it created the Job, and the Job's last try failed meanwhile."""
    fields: dict[str, Any] = {"retryPolicy": {"maxRetries": 1}}
    known, unknown = scheduled(**fields), workload(**fields)
    ends = [plan_for(WorkloadSnapshot(each, (job(each, "a", **FAILED),))).status for each in (known, unknown)]
    assert [status and status.assigned_node for status in ends] == ["a", "a"]
    assert [status and status.job_name for status in ends] == ["bert-job-0a1b2c3d"] * 2
    states = [{c.type: (c.status, c.reason) for c in status.conditions} for status in ends if status]
    assert states[0] == states[1]


@pytest.mark.parametrize(
    ("preempted", "reason"),
    [pytest.param(True, "Preempted", id="preempted"), pytest.param(False, "JobFailed", id="drained")],
)
def test_pod_ended_by_others_costs_no_try(preempted: bool, reason: str) -> None:
    known = scheduled()
    failed = job(known, "a", **FAILED)
    snapshot = WorkloadSnapshot(known, (failed,), displaced=True, preempted=preempted)
    plan = plan_for(snapshot)
    assert reasons(plan) == [reason]
    assert plan.actions == (DeleteJob(failed),)  # the next one has the same name
    assert status_of(plan)["retries"] == 0
    assert plan.again_at == later(30)
    waiting = after(snapshot, plan)
    leaving = job(known, "a", deleting=True, **FAILED)
    assert plan_for(WorkloadSnapshot(waiting, (leaving,), displaced=True)) == Plan()
    assert plan_for(WorkloadSnapshot(waiting), at=later(29)) == Plan(again_at=later(30))
    again = plan_for(WorkloadSnapshot(waiting), gives("b"), at=later(30))
    assert status_of(again)["phase"] == "Scheduled"


def test_failed_job_that_is_being_deleted_is_not_counted_again() -> None:
    """Kubernetes fails the Job, whose pod ends, after the operator gave the place up."""
    known = scheduled()
    snapshot = WorkloadSnapshot(known, (job(known, "a"),), (pod(unschedulable_since=NOW, said=NO_VOLUME),))
    waiting = after(snapshot, plan_for(snapshot, at=later(10)))
    leaving = job(known, "a", deleting=True, **FAILED)
    assert plan_for(WorkloadSnapshot(waiting, (leaving,)), at=later(11)) == Plan()


def test_unschedulable_pod_costs_a_try_after_ten_seconds() -> None:
    known = scheduled()
    old = job(known, "a")
    snapshot = WorkloadSnapshot(known, (old,), (pod(unschedulable_since=NOW),))
    assert plan_for(snapshot, at=later(9.9)) == Plan(again_at=later(10))
    plan = plan_for(snapshot, at=later(10))
    assert status_of(plan)["phase"] == "Pending"
    assert status_of(plan)["retries"] == 1
    assert (
        plan.actions == ()
    )  # counted first: after a crash here the Job is stale and is deleted all the same
    counted = after(snapshot, plan)
    assert plan_for(WorkloadSnapshot(counted, (old,))).actions == (DeleteJob(old),)
    leaving = job(known, "a", deleting=True)
    assert plan_for(WorkloadSnapshot(counted, (leaving,))) == Plan()  # two tries never run at once
    assert isinstance(
        plan_for(WorkloadSnapshot(counted), gives("b")).actions[0], CreateJob
    )  # without a further wait


NO_VOLUME = (
    '0/8 nodes are available: persistentvolumeclaim "data" not found. no new claims to deallocate, '
    "preemption: 0/8 nodes are available: 8 Preemption is not helpful for scheduling."
)


def test_pod_that_fits_on_no_node_gives_its_place_up_and_costs_no_try() -> None:
    known = scheduled()
    old = job(known, "a")
    snapshot = WorkloadSnapshot(known, (old,), (pod(unschedulable_since=NOW, said=NO_VOLUME),))
    assert plan_for(snapshot, at=later(9)) == Plan(again_at=later(10))
    plan = plan_for(snapshot, at=later(10))
    assert plan.actions == (DeleteJob(old),)
    assert status_of(plan)["phase"] == "Pending"
    assert status_of(plan)["retries"] == 0
    assert plan.status
    words = 'its pod cannot start on any node: persistentvolumeclaim "data" not found'
    assert plan.status.message == words
    assert reasons(plan) == ["FailedScheduling"]
    waiting = WorkloadSnapshot(after(snapshot, plan))
    assert plan_for(waiting, at=later(39)) == Plan(again_at=later(40))
    again = plan_for(waiting, gives("a"), at=later(40))
    assert isinstance(again.actions[0], CreateJob)
    assert again.status
    assert again.status.message == f"placed on a, its pod is about to start; before: {words}"
    assert again.status.retry_count == 0


def test_next_try_reports_why_the_last_one_failed() -> None:
    known = scheduled()
    snapshot = WorkloadSnapshot(known, (job(known, "a"),), (pod(unschedulable_since=NOW),))
    refused = plan_for(snapshot, at=later(10))
    assert refused.notes[-1].text.startswith("try 2 of 3 as soon as a node fits, at the latest in ")
    placed = plan_for(WorkloadSnapshot(after(snapshot, refused)), gives("b"), at=later(11))
    assert placed.status
    assert placed.status.message == (
        "placed on b, its pod is about to start; "
        "before: a did not take the pod for 10 s: 0/1 nodes are available"
    )


def test_job_without_pod_is_reported_once() -> None:
    known = scheduled()
    made = job(known, "a", created=NOW)
    assert plan_for(WorkloadSnapshot(known, (made,)), at=later(29)) == Plan(again_at=later(30))
    plan = plan_for(WorkloadSnapshot(known, (made,)), at=later(30))
    assert plan.status
    assert plan.status.phase == "Scheduled"
    assert "has created no pod; see: kubectl describe job bert-job-0a1b2c3d" in plan.status.message
    told = WorkloadSnapshot(after(WorkloadSnapshot(known), plan), (made,))
    assert plan_for(told, at=later(31)) == Plan(again_at=later(300))


def test_deleted_job_is_created_again_without_costing_a_try() -> None:
    known = scheduled()
    assert plan_for(WorkloadSnapshot(known, (job(known, "a", deleting=True),))) == Plan()
    leaving = WorkloadSnapshot(known, pods=(pod(phase="Running", node="a"),))
    assert plan_for(leaving) == Plan(again_at=later(1))  # never beside a pod that still runs
    plan = plan_for(WorkloadSnapshot(known), gives("b"))
    assert isinstance(plan.actions[0], CreateJob)
    assert status_of(plan)["retries"] == 0


def test_refusal_costs_a_try_and_reports_why() -> None:
    plan = plan_for(WorkloadSnapshot(workload()), refuses)
    assert status_of(plan) == {
        "phase": "Pending",
        "retries": 1,
        "Scheduled": ("False", "Unschedulable"),
        "Running": ("False", "Unschedulable"),
    }
    assert plan.status
    assert plan.status.message == "0/2 nodes fit: 2 have fewer than 4 free GPUs"
    assert reasons(plan) == ["FailedScheduling", "Retrying"]


def test_refusal_that_can_never_fit_is_reported_as_such() -> None:
    plan = plan_for(
        WorkloadSnapshot(workload()), lambda *_: Refusal(2, (("have fewer than 4 free GPUs", 2),), never=True)
    )
    assert plan.status
    assert plan.status.message == (
        "0/2 nodes fit: 2 have fewer than 4 free GPUs; "
        "waiting does not help: no node of this cluster could run it, even if empty"
    )


def test_refusal_during_the_wait_is_free_and_a_place_is_used_at_once() -> None:
    snapshot = WorkloadSnapshot(workload())
    waiting = WorkloadSnapshot(after(snapshot, plan_for(snapshot, refuses)))
    woken = plan_for(waiting, refuses, at=later(1))
    assert (woken.status, woken.again_at) == (
        None,
        timestamps.parse_optional(waiting.workload.status.next_retry_time),
    )
    placed = plan_for(waiting, gives("b"), at=later(1))
    assert status_of(placed)["retries"] == 1  # the try that was spent stays spent, and no other is
    assert isinstance(placed.actions[0], CreateJob)


def play(snapshot: WorkloadSnapshot, ask: Ask, *, tries: int, seed: int) -> list[tuple[datetime, Plan]]:
    """Return every pass that wrote a status, under a clock that jumps to the plan's `again_at`."""
    now = NOW
    written: list[tuple[datetime, Plan]] = []
    for _ in range(2 * tries):
        plan = plan_for(snapshot, ask, at=now, seed=seed + len(written))
        if plan.status is not None:
            written.append((now, plan))
        snapshot = WorkloadSnapshot(after(snapshot, plan), snapshot.jobs)
        if plan.again_at is None:
            break
        now = plan.again_at
    return written


@pytest.mark.parametrize("seed", range(20))
def test_tries_follow_doubling_waits_until_none_is_left(seed: int) -> None:
    snapshot = WorkloadSnapshot(workload(retryPolicy={"maxRetries": 10, "backoffSeconds": 3}))
    written = play(snapshot, refuses, tries=10, seed=seed)
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


def test_restart_does_not_change_the_tries() -> None:
    """Passes during the wait, as a new process makes them, write nothing."""
    snapshot = WorkloadSnapshot(workload(retryPolicy={"maxRetries": 3, "backoffSeconds": 100}))
    waiting = WorkloadSnapshot(after(snapshot, plan_for(snapshot, refuses)))
    for seconds in (0, 1, 50, 89):
        plan = plan_for(waiting, refuses, at=later(seconds), seed=seconds)
        assert (plan.status, plan.actions) == (None, ())


def test_edited_spec_is_answered_again_without_costing_a_try() -> None:
    snapshot = WorkloadSnapshot(workload())
    waiting = after(snapshot, plan_for(snapshot, refuses))
    edited = workload(gpuCount=8, meta={"generation": 2}, status=_plain(waiting))
    plan = plan_for(
        WorkloadSnapshot(edited), lambda *_: Refusal(2, (("have fewer than 8 free GPUs", 2),)), at=later(1)
    )
    assert plan.status
    assert "8 free GPUs" in plan.status.message
    assert (plan.status.retry_count, plan.status.next_retry_time) == (1, waiting.status.next_retry_time)


def _plain(found: GPUWorkload) -> Any:
    return msgspec.to_builtins(found.status)


def test_replicas_are_one_job_whose_pods_form_a_gang() -> None:
    plan = plan_for(WorkloadSnapshot(workload(replicas=3)), never)
    [made] = [each.manifest for each in plan.actions if isinstance(each, CreateJob)]
    spec = made["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    asked = spec["template"]["metadata"]["annotations"]
    assert (asked["gpu.scheduling/gang"], asked["gpu.scheduling/gang-size"]) == (
        made["metadata"]["name"],
        "3",
    )
    assert asked["gpu.scheduling/gpus"] == "4"
    assert spec["template"]["spec"]["schedulerName"] == "gpu-scheduler"


def test_gang_has_a_place_once_all_replicas_have() -> None:
    owner = workload(replicas=2)
    made = job(owner, made_from=jobs.made_from(owner, claimed=True))
    name = made.metadata.name
    replicas = [pod(name, uid="x", node="b", index=1), pod(name, uid="y", node="a", index=0)]
    half = WorkloadSnapshot(owner, (made,), (replicas[0],))
    assert half.node == ""
    whole = WorkloadSnapshot(owner, (made,), tuple(replicas))
    plan = plan_for(whole, never)
    assert plan.status
    assert (plan.status.phase, plan.status.assigned_node) == ("Scheduled", "a")
    assert (plan.status.assigned_nodes, plan.status.devices) == (["a", "b"], [])
    assert "placed on a, b" in plan.status.message


@pytest.mark.parametrize("spec", [pytest.param({}, id="plain"), pytest.param({"claim": {}}, id="claimed")])
def test_unknown_strategy_waits_and_names_the_known_ones(spec: dict[str, Any]) -> None:
    said = "unknown strategy 'coolRacks'; known: binPack, leastLoaded"
    snapshot = WorkloadSnapshot(workload(schedulingStrategy="coolRacks", **spec), unknown_strategy=said)
    plan = plan_for(snapshot, never)
    assert plan.actions == ()
    assert plan.status
    assert plan.status.message == plan.notes[0].text == said
    assert status_of(plan)["phase"] == "Pending"
    assert status_of(plan)["retries"] == 0
    told = WorkloadSnapshot(after(snapshot, plan), unknown_strategy=said)
    assert plan_for(told, never) == Plan()


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"nodeName": "x"}, id="field that the operator sets"),
        pytest.param(
            {"containers": [{"name": "main", "resources": {"requests": {"memory": "100E"}}}]},
            id="quantity too large",
        ),
    ],
)
def test_invalid_template_fails_at_once(spec: dict[str, Any]) -> None:
    plan = plan_for(WorkloadSnapshot(workload(template={"spec": spec})), never)
    assert status_of(plan)["phase"] == "Failed"
    assert status_of(plan)["Scheduled"] == ("False", "InvalidTemplate")


@pytest.mark.parametrize("has_job", [False, True])
def test_template_nested_too_deep_fails_at_once(has_job: bool) -> None:
    """A decoder of a newer Python reads what its encoder and a copy cannot."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    bert = workload()
    spec = msgspec.structs.replace(bert.spec, template=PodTemplate(spec={"dnsConfig": deep}))
    jobs = (job(bert, annotations={"gpu.warp.dev/made-from": "other"}),) if has_job else ()
    plan = plan_for(WorkloadSnapshot(msgspec.structs.replace(bert, spec=spec), jobs))
    assert status_of(plan)["Scheduled"] == ("False", "InvalidTemplate")
    assert plan.status is not None
    assert "nested deeper than 200 levels" in plan.status.message


def suspended() -> GPUWorkload:
    return workload(suspend=True, meta={"generation": 2}, status=_plain(scheduled()))


class TestSuspend:
    def test_suspended_workload_loses_its_job_but_no_try(self) -> None:
        known = suspended()
        old = job(known, "a")
        plan = plan_for(WorkloadSnapshot(known, (old,)))
        assert plan.actions == (DeleteJob(old),)
        assert status_of(plan)["phase"] == "Pending"
        assert status_of(plan)["Scheduled"] == ("False", "Suspended")
        assert status_of(plan)["retries"] == 0
        resting = after(WorkloadSnapshot(known), plan)
        assert plan_for(WorkloadSnapshot(resting)) == Plan()

    def test_resumed_workload_is_placed_again(self) -> None:
        known = suspended()
        resting = after(WorkloadSnapshot(known), plan_for(WorkloadSnapshot(known)))
        resumed = workload(meta={"generation": 3}, status=_plain(resting))
        assert isinstance(plan_for(WorkloadSnapshot(resumed), gives("b")).actions[0], CreateJob)

    def test_ended_workload_stays_ended(self) -> None:
        known = suspended()
        assert (
            status_of(plan_for(WorkloadSnapshot(known, (job(known, "a", **COMPLETE),))))["phase"]
            == "Succeeded"
        )


class TestFinal:
    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_final_workload_is_not_started_again(self, phase: str) -> None:
        assert plan_for(WorkloadSnapshot(workload(status={"phase": phase})), never) == Plan()

    def test_ttl_is_set_only_after_the_final_status(self) -> None:
        known = scheduled(ttlSecondsAfterFinished=5)
        done = job(known, "a", **COMPLETE)
        plan = plan_for(WorkloadSnapshot(known, (done,)))
        assert plan.actions == ()
        ended = after(WorkloadSnapshot(known), plan)
        change = ChangeJob(done, {"ttlSecondsAfterFinished": 5})
        assert plan_for(WorkloadSnapshot(ended, (done,))).actions == (change,)
        assert plan_for(WorkloadSnapshot(ended, (job(known, "a", ttl=5, **COMPLETE),))) == Plan()
        assert plan_for(WorkloadSnapshot(ended), never) == Plan()

    def test_leftover_job_is_deleted(self) -> None:
        over = workload(status={"phase": "Failed", "retryCount": 1})
        left = job(over, "a")
        assert plan_for(WorkloadSnapshot(over, (left,))).actions == (DeleteJob(left),)


LEAVING = {"deletionTimestamp": "2026-01-01T12:00:00Z"}


class TestDeletion:
    @pytest.mark.parametrize("phase", ["Pending", "Scheduled", "Running", "Succeeded", "Failed"])
    def test_jobs_are_deleted_before_the_finalizer_is_removed(self, phase: str) -> None:
        leaving = workload(meta=LEAVING, status={"phase": phase})
        old = job(leaving, "a")
        assert plan_for(WorkloadSnapshot(leaving, (old,))).actions == (DeleteJob(old, as_seen=False),)
        assert plan_for(WorkloadSnapshot(leaving, (job(leaving, "a", deleting=True),))) == Plan()
        assert plan_for(WorkloadSnapshot(leaving)).actions == (RemoveFinalizer(),)

    def test_workload_without_our_finalizer_is_left_alone(self) -> None:
        leaving = workload(meta={**LEAVING, "finalizers": ["other/one"]})
        assert plan_for(WorkloadSnapshot(leaving)) == Plan()


def test_same_snapshot_gives_the_same_plan() -> None:
    snapshot = WorkloadSnapshot(workload(retryPolicy={"maxRetries": 2}))
    assert plan_for(snapshot, refuses, seed=5) == plan_for(snapshot, refuses, seed=5)
