"""The Job of a workload: its name, its manifest, its owner.

The chosen node is stored only in the Job's required node affinity, so a Job found after a restart shows where
its pod will run. A claimed Job has no node of its own: the gpu-scheduler chooses one for its pod.
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
    """Return the Job's name, which depends only on the workload and the try."""
    return names.job(workload.metadata.name, workload.metadata.uid, retry)


def key_of(workload: GPUWorkload, retry: int) -> str:
    return f"{workload.metadata.namespace}/{name_of(workload, retry)}"


def current_names(workload: GPUWorkload) -> list[str]:
    """Return the possible names of the current Job: the one in the status, since a claimed Job keeps its name
    while tries are spent, and the one computed from the try."""
    said, computed = workload.status.job_name, name_of(workload, workload.status.retry_count)
    return [said, computed] if said and said != computed else [computed]


def made_from(workload: GPUWorkload) -> str:
    """Hash the parts of the spec that a claimed Job is made from. A different hash needs a new Job."""
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
    """Return the Job for a complete pod template. `limit_s` counts from the Job's start, even while its pod
    still waits."""
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
    """Return the owner reference. It does not block the owner's deletion: the finalizer already does, and
    blocking would need permission to update `gpuworkloads/finalizers`."""
    return {
        "apiVersion": GPU_WORKLOADS.api_version,
        "kind": GPU_WORKLOADS.kind,
        "name": workload.metadata.name,
        "uid": workload.metadata.uid,
        "controller": True,
    }


def workload_of(job: Job) -> str:
    """Return the key of the workload that owns a Job; empty if none does."""
    owners = job.metadata.owner_references
    found = next((each for each in owners if each.kind == GPU_WORKLOADS.kind), None)
    return f"{job.metadata.namespace}/{found.name}" if found else ""


def owner_uid(owned: Object) -> str:
    owners = owned.metadata.owner_references
    return next((owner.uid for owner in owners if owner.kind == GPU_WORKLOADS.kind), "")


def job_key(pod: Pod) -> str:
    """Return the key of the Job that owns a pod; empty if none does."""
    owner = next((each for each in pod.metadata.owner_references if each.kind == "Job"), None)
    return f"{pod.metadata.namespace}/{owner.name}" if owner else ""


def our_job(pod: Pod) -> str:
    """Return the key of the Job that owns a pod, if the operator made that Job."""
    is_ours = pod.metadata.labels.get(names.CONTROLLER) == names.CONTROLLER_NAME
    return job_key(pod) if is_ours else ""
