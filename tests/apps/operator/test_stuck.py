"""Jobs that do not start: what they cost, what they say, and when they are deleted."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.planning import place, retries
from gpu_orchestrator.apps.operator.planning.plan import ChangeJob, CreateJob, DeleteJob, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import Given, Volumes, WorkloadSnapshot
from gpu_orchestrator.core.request import Request
from tests.support.operator_builders import (
    NOW,
    after,
    gives,
    job,
    later,
    plan_for,
    pod,
    refuses,
    workload,
)

JOB = "bert-job-0a1b2c3d"
WAIT = {"onNoCapacity": "Wait"}
STARTED = {"startTime": NOW.isoformat()}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}


def scheduled(**fields: Any) -> GPUWorkload:
    return workload(status={"phase": "Scheduled", "assignedNode": "a", "jobName": JOB}, **fields)


def shown(plan: Plan) -> tuple[Any, ...]:
    assert plan.status
    reason = next((each.reason for each in plan.status.conditions if each.type == "Scheduled"), "")
    return plan.status.phase, reason, plan.status.retry_count, plan.status.job_name


class TestPodless:
    def test_costs_a_try_after_thirty_seconds_and_says_why(self) -> None:
        known = scheduled()
        podless = job(known, "a", status=STARTED)
        snapshot = WorkloadSnapshot(known, (podless,), warning="exceeded quota: none")
        assert plan_for(snapshot, at=later(29)) == Plan(again_at=later(30))
        plan = plan_for(snapshot, at=later(30))
        assert shown(plan) == ("Pending", "BackingOff", 1, "")
        assert plan.failed == "NoPod"
        text = f"Job {JOB} created no pod for 30 s: exceeded quota: none"
        assert [(note.reason, note.text) for note in plan.notes[:1]] == [("FailedScheduling", text)]
        counted = after(snapshot, plan)
        assert plan_for(WorkloadSnapshot(counted, (podless,)), at=later(31)).actions == (DeleteJob(podless),)

    def test_without_event_the_message_says_where_to_look(self) -> None:
        known = scheduled()
        plan = plan_for(WorkloadSnapshot(known, (job(known, "a", status=STARTED),)), at=later(30))
        assert plan.status
        assert f"kubectl describe job {JOB}" in plan.status.message

    def test_kubernetes_has_five_minutes_to_look_at_the_job(self) -> None:
        """Of a Job with `managedBy`, nobody may ever take notice."""
        known = scheduled()
        made = job(known, "a", created=NOW)
        plan = plan_for(WorkloadSnapshot(known, (made,)), at=later(31))
        assert plan.status
        assert (plan.status.retry_count, plan.status.phase, plan.again_at) == (0, "Scheduled", later(300))
        told = WorkloadSnapshot(after(WorkloadSnapshot(known), plan), (made,))
        assert plan_for(told, at=later(299)) == Plan(again_at=later(300))
        plan = plan_for(told, at=later(300))
        assert shown(plan) == ("Pending", "BackingOff", 1, "")
        assert plan.status
        assert plan.status.message.startswith(f"Job {JOB} created no pod for 300 s: ")

    def test_costs_no_try_if_the_workload_waits_for_room(self) -> None:
        known = scheduled(retryPolicy=WAIT)
        podless = job(known, "a", status=STARTED)
        plan = plan_for(WorkloadSnapshot(known, (podless,)), at=later(30))
        assert shown(plan) == ("Pending", "PodRefused", 0, "")
        assert plan.actions == (DeleteJob(podless),)

    @pytest.mark.parametrize(
        "state",
        [
            pytest.param({"active": 1}, id="the watch of pods lags behind"),
            pytest.param({"failed": 1}, id="its pod has ended"),
            pytest.param({"uncountedTerminatedPods": {"succeeded": ["uid"]}}, id="not counted yet"),
        ],
    )
    def test_job_that_had_a_pod_is_not_podless(self, state: dict[str, Any]) -> None:
        known = scheduled()
        made = job(known, "a", status={**STARTED, **state})
        assert plan_for(WorkloadSnapshot(known, (made,)), at=later(60)) == Plan()


class TestSuspendedByOthers:
    def test_costs_nothing_and_is_reported_once(self) -> None:
        known = scheduled()
        queued = job(known, "a", suspend=True, status=STARTED)
        snapshot = WorkloadSnapshot(known, (queued,))
        plan = plan_for(snapshot, at=later(60))
        assert shown(plan) == ("Pending", "JobSuspended", 0, JOB)
        assert plan.actions == ()
        assert [note.reason for note in plan.notes] == ["JobSuspended"]
        waiting = after(snapshot, plan)
        assert plan_for(WorkloadSnapshot(waiting, (queued,)), at=later(90)) == Plan()

    def test_resumed_job_is_scheduled_again(self) -> None:
        known = scheduled()
        snapshot = WorkloadSnapshot(known, (job(known, "a", suspend=True),))
        waiting = after(snapshot, plan_for(snapshot))
        plan = plan_for(WorkloadSnapshot(waiting, (job(known, "a"),)))
        assert shown(plan) == ("Scheduled", "Placed", 0, JOB)

    def test_queue_label_leaves_the_choice_open(self) -> None:
        queued = workload(meta={"labels": {"kueue.x-k8s.io/queue-name": "gpus"}})
        plan = plan_for(WorkloadSnapshot(queued), gives("a", "b"))
        assert shown(plan)[0] == "Scheduling"


class TestUnschedulable:
    def test_nominated_pod_gets_time_for_its_victims_to_end(self) -> None:
        known = scheduled()
        waiting = pod(unschedulable_since=NOW, nominated="a")
        snapshot = WorkloadSnapshot(known, (job(known, "a"),), (waiting,))
        assert plan_for(snapshot, at=later(299)) == Plan(again_at=later(300))
        assert shown(plan_for(snapshot, at=later(300)))[2] == 1

    def test_rejected_nodes_are_shunned(self) -> None:
        known = scheduled()
        refused = (pod(unschedulable_since=NOW),)
        plan = plan_for(WorkloadSnapshot(known, (job(known, "a"),), refused), at=later(10))
        assert (plan.shun, plan.failed) == (("a",), "NodeRefused")

    def test_costs_no_try_if_the_workload_waits_for_room(self) -> None:
        known = scheduled(retryPolicy=WAIT)
        made = job(known, "a")
        snapshot = WorkloadSnapshot(known, (made,), (pod(unschedulable_since=NOW),))
        plan = plan_for(snapshot, at=later(10))
        assert shown(plan) == ("Pending", "NodeRefused", 0, "")
        assert (plan.actions, plan.shun) == ((DeleteJob(made),), ("a",))
        waiting = WorkloadSnapshot(after(snapshot, plan))
        assert plan_for(waiting, at=later(39)) == Plan(again_at=later(40))
        assert shown(plan_for(waiting, gives("b"), at=later(40)))[0] == "Scheduled"


@pytest.mark.parametrize(("backoff", "waits"), [(1, [1, 1, 2, 4, 8, 16, 30, 30]), (60, [60, 60, 60])])
def test_waits_for_what_is_still_missing_become_longer(backoff: int, waits: list[int]) -> None:
    policy = {"backoffSeconds": backoff}
    snapshot = WorkloadSnapshot(workload(retryPolicy=policy), volumes=Volumes(not_ready="missing"))
    found, now = [], NOW
    for _ in waits:
        plan = plan_for(snapshot, at=now)
        assert plan.again_at
        found.append((plan.again_at - now).total_seconds())
        snapshot, now = replace(snapshot, workload=after(snapshot, plan)), plan.again_at
    assert found == waits


class TestWaitForRoom:
    def test_costs_no_try_and_is_reported_once(self) -> None:
        snapshot = WorkloadSnapshot(workload(retryPolicy=WAIT))
        plan = plan_for(snapshot, refuses)
        assert shown(plan) == ("Pending", "Unschedulable", 0, "")
        assert (plan.again_at, plan.failed) == (None, "")
        assert [note.reason for note in plan.notes] == ["FailedScheduling"]
        waiting = WorkloadSnapshot(after(snapshot, plan))
        assert plan_for(waiting, refuses, at=later(86_400)) == Plan()
        assert shown(plan_for(waiting, gives("a")))[0] == "Scheduled"

    @pytest.mark.parametrize(
        ("policy", "waits_by_default", "spent"),
        [
            pytest.param({}, False, 1, id="no default"),
            pytest.param({}, True, 0, id="by default"),
            pytest.param({"onNoCapacity": "Retry"}, True, 1, id="not by default"),
            pytest.param({"onNoCapacity": "Wait"}, False, 0, id="asked for"),
        ],
    )
    def test_workload_goes_before_the_default(
        self, policy: dict[str, str], waits_by_default: bool, spent: int
    ) -> None:
        snapshot = WorkloadSnapshot(workload(retryPolicy=policy), waits_by_default=waits_by_default)
        assert shown(plan_for(snapshot, refuses))[2] == spent

    def test_edited_policy_counts_at_the_next_look(self) -> None:
        snapshot = WorkloadSnapshot(workload())
        refused = after(snapshot, plan_for(snapshot, refuses))
        status = {"conditions": [], **_status(refused)}
        patient = workload(retryPolicy=WAIT, meta={"generation": 2}, status=status)
        plan = plan_for(WorkloadSnapshot(patient), refuses)
        assert plan.status
        assert (plan.status.next_retry_time, plan.status.retry_count) == ("", 1)

    def test_refusal_by_the_server_costs_no_try(self) -> None:
        for policy, spent in ((WAIT, 0), ({}, 1)):
            snapshot = WorkloadSnapshot(workload(retryPolicy=policy))
            plan = retries.refused_by_server(snapshot, NOW, random.Random(1), "no Jobs left", for_good=False)
            assert shown(plan)[2] == spent

    def test_failed_jobs_cost_tries(self) -> None:
        known = scheduled(retryPolicy=WAIT)
        failed = job(known, "a", conditions={"Failed": "BackoffLimitExceeded"})
        assert shown(plan_for(WorkloadSnapshot(known, (failed,))))[:3] == ("Pending", "BackingOff", 1)


def _status(known: GPUWorkload) -> dict[str, Any]:
    status: dict[str, Any] = msgspec.to_builtins(known.status)
    return status


class TestSeveralNodes:
    """What only the kube-scheduler can judge is left to it, among the nodes that fit."""

    @pytest.mark.parametrize(
        ("spec", "more"),
        [
            pytest.param({"affinity": APART}, {}, id="other pods"),
            pytest.param(
                {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, {}, id="spread"
            ),
            pytest.param({"resourceClaims": [{"name": "nic"}]}, {}, id="DRA"),
            pytest.param({"volumes": [{"name": "x", "ephemeral": {}}]}, {}, id="ephemeral volume"),
            pytest.param({}, {"volumes": Volumes(is_open=True)}, id="volume that waits for its pod"),
            pytest.param({}, {"shunned": frozenset("c")}, id="a node was rejected before"),
        ],
    )
    def test_choice_is_left_open(self, spec: dict[str, Any], more: dict[str, Any]) -> None:
        snapshot = WorkloadSnapshot(workload(template={"spec": spec}), **more)
        plan = plan_for(snapshot, gives("b", "a"))
        assert shown(plan) == ("Scheduling", "AskedKubeScheduler", 0, JOB)
        (create,) = plan.actions
        assert isinstance(create, CreateJob)
        affinity = create.manifest["spec"]["template"]["spec"]["affinity"]
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        named = [term["matchFields"][0]["values"] for term in required["nodeSelectorTerms"]]
        assert named == [["b"], ["a"]]
        preferred = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert [each["preference"]["matchFields"][0]["values"] for each in preferred] == [["b"]]

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param({}, id="nothing special"),
            pytest.param(
                {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, id="soft spread"
            ),
        ],
    )
    def test_operator_chooses_if_it_can_judge_everything(self, spec: dict[str, Any]) -> None:
        plan = plan_for(WorkloadSnapshot(workload(template={"spec": spec})), gives("b", "a"))
        assert shown(plan) == ("Scheduled", "Placed", 0, JOB)

    def test_only_node_that_fits_is_the_place(self) -> None:
        snapshot = WorkloadSnapshot(workload(template={"spec": {"affinity": APART}}))
        assert shown(plan_for(snapshot, gives("a")))[0] == "Scheduled"

    def test_number_of_terms_is_bounded(self) -> None:
        terms = [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}] * 3
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        template = {"spec": {"affinity": {**APART, "nodeAffinity": required}}}
        asked: list[int] = []

        def ask(wishes: Sequence[Request], most: int = 1) -> Given:
            asked.append(most)
            return Given("a", "nvidia.com/gpu")

        plan_for(WorkloadSnapshot(workload(template=template)), ask)
        assert asked == [place.MOST_TERMS // 3]

    def test_status_follows_the_kube_schedulers_choice(self) -> None:
        snapshot = WorkloadSnapshot(workload(template={"spec": {"affinity": APART}}))
        known = after(snapshot, plan_for(snapshot, gives("a", "b")))
        made = (job(known, "a", "b"),)
        assert plan_for(WorkloadSnapshot(known, made, (pod(),))) == Plan()
        plan = plan_for(WorkloadSnapshot(known, made, (pod(node="b"),)))
        assert plan.status
        assert (plan.status.phase, plan.status.assigned_node) == ("Scheduled", "b")
        assert [note.text for note in plan.notes] == ["4 GPUs of b, chosen by the kube-scheduler"]

    def test_unrecorded_job_is_recorded_like_a_new_one(self) -> None:
        snapshot = WorkloadSnapshot(workload(template={"spec": {"affinity": APART}}))
        created = plan_for(snapshot, gives("a", "b"))
        found = plan_for(WorkloadSnapshot(snapshot.workload, (job(snapshot.workload, "a", "b"),)))
        assert (found.status, found.notes) == (created.status, created.notes)

    def test_all_nodes_that_did_not_take_the_pod_are_shunned(self) -> None:
        snapshot = WorkloadSnapshot(workload(template={"spec": {"affinity": APART}}))
        known = after(snapshot, plan_for(snapshot, gives("a", "b")))
        refused = (pod(unschedulable_since=NOW),)
        plan = plan_for(WorkloadSnapshot(known, (job(known, "a", "b"),), refused), at=later(10))
        assert plan.shun == ("a", "b")
        assert plan.status
        assert plan.status.message.startswith("none of 2 nodes took the pod for 10 s: ")

    def test_node_on_which_the_job_failed_is_shunned(self) -> None:
        known = scheduled()
        for nodes, shunned in (("ab", ("a",)), ("a", ())):  # a Job with one node shows it itself
            failed = job(known, *nodes, conditions={"Failed": "BackoffLimitExceeded"})
            plan = plan_for(WorkloadSnapshot(known, (failed,)))
            assert (plan.failed, plan.shun) == ("JobFailed", shunned)

    def test_volume_that_is_not_ready_needs_no_job_and_costs_no_try(self) -> None:
        missing = Volumes(not_ready="PersistentVolumeClaim team/data does not exist; create it")
        snapshot = WorkloadSnapshot(workload(), volumes=missing)
        plan = plan_for(snapshot)
        assert shown(plan) == ("Pending", "PodRefused", 0, "")
        assert plan.actions == ()
        again = plan_for(WorkloadSnapshot(after(snapshot, plan), volumes=missing), at=later(30))
        assert again.notes == ()  # it was said already


class TestEditedSpec:
    def test_job_made_from_an_older_spec_is_replaced_before_the_status_names_it(self) -> None:
        old = workload(gpuCount=1)
        (create,) = plan_for(WorkloadSnapshot(old), gives("a")).actions
        assert isinstance(create, CreateJob)
        annotations = create.manifest["metadata"]["annotations"]
        made = job(old, "a", annotations=annotations)
        edited = workload(gpuCount=8, meta={"generation": 2})
        running = (pod(node="a", phase="Running"),)
        assert plan_for(WorkloadSnapshot(edited, (made,), running)).actions == (DeleteJob(made),)
        same = workload(gpuCount=1, meta={"generation": 2}, maxRuntimeSeconds=5)
        kept = plan_for(WorkloadSnapshot(same, (made,)))
        assert kept.actions == (ChangeJob(made, {"activeDeadlineSeconds": 5}),)

    def test_job_of_an_earlier_release_is_kept(self) -> None:
        edited = workload(gpuCount=8, meta={"generation": 2})
        assert plan_for(WorkloadSnapshot(edited, (job(edited, "a"),))).actions == ()

    def test_time_limit_reaches_the_running_job(self) -> None:
        made, running = job(workload(), "a", deadline=None), (pod(node="a", phase="Running"),)
        for phase in ("Pending", "Scheduled", "Running"):
            status = {"phase": phase, "assignedNode": "a", "jobName": JOB}
            edited = workload(maxRuntimeSeconds=60, meta={"generation": 2}, status=status)
            snapshot = WorkloadSnapshot(edited, (made,), running)
            plan = plan_for(snapshot)
            assert plan.actions == (ChangeJob(made, {"activeDeadlineSeconds": 60}),)
            done = job(edited, "a", deadline=60)
            assert plan_for(WorkloadSnapshot(after(snapshot, plan), (done,), running)) == Plan()

    @pytest.mark.parametrize("nodes", ["a", "ab"])
    def test_time_limit_reaches_a_job_that_waits(self, nodes: str) -> None:
        edited = scheduled(maxRuntimeSeconds=60, meta={"generation": 2})
        for held in (False, True):
            made = job(edited, *nodes, deadline=None, suspend=held)
            plan = plan_for(WorkloadSnapshot(edited, (made,)))
            assert plan.actions == (ChangeJob(made, {"activeDeadlineSeconds": 60}),)

    def test_time_limit_that_a_policy_of_the_cluster_has_set_stays(self) -> None:
        known = scheduled()
        limited, running = job(known, "a", deadline=3600), (pod(node="a", phase="Running"),)
        snapshot = WorkloadSnapshot(known, (limited,), running)
        plan = plan_for(snapshot)
        assert plan.actions == ()
        assert plan_for(WorkloadSnapshot(after(snapshot, plan), (limited,), running)) == Plan()

    def test_edit_without_effect_is_reported_once(self) -> None:
        old = scheduled()
        made = job(old, "a", annotations={"gpu.warp.dev/made-from": jobs.made_from(old, claimed=False)})
        edited = scheduled(priority="high", meta={"generation": 2})
        snapshot = WorkloadSnapshot(edited, (made,), (pod(node="a"),))
        plan = plan_for(snapshot)
        assert [note.reason for note in plan.notes] == ["SpecChanged"]
        assert plan.status
        assert plan.status.observed_generation == 2
        assert plan_for(WorkloadSnapshot(after(snapshot, plan), (made,), snapshot.pods)) == Plan()
