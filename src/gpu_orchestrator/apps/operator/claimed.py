"""The claimed path: the gpu-scheduler decides and gives exact devices; the operator mirrors the outcome.

`entrust` plans a Job whose pods ask by their annotations; `wait` says how they fare until one has a node. A
pod that does not fit keeps its place in the scheduler's queue, where its age counts, and so its Job stays the
same one while the workload's tries are spent as on the plain path.
"""

from datetime import datetime, timedelta

import msgspec

from gpu_orchestrator.api import names, timestamps
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpuworkload import GPUWorkload, WorkloadClaim
from gpu_orchestrator.api.kubernetes import Pod, PodCondition
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator import mirror, status, template, tries
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.apps.operator.plan import Action, CreateClaim, CreateJob, Plan
from gpu_orchestrator.apps.operator.template import Template
from gpu_orchestrator.core.policy import Rng

SILENT_S = 30.0
"""How long the gpu-scheduler may say nothing about a pod before people are told."""


def entrust(workload: GPUWorkload, wanted: Template, now: datetime) -> Plan:
    """A Job for the gpu-scheduler, after the claim that its pods ask by."""
    asks: dict[str, str] = {names.STRATEGY: workload.spec.scheduling_strategy}
    actions: list[Action] = []
    if workload.spec.claim is None:
        asks[names.GPUS] = str(workload.spec.gpu_count)
    else:
        claim = _claim(workload, workload.spec.claim)
        asks[names.CLAIM_TEMPLATE] = claim["metadata"]["name"]
        actions.append(CreateClaim(claim))
    pod = template.entrusted(workload, wanted, asks)
    manifest = jobs.manifest(workload, workload.status.retry_count, pod)
    manifest["metadata"]["annotations"] = {names.MADE_FROM: jobs.made_from(workload)}
    name = manifest["metadata"]["name"]
    return Plan(
        (*actions, CreateJob(manifest)),
        status.scheduling(workload, now, job_name=name),
        (mirror.created_note(name),),
    )


def _claim(workload: GPUWorkload, asked: WorkloadClaim) -> Json:
    """A claim cannot be changed, so another wish is another claim. It goes with the workload."""
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


def wait(facts: Facts, job: Job, now: datetime, rng: Rng) -> Plan:
    """The Job is there and has no node yet."""
    name, old = job.metadata.name, facts.workload.status
    said = next((each for pod in facts.pods if (each := _said(pod))), None)
    if said and said.reason == "Unschedulable":
        return tries.refused(facts, now, rng, said.message, waiting_job=name)
    if old.job_name != name:  # we were stopped before the status could say so
        new = status.scheduling(facts.workload, now, job_name=name)
        return Plan(status=new, notes=(mirror.created_note(name),))
    return _silent(facts, job, now, said) if old.phase == "Scheduling" else Plan()


def _said(pod: Pod) -> PodCondition | None:
    """What the pod tells about being scheduled, as long as it is not."""
    conditions = pod.status.conditions
    return next((each for each in conditions if (each.type, each.status) == ("PodScheduled", "False")), None)


def _silent(facts: Facts, job: Job, now: datetime, said: PodCondition | None) -> Plan:
    """No word of the gpu-scheduler. It may not run at all; and no try was made, so none is spent."""
    asking = facts.pods[0] if facts.pods else job
    since = timestamps.parse_optional(asking.metadata.creation_timestamp)
    if since is None:
        return Plan()
    if not facts.pods:
        text = mirror.no_pod(job)
    elif said:
        text = f"its pod waits: {said.reason} {said.message}".strip()
    else:
        text = (
            f"the {names.SCHEDULER} has not answered for {SILENT_S:.0f} s; see that it runs: "
            f"kubectl get deployment {names.SCHEDULER} -n {names.NAMESPACE}"
        )
    return mirror.complain(facts, now, since + timedelta(seconds=SILENT_S), text)
