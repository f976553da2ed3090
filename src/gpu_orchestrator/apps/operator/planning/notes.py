"""Events and messages that several steps report: placed, Job created, no pod, overdue.

Called by `place`, `claimed` and `running`; `apply` records the notes once the status is written.
"""

from datetime import datetime

from msgspec.structs import replace

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.apps.operator.planning import status
from gpu_orchestrator.apps.operator.planning.plan import Note, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot


def placed(workload: GPUWorkload, where: str, *, is_open: bool = False) -> Note:
    """`is_open`: the kube-scheduler chose among several nodes."""
    count, chooser = workload.spec.gpu_count, workload.spec.scheduling_strategy
    if is_open:
        chooser = "the kube-scheduler"
    times = f"{workload.spec.replicas} times " if workload.spec.replicas > 1 else ""
    text = f"{times}{count} GPU{'s' if count > 1 else ''} of {where}, chosen by {chooser}"
    return Note("Normal", names.SCHEDULED, text)


def too_late(job: Job) -> Note:
    text = (
        f"the spec changed after Job {job.metadata.name} was created; what the Job was made from, such as "
        "priority and schedulingStrategy, counts from the next try"
    )
    return Note("Warning", names.SPEC_CHANGED, text)


def created(job_name: str) -> Note:
    return Note("Normal", names.JOB_CREATED, f"created Job {job_name}")


def no_pod(job: Job) -> str:
    return f"its Job has created no pod; see: kubectl describe job {job.metadata.name}"


def overdue(snapshot: WorkloadSnapshot, now: datetime, deadline: datetime, message: str) -> Plan:
    """Report once, in status and event, that something has not happened by the deadline."""
    old, text = snapshot.workload.status, status.shortened(message)
    if now < deadline:
        return Plan(again_at=deadline)
    if old.message == text:
        return Plan()
    note = Note("Warning", names.FAILED_SCHEDULING, message)
    return Plan(status=replace(old, message=text), notes=(note,))
