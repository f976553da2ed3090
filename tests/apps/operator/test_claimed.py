"""Claimed workloads: the gpu-scheduler decides, the operator reports its answer. No server, no clock."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import EndedPod, Job
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.planning.plan import CreateClaim, CreateJob, DeleteJob, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.apps.operator.planning.status import LONGEST
from tests.support.operator_builders import NOW, after, gives, job, later, plan_for, pod, workload

CLAIM: dict[str, Any] = {
    "devices": {"policy": "packed"},
    "topology": {"mode": "Required", "minBandwidthGBps": 600},
}
REFUSED = "0/2 nodes fit: 2 have fewer than 4 free GPUs"
JOB = "bert-job-0a1b2c3d"


def claimed(**fields: Any) -> GPUWorkload:
    return workload(claim=CLAIM, **fields)


def made(owner: GPUWorkload, **state: Any) -> Job:
    return job(owner, "", made_from=jobs.made_from(owner, claimed=True), **state)


def asked(**fields: Any) -> GPUWorkload:
    """A workload whose Job was created and is recorded."""
    snapshot = WorkloadSnapshot(claimed(**fields))
    return after(snapshot, plan_for(snapshot))


def refused(owner: GPUWorkload, *, at: float = 0, said: str = REFUSED, retry: int = 0) -> WorkloadSnapshot:
    waiting = pod(unschedulable_since=later(at), said=said)
    return WorkloadSnapshot(owner, (made(owner, retry=retry),), (waiting,))


def ended(allocated: str) -> EndedPod:
    node = allocated.partition(":")[0]
    annotations = {names.ALLOCATED: allocated}
    plain = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"nodeName": node}}
    return msgspec.convert(plain, EndedPod)


def shown(plan: Plan) -> tuple[Any, ...]:
    status = plan.status
    assert status
    return status.phase, status.assigned_node, status.job_name, status.retry_count


def test_claim_becomes_a_template_and_a_job_that_refers_to_it() -> None:
    plan = plan_for(WorkloadSnapshot(claimed(schedulingStrategy="binPack")))
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
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    assert template["spec"]["schedulerName"] == "gpu-scheduler"
    assert "affinity" not in template["spec"]
    counted = {"gpu.scheduling/milligpu": "4000"}
    assert template["spec"]["containers"][0]["resources"] == {"requests": counted, "limits": counted}
    assert shown(plan) == ("Scheduling", "", JOB, 0)
    assert [note.reason for note in plan.notes] == ["JobCreated"]
    assert msgspec.convert(create.manifest, Job).is_claimed


def test_template_may_let_autoscalers_end_the_pod() -> None:
    own = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    create = plan_for(WorkloadSnapshot(claimed(template={"metadata": {"annotations": own}}))).actions[-1]
    assert isinstance(create, CreateJob)
    annotations = create.manifest["spec"]["template"]["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_workload_without_claim_requests_bare_gpus_when_claims_are_the_default() -> None:
    (create,) = plan_for(WorkloadSnapshot(workload(), claims_by_default=True)).actions
    assert isinstance(create, CreateJob)
    assert create.manifest["spec"]["template"]["metadata"]["annotations"]["gpu.scheduling/gpus"] == "4"
    (plain,) = plan_for(WorkloadSnapshot(workload()), gives("a")).actions
    assert isinstance(plain, CreateJob)
    assert "schedulerName" not in plain.manifest["spec"]["template"]["spec"]


def test_every_container_gets_its_devices_from_the_annotation() -> None:
    mine = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "LR", "value": "0.1"}]
    containers = {
        "initContainers": [{"name": "init", "image": "x", "env": mine}],
        "containers": [{"name": "main", "image": "x", "env": mine}, {"name": "logs", "image": "x"}],
    }
    (_, create) = plan_for(WorkloadSnapshot(claimed(template={"spec": containers}))).actions
    assert isinstance(create, CreateJob)
    spec = create.manifest["spec"]["template"]["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        env = {each["name"]: each for each in container["env"]}
        path = env["NVIDIA_VISIBLE_DEVICES"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.annotations['gpu.scheduling/visible-devices']"
        assert "HIP_VISIBLE_DEVICES" in env
        assert len(env) == len(container["env"])
    assert [each["name"] for each in spec["containers"][0]["env"]][-3:] == ["MODEL_NAME", "GPU_COUNT", "LR"]


SHARED_MEMORY: dict[str, Any] = {"exclusivity": "Shared", "memoryMiB": 20_480}


def pod_of(snapshot: WorkloadSnapshot) -> dict[str, Any]:
    create = plan_for(snapshot).actions[-1]
    assert isinstance(create, CreateJob)
    spec: dict[str, Any] = create.manifest["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("devices", "largest_mib", "counted"),
    [
        pytest.param({}, 0, "4000", id="whole devices"),
        pytest.param({"exclusivity": "Shared", "share": 250}, 0, "1000", id="shares"),
        pytest.param(SHARED_MEMORY, 81_920, "1000", id="memory of the largest device"),
        pytest.param(SHARED_MEMORY, 0, "4000", id="memory while no device is known"),
        pytest.param({**SHARED_MEMORY, "share": 100}, 81_920, "1000", id="memory above the share"),
        pytest.param({**SHARED_MEMORY, "share": 500}, 81_920, "2000", id="a share above the memory"),
    ],
)
def test_first_container_requests_what_the_claim_counts_for(
    devices: dict[str, Any], largest_mib: int, counted: str
) -> None:
    wrong = {"gpu.scheduling/milligpu": "7", "cpu": "1"}
    containers = {
        "initContainers": [{"name": "init", "image": "x", "resources": {"limits": wrong}}],
        "containers": [
            {"name": "side", "image": "x", "resources": {"requests": wrong}},
            {"name": "main", "image": "x", "resources": {"requests": wrong, "limits": wrong}},
        ],
    }
    owner = workload(claim={"devices": devices}, template={"spec": containers})
    spec = pod_of(WorkloadSnapshot(owner, largest_mib=largest_mib))
    ours = {"gpu.scheduling/milligpu": counted}
    assert [each.get("resources") for each in (*spec["initContainers"], *spec["containers"])] == [
        {"limits": {"cpu": "1"}},
        {"requests": {"cpu": "1", **ours}, "limits": ours},
        {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
    ]


def test_gpu_taints_are_tolerated_once() -> None:
    own = [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "team", "value": "a"}]
    spec = pod_of(WorkloadSnapshot(claimed(template={"spec": {"tolerations": own}})))
    assert spec["tolerations"] == [
        *own,
        {"key": "amd.com/gpu", "operator": "Exists"},
        {"key": "gpu.intel.com/i915", "operator": "Exists"},
        {"key": "gpu.intel.com/xe", "operator": "Exists"},
    ]


def test_job_of_an_earlier_release_is_not_made_again() -> None:
    """Its pods request no capacity; the hash that it carries is of the workload's spec alone."""
    owner = asked()
    before = job(owner, "", made_from=jobs.made_from(owner, claimed=True))
    assert not before.spec.template.spec.containers
    snapshot = WorkloadSnapshot(owner, (before,), (pod(node="a", given="0,1,2,3", phase="Running"),))
    assert not snapshot.stale
    assert not [each for each in plan_for(snapshot).actions if isinstance(each, DeleteJob | CreateJob)]


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
            "is not a valid pod template",
            id="invalid environment",
        ),
    ],
)
def test_template_that_contradicts_the_claim_fails(template: dict[str, Any], words: str) -> None:
    plan = plan_for(WorkloadSnapshot(claimed(template=template)))
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
def test_status_follows_the_pod(pods: list[Any], expected: tuple[Any, ...] | None, words: str) -> None:
    known = asked()
    plan = plan_for(WorkloadSnapshot(known, (made(known),), tuple(pods)), at=later(5))
    assert plan.actions == ()
    if expected is None:
        assert plan.status is None
    else:
        assert shown(plan) == expected
        assert plan.status
        assert words in plan.status.message


