"""Claimed workloads: the gpu-scheduler chooses the node and the devices, the operator reports the outcome.

`entrust` (called by `place`) plans a Job whose pods carry the request in annotations. `wait` (called by
`reconcile`) reports their state until one has a node. A pod that does not fit keeps its age in the
scheduler's queue, so the Job stays the same while the workload's tries are spent as on the plain path.
"""

from datetime import datetime, timedelta

import msgspec

from gpu_orchestrator.api import capacity, names, timestamps
from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpuworkload import GPUWorkload, WorkloadClaim
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod, PodCondition
from gpu_orchestrator.api.template_reading import Template
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.jobs import template
from gpu_orchestrator.apps.operator.planning import notes, refusals, retries, status, stuck
from gpu_orchestrator.apps.operator.planning.plan import Action, CreateClaim, CreateJob, Plan
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.core.policy import Rng

SILENT_S = 30.0
"""How long the gpu-scheduler may leave a pod without an answer before the status reports it."""


def entrust(snapshot: WorkloadSnapshot, wanted: Template, now: datetime) -> Plan:
    """Plan the claim template, if the workload has a claim, and the Job for the gpu-scheduler."""
    workload = snapshot.workload
    asks: dict[str, str] = {names.STRATEGY: workload.spec.scheduling_strategy}
    actions: list[Action] = []
    if workload.spec.claim is None:
        asks[names.GPUS] = str(workload.spec.gpu_count)
    else:
        claim = _claim(workload, workload.spec.claim)
        asks[names.CLAIM_TEMPLATE] = claim["metadata"]["name"]
        actions.append(CreateClaim(claim))
    if snapshot.is_gang:
        asks |= {names.GANG: jobs.current_name(workload), names.GANG_SIZE: str(workload.spec.replicas)}
    pod = template.entrusted(workload, wanted, asks, milligpu=_milligpu(snapshot))
    manifest = jobs.manifest(workload, pod, claimed=True)
    name = manifest["metadata"]["name"]
    return Plan(
        (*actions, CreateJob(manifest)),
        status.scheduling(workload, now, job_name=name),
        (notes.created(name),),
    )


def _milligpu(snapshot: WorkloadSnapshot) -> int:
    """Return what the workload's pod counts for. A Job keeps the number that it was made with, also when a
    larger device appears later: a running Job is not made again for it."""
    asked, count = snapshot.workload.spec.claim, snapshot.workload.spec.gpu_count
    wish = asked.devices if asked else DeviceWish()
    return capacity.milligpu(wish, count, largest_mib=snapshot.largest_mib)


def _claim(workload: GPUWorkload, asked: WorkloadClaim) -> Json:
    """Return the claim template. A claim is immutable, so a changed spec gets a new one. The workload owns
    it."""
    spec: Json = msgspec.to_builtins(asked)
    spec["devices"] = {**spec.get("devices", {}), "count": workload.spec.gpu_count}
    meta = workload.metadata
    ending = f"-claim-{meta.uid[:8]}-{jobs.digest(spec)}"
    return {
        "apiVersion": GPU_CLAIMS.api_version,
        "kind": GPU_CLAIMS.kind,
        "metadata": {
            "name": names.with_ending(meta.name, ending),
            "namespace": meta.namespace,
            "labels": jobs.labels_of(workload),
            "ownerReferences": [jobs.owner(workload)],
        },
        "spec": spec,
    }


def wait(snapshot: WorkloadSnapshot, job: Job, now: datetime, rng: Rng) -> Plan:
    """Report the state of a Job that has no node yet."""
    name, old = job.metadata.name, snapshot.workload.status
    said = next((each for pod in snapshot.pods if (each := _not_scheduled(pod))), None)
    is_refused = said is not None and said.reason == "Unschedulable"
    wrong = refusals.by_gpu_scheduler(said.message) if said and is_refused else ""
    if said and is_refused and not wrong:
        return retries.refused(snapshot, now, rng, said.message, waiting_job=name)
    if old.job_name != name:  # the operator stopped before it wrote the status
        new = status.scheduling(snapshot.workload, now, job_name=name)
        return Plan(status=new, notes=(notes.created(name),))
    if wrong:
        return notes.overdue(snapshot, now, now, retries.cannot_start(wrong))
    if not snapshot.pods:
        return stuck.podless(snapshot, job, now, rng)
    return _unanswered(snapshot, now, said) if old.phase == "Scheduling" else Plan()


def _not_scheduled(pod: Pod) -> PodCondition | None:
    """Return the pod's condition PodScheduled while it is False."""
    conditions = pod.status.conditions
    return next((each for each in conditions if (each.type, each.status) == ("PodScheduled", "False")), None)


def _unanswered(snapshot: WorkloadSnapshot, now: datetime, said: PodCondition | None) -> Plan:
    """The gpu-scheduler has not answered; it may not even run. No try was made, so none is spent."""
    since = timestamps.parse_optional(snapshot.pods[0].metadata.creation_timestamp)
    if since is None:
        return Plan()
    if said:
        text = f"its pod waits: {said.reason} {said.message}".strip()
    else:
        text = (
            f"the {names.SCHEDULER} has not answered for {SILENT_S:.0f} s; check that it runs: "
            f"kubectl get deployment {names.SCHEDULER} -n {names.NAMESPACE}"
        )
    return notes.overdue(snapshot, now, since + timedelta(seconds=SILENT_S), text)
