"""A workload with a Job: what its status becomes while the Job runs, and when it ends.

Called by `reconcile`.
"""

from datetime import datetime, timedelta

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.job import DEADLINE_EXCEEDED, Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator.planning import notes, refusals, retries, status
from gpu_orchestrator.apps.operator.planning.plan import Note, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.apps.operator.planning.status import Place
from gpu_orchestrator.core.policy import Rng

PODLESS_S = 30.0
"""How long a Job may be without a pod before the status reports it."""

UNSCHEDULABLE_S = 10.0
"""How long a pod may be unschedulable on the chosen node before the operator tries another."""


def succeed(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> Plan:
    text = f"Job {job.metadata.name} succeeded{_on(snapshot.node)}"
    new = status.succeeded(
        snapshot.workload,
        now,
        message=text,
        **status.ran_at(snapshot.workload, Place(snapshot.node, job.metadata.name, snapshot.devices)),
        start_time=snapshot.workload.status.start_time or job.status.start_time,
        completion_time=job.status.completion_time or timestamps.milliseconds(now),
    )
    return Plan(status=new, notes=(Note("Normal", names.JOB_SUCCEEDED, text),))


def job_failed(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    failure = job.failure
    why = snapshot.trouble or (failure.message if failure else "")
    text = f"Job {job.metadata.name} failed{_on(snapshot.node)}: {why}"
    limit = snapshot.workload.spec.max_runtime_seconds
    if (failure and failure.reason == DEADLINE_EXCEEDED) or (snapshot.overran and limit is not None):
        text = f"Job {job.metadata.name} ran longer than maxRuntimeSeconds ({limit}){_on(snapshot.node)}"
        overran = retries.Failure(text, names.JOB_FAILED, job=job)
        return retries.fail(snapshot, now, DEADLINE_EXCEEDED, overran)
    event = names.PREEMPTED if snapshot.preempted else names.JOB_FAILED
    return retries.spend(snapshot, now, rng, retries.Failure(text, event, status.BACKING_OFF, job))


def _on(node: str) -> str:
    return f" on {node}" if node else ""


def follow(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """Report the state of a Job whose node is known."""
    workload = snapshot.workload
    place = Place(snapshot.node, job.metadata.name, snapshot.devices)
    known = (
        workload.status.phase in ("Scheduled", "Running") and workload.status.job_name == job.metadata.name
    )
    if any(pod.status.phase == "Running" for pod in snapshot.pods):
        if known and workload.status.phase == "Running" and not _has_unreported_devices(snapshot):
            return Plan()
        new = status.running(workload, now, place)
        return Plan(status=new, notes=() if known else _placed_notes(snapshot, place))
    if not known:  # the Job exists, but the operator stopped before it wrote the status
        return Plan(status=status.scheduled(workload, now, place), notes=_placed_notes(snapshot, place))
    return _unschedulable(snapshot, job, now, rng) if snapshot.pods else _podless(snapshot, job, now)


def _has_unreported_devices(snapshot: WorkloadSnapshot) -> bool:
    """Return True if an earlier release wrote the status, which did not report devices."""
    return bool(snapshot.devices) and not snapshot.workload.status.devices


def _podless(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> Plan:
    """The Job cannot create its pod because of a quota, a policy or a missing PriorityClass. Only the Job's
    own events show which."""
    old, created = snapshot.workload.status, timestamps.parse_optional(job.metadata.creation_timestamp)
    if old.phase != "Scheduled" or created is None or job.status.active:
        return Plan()
    message = f"placed on {snapshot.node}, but {notes.no_pod(job)}"
    return notes.overdue(snapshot, now, created + timedelta(seconds=PODLESS_S), message)


def _unschedulable(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """The kube-scheduler must accept the chosen node. If it refuses for `UNSCHEDULABLE_S`, that costs a try:
    the Job becomes stale and is deleted, and the next try chooses a node again. If the pod itself is the
    reason, no other node would help."""
    found = [(since, why) for pod in snapshot.pods if (since := _refused_since(pod)) for why in _reasons(pod)]
    if not found:
        return Plan()
    since, why = min(found)
    limit = since + timedelta(seconds=UNSCHEDULABLE_S)
    if now < limit:
        return Plan(again_at=limit)
    if wrong := refusals.by_kube_scheduler(why):
        return retries.pod_refused(snapshot, job, now, wrong)
    text = f"{job.node} did not take the pod for {UNSCHEDULABLE_S:.0f} s: {why}"
    failure = retries.Failure(text, names.FAILED_SCHEDULING, status.UNSCHEDULABLE)
    return retries.spend(snapshot, now, rng, failure)


def _refused_since(pod: Pod) -> datetime | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return timestamps.parse_optional(each.last_transition_time)
    return None


def _reasons(pod: Pod) -> list[str]:
    return [each.message for each in pod.status.conditions if each.type == "PodScheduled"]


def _placed_notes(snapshot: WorkloadSnapshot, place: Place) -> tuple[Note, ...]:
    """Skip the note that the Job was created if the status already names it."""
    placed = notes.placed(snapshot.workload, place.where)
    known = snapshot.workload.status.job_name == place.job_name
    return (placed,) if known else (placed, notes.created(place.job_name))