UUIDS = ("GPU-aaaa", "GPU-bbbb")


@pytest.mark.parametrize(
    ("bound", "devices"),
    [
        pytest.param(
            pod(node="a", given="4,5", uuids=UUIDS),
            [(4, "GPU-aaaa", "A100"), (5, "GPU-bbbb", "A100")],
            id="with UUIDs",
        ),
        pytest.param(
            pod(node="a", given="4,5", uuids=("4", "5")),
            [(4, "", "A100"), (5, "", "A100")],
            id="without UUIDs",
        ),
        pytest.param(pod(node="a", given="99999"), [], id="a number that no device has"),
        pytest.param(pod(node="a", given=",".join(map(str, range(65)))), [], id="too many"),
    ],
)
def test_devices_are_in_the_status_and_stay_there_to_the_end(bound: Any, devices: list[Any]) -> None:
    known = asked()
    snapshot = WorkloadSnapshot(known, (made(known),), (bound,), model="A100")
    placed = after(snapshot, plan_for(snapshot))
    assert [(each.index, each.uuid, each.model) for each in placed.status.devices] == devices
    assert placed.status.allocated == ("a:4,5" if devices else "")
    ended = WorkloadSnapshot(placed, (made(placed, conditions={"Complete": ""}),))
    assert after(ended, plan_for(ended)).status.devices == placed.status.devices
    failed = WorkloadSnapshot(placed, (made(placed, conditions={"Failed": "BackoffLimitExceeded"}),))
    waiting = after(failed, plan_for(failed)).status
    assert (waiting.phase, waiting.devices, waiting.allocated) == ("Pending", [], "")


