"""The Job of a workload: its name, its manifest, and what can be read from it again.

The node that was chosen stands in the Job's required node affinity and nowhere else, so that a Job found
after a restart says all there is to know about where its pod will go. A claimed Job says nothing of it: the
gpu-scheduler chooses, and its pod tells.
"""

import hashlib
from typing import Any

import msgspec

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import Json, Object
from gpu_orchestrator.apps.operator.jobs import labels

SELECTOR = f"{names.CONTROLLER}={names.CONTROLLER_NAME}"


def name_of(workload: GPUWorkload, retry: int) -> str:
    """The same for the same try of the same workload, whoever computes it."""
    return names.job(workload.metadata.name, workload.metadata.uid, retry)


def key_of(workload: GPUWorkload, retry: int) -> str:
    return f"{workload.metadata.namespace}/{name_of(workload, retry)}"


def current_names(workload: GPUWorkload) -> list[str]:
    """What the Job under way may be called: as the status says, for a claimed one goes on waiting while tries
    are spent; else by the try."""
    said, computed = workload.status.job_name, name_of(workload, workload.status.retry_count)
    return [said, computed] if said and said != computed else [computed]


def made_from(workload: GPUWorkload) -> str:
    """A hash of all in the spec that a claimed Job is made from: another one needs another Job."""
    spec = workload.spec
    parts = (
        spec.model_name,
        spec.gpu_count,
        spec.priority,
        spec.scheduling_strategy,
        spec.template,
        spec.claim,
        spec.replicas,
        spec.max_runtime_seconds,
    )
    return digest(parts)


def digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:10]


def manifest(workload: GPUWorkload, retry: int, pod_template: Json, limit_s: int | None = None) -> Json:
    """The Job around a pod template that is complete. `limit_s` counts from the Job's start on, whether its
    pod runs or waits."""
    spec: dict[str, Any] = {"backoffLimit": 0, "template": pod_template}
    if limit_s is not None:
        spec["activeDeadlineSeconds"] = limit_s
    return {
        "metadata": {
            "name": name_of(workload, retry),
            "namespace": workload.metadata.namespace,
            "labels": labels_of(workload),
            "ownerReferences": [owner(workload)],
        },
        "spec": spec,
    }


def labels_of(workload: GPUWorkload) -> dict[str, str]:
    return {
        names.APP: labels.safe(workload.spec.model_name),
        names.WORKLOAD: labels.safe(workload.metadata.name),
        names.CONTROLLER: names.CONTROLLER_NAME,
    }


def owner(workload: GPUWorkload) -> Json:
    """It does not block the owner's deletion: the finalizer already does, and blocking would need a right on
    workloads' finalizers."""
    return {
        "apiVersion": GPU_WORKLOADS.api_version,
        "kind": GPU_WORKLOADS.kind,
        "name": workload.metadata.name,
        "uid": workload.metadata.uid,
        "controller": True,
    }


def workload_of(job: Job) -> str:
    """Key of the workload that a Job belongs to; empty if to none."""
    owners = job.metadata.owner_references
    found = next((each for each in owners if each.kind == GPU_WORKLOADS.kind), None)
    return f"{job.metadata.namespace}/{found.name}" if found else ""


def owner_uid(owned: Object) -> str:
    owners = owned.metadata.owner_references
    return next((owner.uid for owner in owners if owner.kind == GPU_WORKLOADS.kind), "")


def job_key(pod: Pod) -> str:
    """The Job that a pod belongs to; empty if to none."""
    owner = next((each for each in pod.metadata.owner_references if each.kind == "Job"), None)
    return f"{pod.metadata.namespace}/{owner.name}" if owner else ""


def our_job(pod: Pod) -> str:
    """The same, if that is one of ours."""
    is_ours = pod.metadata.labels.get(names.CONTROLLER) == names.CONTROLLER_NAME
    return job_key(pod) if is_ours else ""
