"""A workload without a Job: reserve a place and plan the Job for it.

Called by `reconcile`; hands claimed workloads on to `claimed`.
"""

from datetime import datetime

from gpu_orchestrator.api import names, timestamps, translate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.jobs import template
from gpu_orchestrator.apps.operator.jobs.template import Template
from gpu_orchestrator.apps.operator.jobs.template_checks import InvalidTemplate
from gpu_orchestrator.apps.operator.planning import claimed, notes, retries, status
from gpu_orchestrator.apps.operator.planning.plan import CreateJob, Note, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import Ask, Given, WorkloadSnapshot
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request

PRIORITIES = {"low": 0, "normal": 1, "high": 2}


def place(snapshot: WorkloadSnapshot, now: datetime, ask: Ask, rng: Rng) -> Plan:
    workload = snapshot.workload
    if workload.spec.replicas > 1:
        return Plan(status=retries.blocked(workload, now, status.NO_GANGS, _no_gangs(workload)))
    if unknown := snapshot.unknown_strategy:
        new = retries.blocked(workload, now, status.UNKNOWN_STRATEGY, unknown)
        note = Note("Warning", names.FAILED_SCHEDULING, unknown)
        return Plan(status=new, notes=(note,) if new else ())
    try:
        wanted = template.read(workload, claimed=snapshot.is_claimed)
    except InvalidTemplate as error:
        return retries.fail(
            snapshot, now, "InvalidTemplate", retries.Failure(str(error), names.FAILED_SCHEDULING)
        )
    again_at = timestamps.parse_optional(workload.status.next_retry_time)
    if status.backs_off(workload.status) and again_at and now < again_at:
        return Plan(again_at=again_at)
    if snapshot.is_claimed:
        return claimed.entrust(workload, wanted, now)
    answer = ask(wishes(snapshot, wanted))
    if isinstance(answer, Refusal):
        return retries.refused(snapshot, now, rng, _refusal_text(answer))
    return _place(workload, wanted, answer, now)


def _no_gangs(workload: GPUWorkload) -> str:
    asked = workload.spec.replicas
    return (
        f"spec.replicas is {asked}: that starts whole or not at all, and such gangs are not supported yet; "
        f"create {asked} workloads with replicas 1 if each may start by itself"
    )


def wishes(snapshot: WorkloadSnapshot, wanted: Template) -> list[Request]:
    """Return what to ask for: first a node on which no earlier try failed or was rejected, then any node."""
    workload, spec = snapshot.workload, snapshot.workload.spec
    vendor = names.VENDOR_OF.get(wanted.resource, "")
    failed_on = {job.node for job in snapshot.jobs if job.failure and job.node} | snapshot.shunned
    return [
        Request(
            jobs.key_of(workload, workload.status.retry_count),
            translate.shape(
                wanted.pod, spec.gpu_count, vendor=vendor, avoid=avoid, tolerated=translate.GPU_TAINTS
            ),
            priority=PRIORITIES[spec.priority],
            tenant=workload.metadata.namespace,
            strategy=spec.scheduling_strategy,
        )
        for avoid in ([failed_on, set[str]()] if failed_on else [set[str]()])
    ]


def _place(workload: GPUWorkload, wanted: Template, given: Given, now: datetime) -> Plan:
    pod = template.fill(workload, wanted, node=given.node, resource=given.resource)
    limit_s = workload.spec.max_runtime_seconds
    manifest = jobs.manifest(workload, workload.status.retry_count, pod, limit_s)
    name = manifest["metadata"]["name"]
    return Plan(
        (CreateJob(manifest),),
        status.scheduled(workload, now, status.Place(given.node, name)),
        (notes.placed(workload, given.node), notes.created(name)),
    )


def _refusal_text(refusal: Refusal) -> str:
    if not refusal.never or not refusal.nodes:
        return refusal.message
    return f"{refusal.message}; waiting does not help: no node of this cluster could run it, even if empty"
