"""A workload without a Job: reserve a place and plan the Job for it.

Called by `reconcile`; hands claimed workloads on to `claimed`.
"""

from dataclasses import replace
from datetime import datetime

from gpu_orchestrator.api import names, translate
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.template_checks import InvalidTemplate
from gpu_orchestrator.api.template_reading import Template
from gpu_orchestrator.apps.operator.jobs import inherited, template
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.planning import claimed, notes, retries, status
from gpu_orchestrator.apps.operator.planning.plan import CreateJob, Note, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import Ask, Given, WorkloadSnapshot
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request, Shape

MOST_TERMS = 100
"""The most node affinity terms of a Job whose node the kube-scheduler chooses."""

DO_NOT_SCHEDULE = "DoNotSchedule"
PRIORITIES = {"low": 0, "normal": 1, "high": 2}


def place(snapshot: WorkloadSnapshot, now: datetime, ask: Ask, rng: Rng) -> Plan:
    workload = snapshot.workload
    if unknown := snapshot.unknown_strategy:
        new = retries.blocked(workload, now, status.UNKNOWN_STRATEGY, unknown)
        note = Note("Warning", names.FAILED_SCHEDULING, unknown)
        return Plan(status=new, notes=(note,) if new else ())
    try:
        wanted = template.read(workload, claimed=snapshot.is_claimed)
    except InvalidTemplate as error:
        return retries.invalid_template(snapshot, now, str(error))
    if again_at := status.backs_off_until(workload.status, now):
        return Plan(again_at=again_at)
    if snapshot.is_claimed:
        return claimed.entrust(snapshot, wanted, now)
    if snapshot.volumes.not_ready:
        return retries.pod_refused(snapshot, now, snapshot.volumes.not_ready)
    most = _most(wanted) if _is_open(snapshot, wanted) else 1
    answer = ask(wishes(snapshot, wanted), most)
    if isinstance(answer, Refusal):
        return retries.refused(snapshot, now, rng, _refusal_text(answer))
    return _place(workload, wanted, answer, now)


def _is_open(snapshot: WorkloadSnapshot, wanted: Template) -> bool:
    """Return True if the kube-scheduler should choose among the nodes that fit: the pod asks for something
    that only it can judge, or it has rejected a node before, or the Job may be queued until the choice made
    now is out of date."""
    pod, affinity = wanted.pod, wanted.pod.affinity
    by_other_pods = affinity.pod_affinity.required or affinity.pod_anti_affinity.required
    spread = any(each.when_unsatisfiable == DO_NOT_SCHEDULE for each in pod.topology_spread_constraints)
    made_for_it = pod.resource_claims or any(each.ephemeral for each in pod.volumes)
    is_queued = any(name.startswith(inherited.QUEUES) for name in snapshot.workload.metadata.labels)
    was_rejected = bool(snapshot.shunned)
    return (
        bool(by_other_pods or spread or made_for_it or is_queued or was_rejected) or snapshot.volumes.is_open
    )


def _most(wanted: Template) -> int:
    """Return how many nodes to name at most. Each is named in every term of the user's affinity."""
    required = wanted.pod.affinity.node_affinity.required
    terms = len(required.node_selector_terms) if required else 1
    return max(MOST_TERMS // max(terms, 1), 1)


def wishes(snapshot: WorkloadSnapshot, wanted: Template) -> list[Request]:
    """Return what to ask for: first a node on which no earlier try failed or was rejected, then any node."""
    workload, spec = snapshot.workload, snapshot.workload.spec
    vendor = names.VENDOR_OF.get(wanted.resource, "")
    failed_on = {job.node for job in snapshot.jobs if job.failure and job.node} | snapshot.shunned
    return [
        Request(
            jobs.key_of(workload, workload.status.retry_count),
            _shape(snapshot, wanted, vendor, avoid),
            priority=PRIORITIES[spec.priority],
            tenant=workload.metadata.namespace,
            strategy=spec.scheduling_strategy,
        )
        for avoid in ([failed_on, set[str]()] if failed_on else [set[str]()])
    ]


def _shape(snapshot: WorkloadSnapshot, wanted: Template, vendor: str, avoid: set[str]) -> Shape:
    shape = translate.shape(
        wanted.pod,
        snapshot.workload.spec.gpu_count,
        vendor=vendor,
        avoid=avoid,
        tolerated=translate.GPU_TAINTS,
    )
    reach = snapshot.volumes.reach
    return replace(shape, reach=reach) if reach else shape


def _place(workload: GPUWorkload, wanted: Template, given: Given, now: datetime) -> Plan:
    nodes = (given.node, *given.others)
    pod = template.fill(workload, wanted, nodes=nodes, resource=given.resource)
    manifest = jobs.manifest(workload, pod, claimed=False)
    name = manifest["metadata"]["name"]
    if given.others:
        new = status.left_open(workload, now, job_name=name, nodes=len(nodes))
        return Plan((CreateJob(manifest),), new, (notes.created(name),))
    return Plan(
        (CreateJob(manifest),),
        status.scheduled(workload, now, status.Place(given.node, name)),
        (notes.placed(workload, given.node), notes.created(name)),
    )


def _refusal_text(refusal: Refusal) -> str:
    if not refusal.never or not refusal.nodes:
        return refusal.message
    return f"{refusal.message}; waiting does not help: no node of this cluster could run it, even if empty"
