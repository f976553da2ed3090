"""A Job is there: what its state means for the workload."""

from datetime import datetime, timedelta

from msgspec.structs import replace

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator import status, tries
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.job import OVERRAN, Job
from gpu_orchestrator.apps.operator.plan import Note, Plan
from gpu_orchestrator.core.policy import Rng

PODLESS_S = 30.0
"""How long a Job may be without a pod before people are told."""

UNSCHEDULABLE_S = 10.0
"""How long a pod may be unschedulable on the node that was chosen before another is sought."""


def succeed(facts: Facts, job: Job, now: datetime) -> Plan:
    text = f"Job {job.metadata.name} succeeded{_on(facts.node)}"
    new = status.succeeded(
        facts.workload,
        now,
        message=text,
        assigned_node=facts.node,
        job_name=job.metadata.name,
        start_time=facts.workload.status.start_time or job.status.start_time,
        completion_time=job.status.completion_time or timestamps.milliseconds(now),
    )
    return Plan(status=new, notes=(Note("Normal", names.JOB_SUCCEEDED, text),))


def job_failed(facts: Facts, job: Job, now: datetime, rng: Rng) -> Plan:
    failure = job.failure
    why = facts.trouble or (failure.message if failure else "")
    text = f"Job {job.metadata.name} failed{_on(facts.node)}: {why}"
    limit = facts.workload.spec.max_runtime_seconds
    if (failure and failure.reason == OVERRAN) or (facts.overran and limit is not None):
        text = f"Job {job.metadata.name} ran longer than maxRuntimeSeconds ({limit}){_on(facts.node)}"
        return tries.fail(facts, now, "DeadlineExceeded", tries.Failure(text, names.JOB_FAILED, job=job))
    event = names.PREEMPTED if facts.preempted else names.JOB_FAILED
    return tries.spend(facts, now, rng, tries.Failure(text, event, status.BACKING_OFF, job))


def _on(node: str) -> str:
    return f" on {node}" if node else ""


def mirror(facts: Facts, job: Job, now: datetime, rng: Rng) -> Plan:
    """A Job is under way and its node is known: say how it fares."""
    workload = facts.workload
    about = {"node": facts.node, "job_name": job.metadata.name, "where": facts.where}
    known = (
        workload.status.phase in ("Scheduled", "Running") and workload.status.job_name == job.metadata.name
    )
    if any(pod.status.phase == "Running" for pod in facts.pods):
        if known and workload.status.phase == "Running":
            return Plan()
        notes = () if known else _placed_notes(facts, job)
        return Plan(status=status.running(workload, now, **about), notes=notes)
    if not known:  # the Job is there, and we were stopped before the status could say so
        return Plan(status=status.scheduled(workload, now, **about), notes=_placed_notes(facts, job))
    return _unschedulable(facts, job, now, rng) if facts.pods else _podless(facts, job, now)


def _podless(facts: Facts, job: Job, now: datetime) -> Plan:
    """Something keeps the Job from making its pod (a quota, a policy, a missing PriorityClass), and only the
    Job's own events say what."""
    old, created = facts.workload.status, timestamps.parse_optional(job.metadata.creation_timestamp)
    if old.phase != "Scheduled" or created is None or job.status.active:
        return Plan()
    message = f"placed on {facts.node}, but {no_pod(job)}"
    return complain(facts, now, created + timedelta(seconds=PODLESS_S), message)


def no_pod(job: Job) -> str:
    return f"its Job makes no pod; see: kubectl describe job {job.metadata.name}"


def complain(facts: Facts, now: datetime, at: datetime, message: str) -> Plan:
    """What should have come by then has not: say so, once."""
    old = facts.workload.status
    if now < at:
        return Plan(again_at=at)
    if old.message == message:
        return Plan()
    note = Note("Warning", names.FAILED_SCHEDULING, message)
    return Plan(status=replace(old, message=message), notes=(note,))


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
            return timestamps.parse_optional(each.last_transition_time)
    return None


def _said(pod: Pod) -> list[str]:
    return [each.message for each in pod.status.conditions if each.type == "PodScheduled"]


def _placed_notes(facts: Facts, job: Job) -> tuple[Note, ...]:
    """That a Job was created has been told if the status speaks of it."""
    placed = placed_note(facts.workload, facts.where)
    known = facts.workload.status.job_name == job.metadata.name
    return (placed,) if known else (placed, created_note(job.metadata.name))


def placed_note(workload: GPUWorkload, where: str) -> Note:
    count, strategy = workload.spec.gpu_count, workload.spec.scheduling_strategy
    text = f"{count} GPU{'s' if count > 1 else ''} of {where}, chosen by {strategy}"
    return Note("Normal", names.SCHEDULED, text)


def created_note(job_name: str) -> Note:
    return Note("Normal", names.JOB_CREATED, f"created Job {job_name}")
