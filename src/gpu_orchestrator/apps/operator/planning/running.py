"""A workload with a Job: what its status becomes while the Job runs, and when it ends.

Called by `reconcile`.
"""

from datetime import datetime

from msgspec.structs import replace

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.job import DEADLINE_EXCEEDED, Job
from gpu_orchestrator.apps.operator.planning import notes, retries, status, stuck
from gpu_orchestrator.apps.operator.planning.plan import Note, Plan, new_limit
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.apps.operator.planning.status import Place
from gpu_orchestrator.core.policy import Rng


def succeed(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> Plan:
    text = f"Job {job.metadata.name} succeeded{_on(snapshot.node)}"
    new = status.succeeded(
        snapshot.workload,
        now,
        message=text,
        **status.ran_at(
            snapshot.workload, Place(snapshot.node, job.metadata.name, snapshot.devices, snapshot.nodes)
        ),
        start_time=snapshot.workload.status.start_time or job.status.start_time,
        completion_time=job.status.completion_time or timestamps.milliseconds(now),
    )
    return Plan(status=new, notes=(Note("Normal", names.JOB_SUCCEEDED, text),))


def job_failed(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """A failed Job costs a try, unless others ended its pod to make room or to empty the node."""
    failure = job.failure
    why = snapshot.trouble or (failure.message if failure else "")
    text = f"Job {job.metadata.name} failed{_on(snapshot.node)}: {why}"
    limit = snapshot.workload.spec.max_runtime_seconds
    if (failure and failure.reason == DEADLINE_EXCEEDED) or (snapshot.overran and limit is not None):
        text = f"Job {job.metadata.name} ran longer than maxRuntimeSeconds ({limit}){_on(snapshot.node)}"
        overran = retries.Failure(text, names.JOB_FAILED, DEADLINE_EXCEEDED, job=job)
        return retries.fail(snapshot, now, DEADLINE_EXCEEDED, overran)
    if snapshot.displaced:
        event = names.PREEMPTED if snapshot.preempted else names.JOB_FAILED
        return retries.give_place_up(snapshot, now, status.DISPLACED, text, event=event, job=job)
    # A Job with one node shows where it failed; of several, only this shows it to the next try.
    shun = (snapshot.node,) if snapshot.is_open and snapshot.node else ()
    failed = retries.Failure(text, names.JOB_FAILED, retries.JOB_FAILED, status.BACKING_OFF, job, shun=shun)
    return retries.spend(snapshot, now, rng, failed)


def _on(node: str) -> str:
    return f" on {node}" if node else ""


def follow(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """Report the state of a Job whose node is known."""
    workload = snapshot.workload
    place = Place(snapshot.node, job.metadata.name, snapshot.devices, snapshot.nodes)
    known = (
        workload.status.phase in ("Scheduled", "Running") and workload.status.job_name == job.metadata.name
    )
    if any(pod.status.phase == "Running" for pod in snapshot.pods):
        if known and workload.status.phase == "Running" and not _has_unreported_devices(snapshot):
            return _keep_up(snapshot, job, now) or Plan()
        new = status.running(workload, now, place)
        told = () if known else _placed_notes(snapshot, place)
        return Plan(new_limit(workload, job), new, told)
    if not known:  # the Job exists, but the operator stopped before it wrote the status
        new = status.scheduled(workload, now, place)
        return Plan(new_limit(workload, job), new, _placed_notes(snapshot, place))
    return _keep_up(snapshot, job, now) or _wait(snapshot, job, now, rng)


def choose(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """Report the state of a Job for which the kube-scheduler has not chosen a node yet."""
    old = snapshot.workload.status
    if old.phase == "Scheduling" and old.job_name == job.metadata.name:
        return _wait(snapshot, job, now, rng)
    new = status.left_open(snapshot.workload, now, job_name=job.metadata.name, nodes=len(job.nodes))
    return Plan(new_limit(snapshot.workload, job), new, (notes.created(job.metadata.name),))


def _wait(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    step = stuck.unschedulable if snapshot.pods else stuck.podless
    return step(snapshot, job, now, rng)


def _keep_up(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> Plan | None:
    """Apply a changed spec to a Job that has its place, as far as a Job can be changed; report the rest.
    Return None if nothing changed."""
    workload = snapshot.workload
    if workload.status.observed_generation == workload.metadata.generation:
        return None
    new = replace(workload.status, observed_generation=workload.metadata.generation)
    told = (notes.too_late(job),) if snapshot.is_edited(job) else ()
    return Plan(new_limit(workload, job), new, told)


def _has_unreported_devices(snapshot: WorkloadSnapshot) -> bool:
    """Return True if an earlier release wrote the status, which did not report devices."""
    return bool(snapshot.devices) and not snapshot.workload.status.devices


def _placed_notes(snapshot: WorkloadSnapshot, place: Place) -> tuple[Note, ...]:
    """Skip the note that the Job was created if the status already names it."""
    placed = notes.placed(snapshot.workload, place.where, is_open=snapshot.is_open)
    known = snapshot.workload.status.job_name == place.job_name
    return (placed,) if known else (placed, notes.created(place.job_name))
