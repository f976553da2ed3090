"""How a try ends that did not succeed: with a wait before the next, for good, or held for another reason."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_orchestrator.api import conditions, names, timestamps
from gpu_orchestrator.api.gpuworkload import SCHEDULED, GPUWorkload, GPUWorkloadStatus
from gpu_orchestrator.apps.operator import retry, status
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.apps.operator.plan import Note, Plan
from gpu_orchestrator.core.policy import Rng


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a try failed, in words; the event that tells it; what the next one waits for; the Job that ran, or
    the name of the one that goes on waiting."""

    text: str
    event: str
    waits_for: str = ""
    job: Job | None = None
    waiting_job: str = ""


def spend(facts: Facts, now: datetime, rng: Rng, failure: Failure) -> Plan:
    """One try is over. Plan the next, or give up."""
    workload = facts.workload
    policy, spent = workload.spec.retry_policy, workload.status.retry_count + 1
    again_at = retry.next_try(policy, spent, now, rng)
    told = Note("Warning", failure.event, failure.text)
    if again_at is None:
        text = f"{failure.text}; gave up after {spent} tries"
        last = replace(failure, text=text, event=names.MAX_RETRIES_EXCEEDED)
        plan = fail(facts, now, names.MAX_RETRIES_EXCEEDED, last, retry_count=spent)
        return replace(plan, notes=(told, *plan.notes))
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
    again = Note("Normal", names.RETRYING, f"try {spent + 1} of {policy.max_retries} in {wait_s:.0f} s")
    return Plan(status=new, notes=(told, again), again_at=again_at)


def refused(facts: Facts, now: datetime, rng: Rng, message: str, *, waiting_job: str = "") -> Plan:
    """No room. That costs a try when it is told at arrival or when the wait is over; in between, nothing."""
    workload, old = facts.workload, facts.workload.status
    again_at = timestamps.parse_optional(old.next_retry_time)
    if not status.waits_for_room(old) or again_at is None or now >= again_at:
        failure = Failure(message, names.FAILED_SCHEDULING, status.UNSCHEDULABLE, waiting_job=waiting_job)
        return spend(facts, now, rng, failure)
    told = (old.message, old.job_name, old.observed_generation)
    if told == (status.shortened(message), waiting_job, workload.metadata.generation):
        return Plan(again_at=again_at)
    # The wish itself changed while it waited, or what is in its way: what is said must be true, but no try
    # was made.
    new = status.pending(
        workload,
        now,
        status.UNSCHEDULABLE,
        message,
        job_name=waiting_job,
        next_retry_time=old.next_retry_time,
    )
    return Plan(status=new, again_at=again_at)


def fail(
    facts: Facts, now: datetime, reason: str, failure: Failure, *, retry_count: int | None = None
) -> Plan:
    """It is over, whatever tries were left."""
    old, job, changed = facts.workload.status, failure.job, dict[str, Any]()
    if job is not None:
        started = old.start_time or job.status.start_time
        changed = {"assigned_node": facts.node, "job_name": job.metadata.name, "start_time": started}
    new = status.failed(
        facts.workload,
        now,
        reason,
        failure.text,
        placed=job is not None,
        retry_count=old.retry_count if retry_count is None else retry_count,
        **changed,
    )
    return Plan(status=new, notes=(Note("Warning", failure.event, failure.text),))


def refused_by_server(facts: Facts, now: datetime, rng: Rng, why: str, *, for_good: bool) -> Plan:
    """The API server did not accept the Job: its template is wrong for good, or something like a quota may
    let it in later."""
    if for_good:
        return fail(facts, now, "InvalidTemplate", Failure(why, names.FAILED_SCHEDULING))
    return spend(facts, now, rng, Failure(why, names.FAILED_SCHEDULING, status.BACKING_OFF))


def held(workload: GPUWorkload, now: datetime, reason: str, message: str) -> GPUWorkloadStatus | None:
    """Pending for something other than room: written once, not at every look."""
    old = workload.status
    said = conditions.find(old.conditions, SCHEDULED)
    if (
        old.phase == "Pending"
        and said
        and said.reason == reason
        and old.observed_generation == workload.metadata.generation
    ):
        return None
    return status.pending(workload, now, reason, message)
