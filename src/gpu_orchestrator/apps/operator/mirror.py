"""A Job is there: what its state means for the workload."""

from datetime import datetime, timedelta

from msgspec.structs import replace

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator import moments, status, tries
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.apps.operator.plan import Note, Plan
from gpu_orchestrator.core.policy import Rng

PODLESS_S = 30.0
"""How long a Job may be without a pod before people are told."""

UNSCHEDULABLE_S = 10.0
"""How long a pod may be unschedulable on the node that was chosen before another is sought."""


def succeed(facts: Facts, job: Job, now: datetime) -> Plan:
    text = f"Job {job.metadata.name} succeeded on {job.node}"
    new = status.succeeded(
        facts.workload,
        now,
        message=text,
        assigned_node=job.node,
        job_name=job.metadata.name,
        start_time=facts.workload.status.start_time or job.status.start_time,
        completion_time=job.status.completion_time or moments.text(now),
    )
    return Plan(status=new, notes=(Note("Normal", names.JOB_SUCCEEDED, text),))


def job_failed(facts: Facts, job: Job, now: datetime, rng: Rng) -> Plan:
    failure = job.failure
    why = facts.trouble or (failure.message if failure else "")
    text = f"Job {job.metadata.name} failed on {job.node}: {why}"
    if failure and failure.reason == "DeadlineExceeded":
        limit = facts.workload.spec.max_runtime_seconds
        text = f"Job {job.metadata.name} ran longer than maxRuntimeSeconds ({limit}) on {job.node}"
        return tries.fail(facts, now, "DeadlineExceeded", tries.Failure(text, names.JOB_FAILED, job=job))
    event = names.PREEMPTED if facts.preempted else names.JOB_FAILED
    return tries.spend(facts, now, rng, tries.Failure(text, event, status.BACKING_OFF, job))


def mirror(facts: Facts, job: Job, now: datetime, rng: Rng) -> Plan:
    """A Job is under way: say how it fares."""
    workload = facts.workload
    about = {"node": job.node, "job_name": job.metadata.name}
    known = (
        workload.status.phase in ("Scheduled", "Running") and workload.status.job_name == job.metadata.name
    )
    if any(pod.status.phase == "Running" for pod in facts.pods):
        if known and workload.status.phase == "Running":
            return Plan()
        notes = () if known else placed_notes(workload, **about)
        return Plan(status=status.running(workload, now, **about), notes=notes)
    if not known:  # the Job is there, and we were stopped before the status could say so
        return Plan(status=status.scheduled(workload, now, **about), notes=placed_notes(workload, **about))
    return _unschedulable(facts, job, now, rng) if facts.pods else _podless(facts, job, now)


def _podless(facts: Facts, job: Job, now: datetime) -> Plan:
    """Something keeps the Job from making its pod (a quota, a policy, a missing PriorityClass), and only the
    Job's own events say what."""
    old, created = facts.workload.status, moments.read(job.metadata.creation_timestamp)
    if old.phase != "Scheduled" or created is None or job.status.active:
        return Plan()
    limit = created + timedelta(seconds=PODLESS_S)
    if now < limit:
        return Plan(again_at=limit)
    name = job.metadata.name
    message = f"placed on {job.node}, but its Job makes no pod; see: kubectl describe job {name}"
    if old.message == message:
        return Plan()
    return Plan(
        status=replace(old, message=message), notes=(Note("Warning", names.FAILED_SCHEDULING, message),)
    )


def _unschedulable(facts: Facts, job: Job, now: datetime, rng: Rng) -> Plan:
    """The kube-scheduler has the last word on the node. Its no, kept up for a while, costs a try: the Job
    becomes stale and goes, and a node is sought anew."""
    found = [(since, said) for pod in facts.pods if (since := _refused_since(pod)) for said in _said(pod)]
    if not found:
        return Plan()
    since, said = min(found)
    limit = since + timedelta(seconds=UNSCHEDULABLE_S)
    if now < limit:
        return Plan(again_at=limit)
    text = f"{job.node} did not take the pod for {UNSCHEDULABLE_S:.0f} s: {said}"
    return tries.spend(facts, now, rng, tries.Failure(text, names.FAILED_SCHEDULING, status.UNSCHEDULABLE))


def _refused_since(pod: Pod) -> datetime | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return moments.read(each.last_transition_time)
    return None


def _said(pod: Pod) -> list[str]:
    return [each.message for each in pod.status.conditions if each.type == "PodScheduled"]


def placed_notes(workload: GPUWorkload, *, node: str, job_name: str) -> tuple[Note, ...]:
    count, strategy = workload.spec.gpu_count, workload.spec.scheduling_strategy
    return (
        Note(
            "Normal",
            names.SCHEDULED,
            f"{count} GPU{'s' if count > 1 else ''} of {node}, chosen by {strategy}",
        ),
        Note("Normal", names.JOB_CREATED, f"created Job {job_name}"),
    )