def test_devices_are_added_to_a_status_of_an_earlier_release() -> None:
    known = asked()
    running = WorkloadSnapshot(known, (made(known),), (pod(node="a", given="0", phase="Running"),))
    placed = after(running, plan_for(running))
    earlier = msgspec.structs.replace(placed.status, devices=[], allocated="")
    old = msgspec.structs.replace(placed, status=earlier)
    plan = plan_for(WorkloadSnapshot(old, running.jobs, running.pods))
    assert plan.status == placed.status
    assert plan.notes == ()


def test_refusal_of_the_pod_itself_costs_no_try() -> None:
    said = "PersistentVolumeClaim team/data does not exist; create it"
    snapshot = refused(asked(), said=said)
    plan = plan_for(snapshot)
    assert shown(plan) == ("Scheduling", "", JOB, 0)
    assert plan.status
    assert plan.status.message == f"its pod cannot start on any node: {said}"
    assert [note.reason for note in plan.notes] == ["FailedScheduling"]
    told = WorkloadSnapshot(after(snapshot, plan), snapshot.jobs, snapshot.pods)
    assert plan_for(told, at=later(600)) == Plan()


def test_long_refusal_is_shortened_and_reported_once() -> None:
    snapshot = refused(asked(), said="x" * 100_000)
    plan = plan_for(snapshot)
    assert plan.status
    assert len(plan.status.message) == LONGEST
    told = WorkloadSnapshot(after(snapshot, plan), snapshot.jobs, snapshot.pods)
    assert plan_for(told, at=later(600)) == Plan()


def test_placement_is_reported_once() -> None:
    known = asked()
    snapshot = WorkloadSnapshot(known, (made(known),), (pod(node="a", given="0"),))
    plan = plan_for(snapshot)
    assert [note.reason for note in plan.notes] == ["Scheduled"]  # the Job's creation was reported before
    placed = after(snapshot, plan)
    assert plan_for(WorkloadSnapshot(placed, snapshot.jobs, snapshot.pods)) == Plan()
    assert (
        plan_for(WorkloadSnapshot(placed, snapshot.jobs)) == Plan()
    )  # its pod ended, its Job does not show it yet


