"""A try failed: wait before the next one, give up, or block for a reason that costs no try.

Called by `place`, `claimed`, `running`, and by the controller when the API server rejects a Job.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpu_orchestrator.api import conditions, names, timestamps
from gpu_orchestrator.api.gpuworkload import SCHEDULED, GPUWorkload, GPUWorkloadStatus, RetryPolicy
from gpu_orchestrator.api.job import DEADLINE_EXCEEDED, Job
from gpu_orchestrator.apps.operator.planning import status
from gpu_orchestrator.apps.operator.planning.plan import DeleteJob, Note, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.core.policy import Rng

# Why a try failed: the values of the label `reason` of the metric.
NO_CAPACITY = "NoCapacity"
NODE_REFUSED = "NodeRefused"
NO_POD = "NoPod"
JOB_REFUSED = "JobRefused"
JOB_FAILED = "JobFailed"
INVALID_TEMPLATE = "InvalidTemplate"
CAUSES = (
    NO_CAPACITY,
    NODE_REFUSED,
    NO_POD,
    JOB_REFUSED,
    JOB_FAILED,
    DEADLINE_EXCEEDED,
    INVALID_TEMPLATE,
)

CAP_S = 300.0
JITTER = 0.1

STILL_S = 30.0
"""Up to this, a wait for something that is still missing is at least as long as all waits before."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a try failed: the message, the event's reason, the cause for the metrics, and what the next try
    waits for. `job` is the Job that ran, `waiting_job` the name of a Job that keeps waiting, `shun` the
    nodes that rejected its pod."""

    text: str
    event: str
    cause: str
    waits_for: str = ""
    job: Job | None = None
    waiting_job: str = ""
    shun: tuple[str, ...] = ()


def spend(snapshot: WorkloadSnapshot, now: datetime, rng: Rng, failure: Failure) -> Plan:
    """Count a failed try. Plan the next one, or give up."""
    workload = snapshot.workload
    policy, spent = workload.spec.retry_policy, workload.status.retry_count + 1
    again_at = next_try(policy, spent, now, rng)
    failed = Note("Warning", failure.event, failure.text)
    if again_at is None:
        text = f"{failure.text}; gave up after {spent} tries"
        last = replace(failure, text=text, event=names.MAX_RETRIES_EXCEEDED)
        plan = fail(snapshot, now, names.MAX_RETRIES_EXCEEDED, last, retry_count=spent)
        return replace(plan, notes=(failed, *plan.notes))
    wait_s = (again_at - now).total_seconds()
    new = status.pending(
        workload,
        now,
        failure.waits_for,
        failure.text,
        retry_count=spent,
        job_name=failure.waiting_job,
        next_retry_time=timestamps.milliseconds(again_at),
        last_schedule_time=timestamps.milliseconds(now),
    )
    soonest = "as soon as a node fits, at the latest " if failure.waits_for == status.UNSCHEDULABLE else ""
    text = f"try {spent + 1} of {policy.max_retries} {soonest}in {wait_s:.0f} s"
    again = Note("Normal", names.RETRYING, text)
    return Plan(status=new, notes=(failed, again), again_at=again_at, failed=failure.cause, shun=failure.shun)


def refused(
    snapshot: WorkloadSnapshot, now: datetime, rng: Rng, message: str, *, waiting_job: str = ""
) -> Plan:
    """No node fits. That costs a try the first time and whenever the wait is over, but not in between, and
    none at all if the workload waits for room."""
    if snapshot.waits_for_room:
        return _wait_for_room(snapshot, now, message, waiting_job)
    workload, old = snapshot.workload, snapshot.workload.status
    again_at = timestamps.parse_optional(old.next_retry_time)
    if not status.waits_for_room(old) or again_at is None or now >= again_at:
        failure = Failure(
            message, names.FAILED_SCHEDULING, NO_CAPACITY, status.UNSCHEDULABLE, waiting_job=waiting_job
        )
        return spend(snapshot, now, rng, failure)
    written = (old.message, old.job_name, old.observed_generation)
    if written == (status.shortened(message), waiting_job, workload.metadata.generation):
        return Plan(again_at=again_at)
    # The spec or the reason changed during the wait: update the message without counting a try.
    new = status.pending(
        workload,
        now,
        status.UNSCHEDULABLE,
        message,
        job_name=waiting_job,
        next_retry_time=old.next_retry_time,
    )
    return Plan(status=new, again_at=again_at)


def _wait_for_room(snapshot: WorkloadSnapshot, now: datetime, message: str, waiting_job: str) -> Plan:
    """Report why no node fits, once. A node that does wakes the workload."""
    workload, old = snapshot.workload, snapshot.workload.status
    is_new = not status.waits_for_room(old)
    written = (old.message, old.job_name, old.observed_generation, old.next_retry_time)
    if not is_new and written == (status.shortened(message), waiting_job, workload.metadata.generation, ""):
        return Plan()
    new = status.pending(workload, now, status.UNSCHEDULABLE, message, job_name=waiting_job)
    note = Note("Warning", names.FAILED_SCHEDULING, message)
    return Plan(status=new, notes=(note,) if is_new else ())


def pod_refused(snapshot: WorkloadSnapshot, now: datetime, wrong: str, *, job: Job | None = None) -> Plan:
    """The pod fits on no node as it is, for want of a volume or the like: look again later."""
    return give_place_up(snapshot, now, status.POD_REFUSED, cannot_start(wrong), job=job)


def give_place_up(
    snapshot: WorkloadSnapshot,
    now: datetime,
    reason: str,
    text: str,
    *,
    event: str = names.FAILED_SCHEDULING,
    job: Job | None = None,
) -> Plan:
    """Wait for the base of the backoff without a Job: that costs no try, and meanwhile nothing is held that
    others could use. Nothing limits how often, so waits for the same reason become longer."""
    workload = snapshot.workload
    is_known = workload.status.message == status.shortened(text)
    least_s = min(_waited_s(workload.status, now), STILL_S) if is_known else 0.0
    again_at = now + timedelta(seconds=max(workload.spec.retry_policy.backoff_seconds, least_s))
    new = status.pending(workload, now, reason, text, next_retry_time=timestamps.milliseconds(again_at))
    note = Note("Warning", event, text)
    actions = () if job is None else (DeleteJob(job),)
    shun = job.nodes if job and reason == status.NODE_REFUSED else ()
    return Plan(actions, new, () if is_known else (note,), again_at, shun=shun)


def _waited_s(old: GPUWorkloadStatus, now: datetime) -> float:
    """Return how long the workload has had no place."""
    known = conditions.find(old.conditions, SCHEDULED)
    since = timestamps.parse_optional(known.last_transition_time) if known else None
    return (now - since).total_seconds() if since else 0.0


def cannot_start(wrong: str) -> str:
    return f"its pod cannot start on any node: {wrong}"


def fail(
    snapshot: WorkloadSnapshot,
    now: datetime,
    reason: str,
    failure: Failure,
    *,
    retry_count: int | None = None,
) -> Plan:
    """Fail the workload, even if tries are left."""
    old, job, changed = snapshot.workload.status, failure.job, dict[str, Any]()
    if job is not None:
        place = status.Place(snapshot.node, job.metadata.name, snapshot.devices, snapshot.nodes)
        started = old.start_time or job.status.start_time
        changed = {**status.ran_at(snapshot.workload, place), "start_time": started}
    new = status.failed(
        snapshot.workload,
        now,
        reason,
        failure.text,
        placed=job is not None,
        retry_count=old.retry_count if retry_count is None else retry_count,
        **changed,
    )
    note = Note("Warning", failure.event, failure.text)
    return Plan(status=new, notes=(note,), failed=failure.cause)


def refused_by_server(
    snapshot: WorkloadSnapshot, now: datetime, rng: Rng, why: str, *, for_good: bool
) -> Plan:
    """The API server rejected the Job: its template is invalid for good, or a quota may admit it later."""
    if for_good:
        return invalid_template(snapshot, now, why)
    if snapshot.waits_for_room:
        return give_place_up(snapshot, now, status.POD_REFUSED, why)
    failure = Failure(why, names.FAILED_SCHEDULING, JOB_REFUSED, status.BACKING_OFF)
    return spend(snapshot, now, rng, failure)


def invalid_template(snapshot: WorkloadSnapshot, now: datetime, why: str) -> Plan:
    failure = Failure(why, names.FAILED_SCHEDULING, INVALID_TEMPLATE)
    return fail(snapshot, now, INVALID_TEMPLATE, failure)


def blocked(
    workload: GPUWorkload, now: datetime, reason: str, message: str, *, job_name: str = ""
) -> GPUWorkloadStatus | None:
    """Return the status of a workload that waits for something other than room; None if it is written
    already."""
    old = workload.status
    known = conditions.find(old.conditions, SCHEDULED)
    if (
        old.phase == "Pending"
        and known
        and known.reason == reason
        and old.observed_generation == workload.metadata.generation
    ):
        return None
    return status.pending(workload, now, reason, message, job_name=job_name)


def delay_s(base_s: float, retry: int, rng: Rng) -> float:
    """Return the wait after `retry` doublings. Jitter is applied before the cap, so it never exceeds the
    cap."""
    jitter = 1.0 + JITTER * (2.0 * rng.random() - 1.0)
    return min(base_s * 2.0**retry * jitter, CAP_S)


def next_try(policy: RetryPolicy, spent: int, now: datetime, rng: Rng) -> datetime | None:
    """Return when to try again after `spent` failed tries; None after the last."""
    if spent >= policy.max_retries:
        return None
    return now + timedelta(seconds=delay_s(policy.backoff_seconds, spent - 1, rng))
