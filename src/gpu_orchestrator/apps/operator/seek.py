"""No Job is there: seek a place, and plan the Job for it."""

from datetime import datetime

from gpu_orchestrator.api import names, translate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator import mirror, moments, status, template, tries
from gpu_orchestrator.apps.operator.conflicts import InvalidTemplate
from gpu_orchestrator.apps.operator.facts import Ask, Facts, Given
from gpu_orchestrator.apps.operator.plan import CreateJob, Plan
from gpu_orchestrator.apps.operator.template import Template
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.policies.registry import UnknownPolicy

PRIORITIES = {"low": 0, "normal": 1, "high": 2}


def seek(facts: Facts, now: datetime, ask: Ask, rng: Rng) -> Plan:
    workload = facts.workload
    if lacking := _needs_scheduler(workload):
        return Plan(status=tries.held(workload, now, status.NEEDS_SCHEDULER, lacking))
    try:
        wanted = template.read(workload)
    except InvalidTemplate as error:
        return tries.fail(facts, now, "InvalidTemplate", tries.Failure(str(error), names.FAILED_SCHEDULING))
    again_at = moments.read(workload.status.next_retry_time)
    if status.backs_off(workload.status) and again_at and now < again_at:
        return Plan(again_at=again_at)
    try:
        answer = ask(wishes(facts, wanted))
    except UnknownPolicy as error:
        return Plan(status=tries.held(workload, now, status.UNKNOWN_STRATEGY, str(error)))
    if isinstance(answer, Refusal):
        return _refused(facts, answer, now, rng)
    return _place(workload, wanted, answer, now)


def _needs_scheduler(workload: GPUWorkload) -> str:
    spec = workload.spec
    asked = "spec.claim" if spec.claim else f"spec.replicas {spec.replicas}" if spec.replicas > 1 else ""
    return f"{asked} needs the gpu-scheduler, which does not serve GPUWorkloads yet" if asked else ""


def wishes(facts: Facts, wanted: Template) -> list[Request]:
    """What is asked for: first a node on which no earlier try failed, then any."""
    workload, spec = facts.workload, facts.workload.spec
    vendor = names.VENDOR_OF.get(wanted.resource, "")
    failed_on = {job.node for job in facts.jobs if job.failure and job.node}
    return [
        Request(
            jobs.key_of(workload, workload.status.retry_count),
            translate.shape(wanted.pod, spec.gpu_count, vendor=vendor, avoid=avoid),
            priority=PRIORITIES[spec.priority],
            tenant=workload.metadata.namespace,
            strategy=spec.scheduling_strategy,
        )
        for avoid in ([failed_on, set[str]()] if failed_on else [set[str]()])
    ]


def _place(workload: GPUWorkload, wanted: Template, given: Given, now: datetime) -> Plan:
    pod = template.fill(workload, wanted, node=given.node, resource=given.resource)
    manifest = jobs.manifest(workload, workload.status.retry_count, pod)
    about = {"node": given.node, "job_name": manifest["metadata"]["name"]}
    return Plan(
        (CreateJob(manifest),),
        status.scheduled(workload, now, **about),
        mirror.placed_notes(workload, **about),
    )


def _refused(facts: Facts, refusal: Refusal, now: datetime, rng: Rng) -> Plan:
    """A refusal costs a try when it comes at arrival or when the wait is over; in between, nothing."""
    workload, old = facts.workload, facts.workload.status
    again_at = moments.read(old.next_retry_time)
    message = _refusal_text(workload, refusal)
    if not status.waits_for_room(old) or again_at is None or now >= again_at:
        return tries.spend(
            facts, now, rng, tries.Failure(message, names.FAILED_SCHEDULING, status.UNSCHEDULABLE)
        )
    if old.observed_generation == workload.metadata.generation:
        return Plan(again_at=again_at)
    # The wish itself changed while it waited: what is said about it must be true, but no try was made.
    new = status.pending(workload, now, status.UNSCHEDULABLE, message, next_retry_time=old.next_retry_time)
    return Plan(status=new, again_at=again_at)


def _refusal_text(workload: GPUWorkload, refusal: Refusal) -> str:
    if not refusal.never or not refusal.nodes:
        return refusal.message
    count = workload.spec.gpu_count
    return f"{refusal.message}; no node of this cluster can ever fit these {count} GPUs"