def test_unrecorded_job_is_recorded_like_a_new_one() -> None:
    new = claimed()
    first = plan_for(WorkloadSnapshot(new))
    found = plan_for(WorkloadSnapshot(new, (made(new),)))
    assert (found.actions, found.status, found.notes) == ((), first.status, first.notes)


def test_refusal_costs_a_try_now_and_after_each_wait_and_keeps_the_job() -> None:
    snapshot = refused(asked(retryPolicy={"maxRetries": 3, "backoffSeconds": 10}))
    plan = plan_for(snapshot)
    assert shown(plan) == ("Pending", "", JOB, 1)
    assert [(note.reason) for note in plan.notes] == ["FailedScheduling", "Retrying"]
    assert plan.notes[0].text == REFUSED
    waiting = refused(after(snapshot, plan))
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


def test_changed_reason_is_reported_and_costs_no_try() -> None:
    snapshot = refused(asked())
    waiting = after(snapshot, plan_for(snapshot))
    plan = plan_for(refused(waiting, said="0/3 nodes fit: 3 not ready"), at=later(5))
    assert shown(plan) == ("Pending", "", JOB, 1)
    assert plan.status
    assert plan.status.message == "0/3 nodes fit: 3 not ready"
    assert plan.status.next_retry_time == waiting.status.next_retry_time
    assert plan.notes == ()


def test_tries_add_up_over_waiting_and_running_and_job_names_are_unique() -> None:
    snapshot = refused(asked())
    waiting = after(snapshot, plan_for(snapshot))
    bound = WorkloadSnapshot(waiting, (made(waiting),), (pod(node="a", given="0"),))
    placed = plan_for(bound, at=later(1))
    assert shown(placed) == ("Scheduled", "a", JOB, 1)
    running = after(bound, placed)
    failed = WorkloadSnapshot(running, (made(running, conditions={"Failed": "BackoffLimitExceeded"}),))
    again = plan_for(failed, at=later(2))
    assert shown(again) == ("Pending", "", "", 2)
    assert "failed on a" in again.notes[0].text
    next_try = plan_for(WorkloadSnapshot(after(failed, again), failed.jobs), at=later(120))
    create = next_try.actions[-1]
    assert isinstance(create, CreateJob)
    assert create.manifest["metadata"]["name"] == f"{JOB}-r2"


def test_job_created_after_spent_tries_is_found_after_a_crash() -> None:
    """A user deleted the waiting Job; the operator created another and stopped before it wrote the status."""
    snapshot = refused(asked())
    waiting = after(snapshot, plan_for(snapshot))
    create = plan_for(WorkloadSnapshot(waiting)).actions[-1]
    assert isinstance(create, CreateJob)
    assert create.manifest["metadata"]["name"] == f"{JOB}-r1"
    found = plan_for(WorkloadSnapshot(waiting, (made(waiting, retry=1),)))
    assert found.actions == ()
    assert shown(found) == ("Scheduling", "", f"{JOB}-r1", 1)


def test_node_comes_from_the_ended_pod_if_the_run_was_missed() -> None:
    known = asked()
    snapshot = WorkloadSnapshot(known, (made(known, conditions={"Complete": ""}),), ended=ended("b:4,5"))
    plan = plan_for(snapshot)
    assert shown(plan) == ("Succeeded", "b", JOB, 0)
    assert plan.status
    assert plan.status.allocated == "b:4,5"
    assert [each.index for each in plan.status.devices] == [4, 5]
    unknown = plan_for(WorkloadSnapshot(known, snapshot.jobs))
    assert unknown.status
    assert unknown.status.message == f"Job {JOB} succeeded"


