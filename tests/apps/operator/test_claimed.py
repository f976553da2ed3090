"""Claimed workloads: the gpu-scheduler decides, and what it says is mirrored. No server, no clock."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import timestamps
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.apps.operator.plan import CreateClaim, CreateJob, DeleteJob, Plan
from tests.apps.operator.builders import NOW, after, gives, job, later, plan_for, pod, workload

CLAIM: dict[str, Any] = {
    "devices": {"policy": "packed"},
    "topology": {"mode": "Required", "minBandwidthGBps": 600},
}
REFUSED = "0/2 nodes fit: 2 have fewer than 4 free GPUs"
JOB = "bert-job-0a1b2c3d"


def claimed(**fields: Any) -> GPUWorkload:
    return workload(claim=CLAIM, **fields)


def made(owner: GPUWorkload, **state: Any) -> Job:
    return job(owner, "", made_from=jobs.made_from(owner), **state)


def asked(**fields: Any) -> GPUWorkload:
    """A workload whose Job was created and is recorded."""
    facts = Facts(claimed(**fields))
    return after(facts, plan_for(facts))


def refused(owner: GPUWorkload, *, at: float = 0, said: str = REFUSED, retry: int = 0) -> Facts:
    waiting = pod(unschedulable_since=later(at), said=said)
    return Facts(owner, (made(owner, retry=retry),), (waiting,))


def shown(plan: Plan) -> tuple[Any, ...]:
    status = plan.status
    assert status
    return status.phase, status.assigned_node, status.job_name, status.retry_count


def test_a_claim_becomes_a_template_and_a_job_that_asks_by_it() -> None:
    plan = plan_for(Facts(claimed(schedulingStrategy="binPack")))
    claim, create = plan.actions
    assert isinstance(claim, CreateClaim)
    assert isinstance(create, CreateJob)
    made_claim = msgspec.convert(claim.manifest, GpuClaim)
    assert made_claim.spec.devices.count == 4
    assert made_claim.spec.devices.policy == "packed"
    assert made_claim.spec.topology.min_bandwidth_gbps == 600
    assert made_claim.metadata.owner_references[0].kind == "GPUWorkload"
    template = create.manifest["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "gpu.scheduling/claim-template": made_claim.metadata.name,
        "gpu.scheduling/strategy": "binPack",
    }
    assert template["spec"]["schedulerName"] == "gpu-scheduler"
    assert "affinity" not in template["spec"]
    assert "resources" not in template["spec"]["containers"][0]
    assert shown(plan) == ("Scheduling", "", JOB, 0)
    assert [note.reason for note in plan.notes] == ["JobCreated"]
    assert msgspec.convert(create.manifest, Job).is_claimed


def test_without_a_claim_bare_gpus_are_asked_for_where_that_is_the_default() -> None:
    (create,) = plan_for(Facts(workload(), claims_by_default=True)).actions
    assert isinstance(create, CreateJob)
    assert create.manifest["spec"]["template"]["metadata"]["annotations"]["gpu.scheduling/gpus"] == "4"
    (plain,) = plan_for(Facts(workload()), gives("a")).actions
    assert isinstance(plain, CreateJob)
    assert "schedulerName" not in plain.manifest["spec"]["template"]["spec"]


def test_every_container_learns_its_devices_from_the_answer() -> None:
    mine = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "LR", "value": "0.1"}]
    containers = {
        "initContainers": [{"name": "init", "image": "x", "env": mine}],
        "containers": [{"name": "main", "image": "x", "env": mine}, {"name": "logs", "image": "x"}],
    }
    (_, create) = plan_for(Facts(claimed(template={"spec": containers}))).actions
    assert isinstance(create, CreateJob)
    spec = create.manifest["spec"]["template"]["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        env = {each["name"]: each for each in container["env"]}
        path = env["NVIDIA_VISIBLE_DEVICES"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.annotations['gpu.scheduling/visible-devices']"
        assert "HIP_VISIBLE_DEVICES" in env
        assert len(env) == len(container["env"])
    assert [each["name"] for each in spec["containers"][0]["env"]][-3:] == ["MODEL_NAME", "GPU_COUNT", "LR"]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        pytest.param({"spec": {"schedulerName": "default-scheduler"}}, "schedulerName", id="scheduler"),
        pytest.param(
            {"metadata": {"annotations": {"gpu.scheduling/claim": "mine"}}},
            "has gpu.scheduling/claim",
            id="a claim of its own",
        ),
        pytest.param(
            {"metadata": {"annotations": {"gpu.scheduling/allocated": "a:0"}}},
            "has gpu.scheduling/allocated",
            id="an answer of its own",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "x", "resources": {"limits": {"nvidia.com/gpu": 4}}}]}},
            "asks for nvidia.com/gpu",
            id="GPUs of a device plugin",
        ),
        pytest.param(
            {"spec": {"containers": [{"name": "main"}, {"name": "x", "env": ["y"]}]}},
            "is no pod template",
            id="an environment that is none",
        ),
    ],
)
def test_a_template_that_contradicts_the_claim_is_refused(template: dict[str, Any], words: str) -> None:
    plan = plan_for(Facts(claimed(template=template)))
    assert plan.status
    assert plan.status.phase == "Failed"
    assert words in plan.status.message


@pytest.mark.parametrize(
    ("pods", "expected", "words"),
    [
        pytest.param([], None, "", id="no pod yet"),
        pytest.param([pod(created=NOW)], None, "", id="no answer yet"),
        pytest.param(
            [pod(node="a", given="0,1,4,5")],
            ("Scheduled", "a", JOB, 0),
            "placed on a (devices 0,1,4,5)",
            id="bound",
        ),
        pytest.param(
            [pod(node="a", given="3", phase="Running")],
            ("Running", "a", JOB, 0),
            "running on a (device 3)",
            id="runs",
        ),
        pytest.param([pod(unschedulable_since=NOW)], ("Pending", "", JOB, 1), "0/1 nodes", id="refused"),
    ],
)
def test_the_outcome_is_mirrored(pods: list[Any], expected: tuple[Any, ...] | None, words: str) -> None:
    known = asked()
    plan = plan_for(Facts(known, (made(known),), tuple(pods)), at=later(5))
    assert plan.actions == ()
    if expected is None:
        assert plan.status is None
    else:
        assert shown(plan) == expected
        assert plan.status
        assert words in plan.status.message


def test_placed_it_is_told_once_and_then_left_alone() -> None:
    known = asked()
    facts = Facts(known, (made(known),), (pod(node="a", given="0"),))
    plan = plan_for(facts)
    assert [note.reason for note in plan.notes] == ["Scheduled"]  # that the Job was created was told before
    placed = after(facts, plan)
    assert plan_for(Facts(placed, facts.jobs, facts.pods)) == Plan()
    assert plan_for(Facts(placed, facts.jobs)) == Plan()  # its pod ended, its Job does not say so yet


def test_a_job_that_the_status_does_not_know_yet_is_recorded_as_if_just_made() -> None:
    new = claimed()
    first = plan_for(Facts(new))
    found = plan_for(Facts(new, (made(new),)))
    assert (found.actions, found.status, found.notes) == ((), first.status, first.notes)


def test_a_refusal_costs_a_try_at_arrival_and_after_each_wait_and_the_same_job_waits_on() -> None:
    facts = refused(asked(retryPolicy={"maxRetries": 3, "backoffSeconds": 10}))
    plan = plan_for(facts)
    assert shown(plan) == ("Pending", "", JOB, 1)
    assert [(note.reason) for note in plan.notes] == ["FailedScheduling", "Retrying"]
    assert plan.notes[0].text == REFUSED
    waiting = refused(after(facts, plan))
    assert plan.again_at
    assert plan_for(waiting, at=later(5)) == Plan(
        again_at=timestamps.parse_optional(waiting.workload.status.next_retry_time)
    )
    second = plan_for(waiting, at=later(12))
    assert second.actions == ()
    assert shown(second) == ("Pending", "", JOB, 2)
    last = refused(after(waiting, second))
    given_up = plan_for(last, at=later(40))
    assert shown(given_up) == ("Failed", "", "", 3)
    settled = plan_for(refused(after(last, given_up)), at=later(41))
    assert [type(action) for action in settled.actions] == [DeleteJob]


def test_a_reason_that_changed_is_told_and_costs_nothing() -> None:
    facts = refused(asked())
    waiting = after(facts, plan_for(facts))
    plan = plan_for(refused(waiting, said="0/3 nodes fit: 3 not ready"), at=later(5))
    assert shown(plan) == ("Pending", "", JOB, 1)
    assert plan.status
    assert plan.status.message == "0/3 nodes fit: 3 not ready"
    assert plan.status.next_retry_time == waiting.status.next_retry_time
    assert plan.notes == ()


def test_tries_spent_waiting_and_running_count_together_and_no_name_is_used_twice() -> None:
    facts = refused(asked())
    waiting = after(facts, plan_for(facts))
    bound = Facts(waiting, (made(waiting),), (pod(node="a", given="0"),))
    placed = plan_for(bound, at=later(1))
    assert shown(placed) == ("Scheduled", "a", JOB, 1)
    running = after(bound, placed)
    failed = Facts(running, (made(running, conditions={"Failed": "BackoffLimitExceeded"}),))
    again = plan_for(failed, at=later(2))
    assert shown(again) == ("Pending", "", "", 2)
    assert "failed on a" in again.notes[0].text
    next_try = plan_for(Facts(after(failed, again), failed.jobs), at=later(120))
    create = next_try.actions[-1]
    assert isinstance(create, CreateJob)
    assert create.manifest["metadata"]["name"] == f"{JOB}-r2"


def test_a_job_made_after_tries_were_spent_is_known_after_a_crash() -> None:
    """Somebody deleted the Job that waited; we made another, and were stopped before the status said so."""
    facts = refused(asked())
    waiting = after(facts, plan_for(facts))
    create = plan_for(Facts(waiting)).actions[-1]
    assert isinstance(create, CreateJob)
    assert create.manifest["metadata"]["name"] == f"{JOB}-r1"
    found = plan_for(Facts(waiting, (made(waiting, retry=1),)))
    assert found.actions == ()
    assert shown(found) == ("Scheduling", "", f"{JOB}-r1", 1)


def test_where_it_ran_is_told_by_the_pod_if_nobody_saw_it_run() -> None:
    known = asked()
    facts = Facts(known, (made(known, conditions={"Complete": ""}),), ended_on="b")
    plan = plan_for(facts)
    assert shown(plan) == ("Succeeded", "b", JOB, 0)
    unknown = plan_for(Facts(known, facts.jobs))
    assert unknown.status
    assert unknown.status.message == f"Job {JOB} succeeded"


@pytest.mark.parametrize(
    ("change", "is_made_anew"),
    [
        pytest.param({"claim": {"devices": {"policy": "spread"}}}, True, id="claim"),
        pytest.param({"gpuCount": 2}, True, id="count"),
        pytest.param({"priority": "high"}, True, id="priority"),
        pytest.param({"replicas": 2}, True, id="replicas"),
        pytest.param({"retryPolicy": {"maxRetries": 9}}, False, id="tries"),
        pytest.param({"ttlSecondsAfterFinished": 9}, False, id="ttl"),
    ],
)
def test_a_wish_that_changes_while_it_waits_needs_another_job(
    change: dict[str, Any], is_made_anew: bool
) -> None:
    old = asked()
    status = msgspec.to_builtins(old.status)
    edited = workload(**{"claim": CLAIM, **change}, meta={"generation": 2}, status=status)
    plan = plan_for(Facts(edited, (made(old),), (pod(created=NOW),)))
    assert [type(action) for action in plan.actions] == ([DeleteJob] if is_made_anew else [])
    placed = msgspec.structs.replace(edited.status, phase="Running", assigned_node="a")
    settled = msgspec.structs.replace(edited, status=placed)
    assert plan_for(Facts(settled, (made(old),), (pod(node="a", phase="Running"),))) == Plan()


def test_a_scheduler_that_does_not_answer_is_told_once_and_costs_no_try() -> None:
    known = asked()
    facts = Facts(known, (made(known),), (pod(created=NOW),))
    assert plan_for(facts, at=later(29)) == Plan(again_at=later(30))
    plan = plan_for(facts, at=later(31))
    assert shown(plan) == ("Scheduling", "", JOB, 0)
    assert plan.status
    assert "the gpu-scheduler has not answered for 30 s" in plan.status.message
    told = Facts(after(facts, plan), facts.jobs, facts.pods)
    assert plan_for(told, at=later(60)) == Plan()


def test_a_job_that_makes_no_pod_is_told() -> None:
    known = asked()
    plan = plan_for(Facts(known, (made(known, created=NOW),)), at=later(31))
    assert plan.status
    assert "makes no pod; see: kubectl describe job" in plan.status.message


def test_a_runtime_limit_counts_from_the_pods_start_and_not_while_it_waits() -> None:
    create = plan_for(Facts(claimed(maxRuntimeSeconds=60))).actions[-1]
    assert isinstance(create, CreateJob)
    assert "activeDeadlineSeconds" not in create.manifest["spec"]
    assert create.manifest["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 60
    known = asked(maxRuntimeSeconds=60)
    failed = made(known, conditions={"Failed": "BackoffLimitExceeded"})
    plan = plan_for(Facts(known, (failed,), ended_on="a", overran=True))
    assert shown(plan) == ("Failed", "a", JOB, 0)
    assert plan.status
    assert "ran longer than maxRuntimeSeconds (60) on a" in plan.status.message


def test_suspended_it_holds_nothing_and_loses_no_try() -> None:
    facts = refused(asked())
    waiting = after(facts, plan_for(facts))
    status = msgspec.to_builtins(waiting.status)
    held = claimed(suspend=True, meta={"generation": 2}, status=status)
    plan = plan_for(refused(held), at=later(1))
    assert [type(action) for action in plan.actions] == [DeleteJob]
    assert shown(plan) == ("Pending", "", "", 1)
    resumed = claimed(meta={"generation": 3}, status=msgspec.to_builtins(after(facts, plan).status))
    assert shown(plan_for(Facts(resumed), at=later(2))) == ("Scheduling", "", f"{JOB}-r1", 1)
