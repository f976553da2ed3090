"""Decide what to do about one workload now: read its snapshot, maybe reserve a place, return a `Plan`.

Called by the controller. No IO and no clock. Its one effect is `ask`, which reserves capacity; the controller
withdraws that again unless the plan was carried out.

Level-based: the same snapshot gives the same plan, whatever event caused the pass and whatever was done
before a restart. The status contains the number of the current try; the name of its Job is computed from
that; any other Job of the workload that still runs is stale. A try is counted before its Job is deleted, and
a Job exists before the status names it, so a crash between two writes is followed by the same writes.
The finalizer is added when there is nothing else to do: until then owner references let Kubernetes clean up,
and no workload waits for that write.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from gpu_orchestrator.api import names, template_checks
from gpu_orchestrator.api.gpuworkload import FINAL, SETTLED
from gpu_orchestrator.apps.operator.planning import claimed, place, retries, running, status, stuck
from gpu_orchestrator.apps.operator.planning.plan import (
    Action,
    AddFinalizer,
    ChangeJob,
    DeleteJob,
    Plan,
    RemoveFinalizer,
)
from gpu_orchestrator.apps.operator.planning.snapshot import Ask, WorkloadSnapshot
from gpu_orchestrator.core.policy import Rng

LEAVING_S = 1.0
"""How soon to check again a pod whose Job is gone, in case the watch misses its end."""


def reconcile(snapshot: WorkloadSnapshot, now: datetime, ask: Ask, rng: Rng) -> Plan:
    workload = snapshot.workload
    if workload.metadata.deletion_timestamp:
        return _delete(snapshot)
    is_over = workload.status.phase in FINAL
    plan = _settle(snapshot) if is_over else _advance(snapshot, now, ask, rng)
    if not plan.is_empty or names.WORKLOAD_FINALIZER in workload.metadata.finalizers:
        return plan
    return replace(plan, actions=(AddFinalizer(),))


def _delete(snapshot: WorkloadSnapshot) -> Plan:
    """Delete the Jobs with their pods first; remove the finalizer when they are gone."""
    if snapshot.jobs:
        return Plan(tuple(DeleteJob(job, as_seen=False) for job in snapshot.jobs if not job.is_deleting))
    held = names.WORKLOAD_FINALIZER in snapshot.workload.metadata.finalizers
    return Plan((RemoveFinalizer(),) if held else ())


def _settle(snapshot: WorkloadSnapshot) -> Plan:
    """The final phase is written. Only now may Kubernetes remove finished Jobs: one that vanished earlier
    would be run again."""
    ttl = snapshot.workload.spec.ttl_seconds_after_finished
    actions: list[Action] = [
        DeleteJob(job) for job in snapshot.jobs if not job.is_finished and not job.is_deleting
    ]
    if ttl is not None:
        actions += [
            ChangeJob(job, {"ttlSecondsAfterFinished": ttl})
            for job in snapshot.jobs
            if job.is_finished and not job.is_deleting and job.spec.ttl_seconds_after_finished != ttl
        ]
    return Plan(tuple(actions))


def _advance(snapshot: WorkloadSnapshot, now: datetime, ask: Ask, rng: Rng) -> Plan:
    if snapshot.workload.status.phase not in SETTLED:  # later the template cannot change any more
        try:
            template_checks.check_depth(snapshot.workload)
        except template_checks.InvalidTemplate as error:
            return retries.invalid_template(snapshot, now, str(error))
    job = snapshot.current
    if job and job.is_complete:
        return running.succeed(snapshot, job, now)
    # A Job that is being deleted tells nothing more: what the operator deletes, it has counted or need not.
    if job and job.failure and not job.is_deleting:
        return running.job_failed(snapshot, job, now, rng)
    if snapshot.workload.spec.suspend:
        return _suspend(snapshot, now)
    if stale := snapshot.stale:  # two tries must never run at once: the next one starts when this is gone
        return Plan(tuple(DeleteJob(each) for each in stale if not each.is_deleting))
    if job is None and snapshot.pods:  # someone deleted the Job, and its pod still exists
        return Plan(again_at=now + timedelta(seconds=LEAVING_S))
    if job is None:
        return place.place(snapshot, now, ask, rng)
    if job.is_deleting:
        return Plan()
    if job.spec.suspend:
        return stuck.suspended(snapshot, job, now)
    if snapshot.node:
        return running.follow(snapshot, job, now, rng)
    choose = claimed.wait if job.is_claimed else running.choose
    return choose(snapshot, job, now, rng)


def _suspend(snapshot: WorkloadSnapshot, now: datetime) -> Plan:
    """Delete the Jobs of a suspended workload. That costs no try."""
    active = [job for job in snapshot.jobs if not job.is_finished and not job.is_deleting]
    message = "suspended; set spec.suspend to false to let it run"
    return Plan(
        tuple(DeleteJob(job) for job in active),
        retries.blocked(snapshot.workload, now, status.SUSPENDED, message),
    )