@pytest.mark.parametrize(
    ("change", "is_replaced"),
    [
        pytest.param({"claim": {"devices": {"policy": "spread"}}}, True, id="claim"),
        pytest.param({"gpuCount": 2}, True, id="count"),
        pytest.param({"priority": "high"}, True, id="priority"),
        pytest.param({"replicas": 2}, True, id="replicas"),
        pytest.param({"retryPolicy": {"maxRetries": 9}}, False, id="tries"),
        pytest.param({"ttlSecondsAfterFinished": 9}, False, id="ttl"),
    ],
)
def test_changed_spec_replaces_the_waiting_job(change: dict[str, Any], is_replaced: bool) -> None:
    old = asked()
    status = msgspec.to_builtins(old.status)
    edited = workload(**{"claim": CLAIM, **change}, meta={"generation": 2}, status=status)
    plan = plan_for(WorkloadSnapshot(edited, (made(old),), (pod(created=NOW),)))
    assert [type(action) for action in plan.actions] == ([DeleteJob] if is_replaced else [])
    placed = msgspec.structs.replace(edited.status, phase="Running", assigned_node="a")
    settled = msgspec.structs.replace(edited, status=placed)
    running = (made(old),), (pod(node="a", phase="Running"),)
    noted = plan_for(WorkloadSnapshot(settled, *running))
    assert noted.actions == ()
    assert [note.reason for note in noted.notes] == (["SpecChanged"] if is_replaced else [])
    assert plan_for(WorkloadSnapshot(after(WorkloadSnapshot(settled), noted), *running)) == Plan()


def test_silent_scheduler_is_reported_once_and_costs_no_try() -> None:
    known = asked()
    snapshot = WorkloadSnapshot(known, (made(known),), (pod(created=NOW),))
    assert plan_for(snapshot, at=later(29)) == Plan(again_at=later(30))
    plan = plan_for(snapshot, at=later(31))
    assert shown(plan) == ("Scheduling", "", JOB, 0)
    assert plan.status
    assert "the gpu-scheduler has not answered for 30 s" in plan.status.message
    reported = WorkloadSnapshot(after(snapshot, plan), snapshot.jobs, snapshot.pods)
    assert plan_for(reported, at=later(60)) == Plan()


def test_job_without_pod_costs_a_try_and_is_deleted() -> None:
    known = asked()
    podless = made(known, status={"startTime": NOW.isoformat()})
    snapshot = WorkloadSnapshot(known, (podless,), warning="exceeded quota: none")
    assert plan_for(snapshot, at=later(29)) == Plan(again_at=later(30))
    plan = plan_for(snapshot, at=later(31))
    assert shown(plan) == ("Pending", "", "", 1)
    assert plan.status
    assert plan.status.message == f"Job {JOB} created no pod for 30 s: exceeded quota: none"
    assert plan_for(WorkloadSnapshot(after(snapshot, plan), (podless,))).actions == (DeleteJob(podless),)


def test_runtime_limit_counts_from_the_pods_start() -> None:
    create = plan_for(WorkloadSnapshot(claimed(maxRuntimeSeconds=60))).actions[-1]
    assert isinstance(create, CreateJob)
    assert "activeDeadlineSeconds" not in create.manifest["spec"]
    assert create.manifest["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 60
    known = asked(maxRuntimeSeconds=60)
    failed = made(known, conditions={"Failed": "BackoffLimitExceeded"})
    plan = plan_for(WorkloadSnapshot(known, (failed,), ended=ended("a:0"), overran=True))
    assert shown(plan) == ("Failed", "a", JOB, 0)
    assert plan.status
    assert "ran longer than maxRuntimeSeconds (60) on a" in plan.status.message


def test_suspended_workload_loses_its_job_but_no_try() -> None:
    snapshot = refused(asked())
    waiting = after(snapshot, plan_for(snapshot))
    status = msgspec.to_builtins(waiting.status)
    held = claimed(suspend=True, meta={"generation": 2}, status=status)
    plan = plan_for(refused(held), at=later(1))
    assert [type(action) for action in plan.actions] == [DeleteJob]
    assert shown(plan) == ("Pending", "", "", 1)
    resumed = claimed(meta={"generation": 3}, status=msgspec.to_builtins(after(snapshot, plan).status))
    assert shown(plan_for(WorkloadSnapshot(resumed), at=later(2))) == ("Scheduling", "", f"{JOB}-r1", 1)
