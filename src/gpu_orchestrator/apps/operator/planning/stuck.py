"""A Job whose pod does not start: someone suspended it, it creates no pod, or no node takes the pod.

Called by `reconcile`, `running` and `claimed`. A Job that cannot start must not hold GPUs that others could
use, so after a while it costs a try and is deleted.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator.planning import notes, refusals, retries, status
from gpu_orchestrator.apps.operator.planning.plan import Note, Plan, new_limit
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.core.policy import Rng

PODLESS_S = 30.0
"""How long a Job may be without a pod."""

UNSEEN_S = 300.0
"""The same for a Job that Kubernetes has not looked at: its controller may be down, or another one may have
to serve it (`managedBy`)."""

UNSCHEDULABLE_S = 10.0
"""How long a pod may be unschedulable on the chosen nodes before the operator chooses again."""

NOMINATED_S = 300.0
"""The same for a pod for which the kube-scheduler is evicting others: they may need time to end."""


def suspended(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> Plan:
    """Another controller, such as Kueue, has suspended the Job and decides when it runs. That costs no try,
    and meanwhile the Job holds nothing."""
    name = job.metadata.name
    text = f"its Job {name} is suspended, not by this operator; it starts when somebody resumes it"
    new = retries.blocked(snapshot.workload, now, status.JOB_SUSPENDED, text, job_name=name)
    if new is None:
        return Plan()
    limit = new_limit(snapshot.workload, job)
    return Plan(limit, new, (Note("Normal", names.JOB_SUSPENDED, text),))


def podless(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """The Job cannot create its pod because of a quota, a policy or a missing PriorityClass. Only the Job's
    own events show which. Kubernetes gets more time to look at the Job at all."""
    if job.has_made_pods:
        return Plan()
    if not is_overdue(snapshot, job, now):
        return _report(snapshot, job, now)
    why = snapshot.warning or f"see: kubectl describe job {job.metadata.name}"
    text = f"Job {job.metadata.name} created no pod for {_patience_s(job):.0f} s: {why}"
    if snapshot.waits_for_room:
        return retries.give_place_up(snapshot, now, status.POD_REFUSED, text, job=job)
    failure = retries.Failure(text, names.FAILED_SCHEDULING, retries.NO_POD, status.BACKING_OFF)
    return retries.spend(snapshot, now, rng, failure)


def _report(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> Plan:
    """Report a Job that has no pod yet, and come back when its time is over."""
    soon = _after(job, PODLESS_S)
    if soon is None:
        return Plan()
    plan = notes.overdue(snapshot, now, soon, notes.no_pod(job))
    return replace(plan, again_at=plan.again_at or _after(job, _patience_s(job)))


def is_overdue(snapshot: WorkloadSnapshot, job: Job, now: datetime) -> bool:
    """Return True if a Job has had its time to create a pod and has none."""
    has_pods = bool(snapshot.pods) or job.has_made_pods
    limit = _after(job, _patience_s(job))
    if limit is None or has_pods or job.is_finished or job.is_deleting or job.spec.suspend:
        return False
    return now >= limit


def _patience_s(job: Job) -> float:
    return PODLESS_S if job.status.start_time else UNSEEN_S


def _after(job: Job, seconds: float) -> datetime | None:
    """Return the time so long after the Job's start or, before that, its creation."""
    since = timestamps.parse_optional(job.status.start_time or job.metadata.creation_timestamp)
    return since + timedelta(seconds=seconds) if since else None


def unschedulable(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """The kube-scheduler must accept a chosen node. If it refuses for too long, that costs a try: the Job
    becomes stale and is deleted, and the next try chooses again. If the pod itself is the reason, no other
    node would help."""
    found = [(since, why) for pod in snapshot.pods if (since := _refused_since(pod)) for why in _reasons(pod)]
    if not found:
        return Plan()
    since, why = min(found)
    patience_s = NOMINATED_S if _is_nominated(snapshot) else UNSCHEDULABLE_S
    limit = since + timedelta(seconds=patience_s)
    if now < limit:
        return Plan(again_at=limit)
    if wrong := refusals.by_kube_scheduler(why):
        return retries.pod_refused(snapshot, now, wrong, job=job)
    who = job.node or f"none of {len(job.nodes)} nodes"
    negation = "did not take" if job.node else "took"
    text = f"{who} {negation} the pod for {patience_s:.0f} s: {why}"
    if snapshot.waits_for_room:
        return retries.give_place_up(snapshot, now, status.NODE_REFUSED, text, job=job)
    failure = retries.Failure(
        text, names.FAILED_SCHEDULING, retries.NODE_REFUSED, status.UNSCHEDULABLE, shun=job.nodes
    )
    return retries.spend(snapshot, now, rng, failure)


def _is_nominated(snapshot: WorkloadSnapshot) -> bool:
    """Return True if the kube-scheduler is evicting other pods for one of these."""
    return any(pod.status.nominated_node_name for pod in snapshot.pods)


def _refused_since(pod: Pod) -> datetime | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return timestamps.parse_optional(each.last_transition_time)
    return None


def _reasons(pod: Pod) -> list[str]:
    return [each.message for each in pod.status.conditions if each.type == "PodScheduled"]
