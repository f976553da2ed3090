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
from gpu_orchestrator.api.wire import Json, Object, OwnerReference
from gpu_orchestrator.apps.operator.jobs import inherited, labels

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


def current_name(workload: GPUWorkload) -> str:
    """Return the name of the Job of the current try."""
    return name_of(workload, workload.status.retry_count)


def made_from(workload: GPUWorkload, *, claimed: bool) -> str:
    """Hash the parts of the spec that a Job is made from. A different hash needs a new Job. The time limit of
    a plain Job can be changed; that of a claimed one is in its pod template, which cannot."""
    spec = workload.spec
    parts = (
        spec.model_name,
        spec.gpu_count,
        spec.priority,
        spec.scheduling_strategy,
        spec.template,
        spec.claim,
        spec.replicas,
    )
    return digest((*parts, spec.max_runtime_seconds) if claimed else parts)


def digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:10]


def manifest(workload: GPUWorkload, pod_template: Json, *, claimed: bool) -> Json:
    """Return the Job for a complete pod template. Its time limit counts from the Job's start, even while its
    pod still waits; so a claimed Job has it in the pod template instead."""
    spec: dict[str, Any] = {"backoffLimit": 0, "template": pod_template}
    if workload.spec.replicas > 1:
        each = {"completions": workload.spec.replicas, "parallelism": workload.spec.replicas}
        spec |= {**each, "completionMode": "Indexed"}
    if workload.spec.max_runtime_seconds is not None and not claimed:
        spec["activeDeadlineSeconds"] = workload.spec.max_runtime_seconds
    kept = inherited.annotations(workload.metadata.annotations)
    return {
        "metadata": {
            "name": name_of(workload, workload.status.retry_count),
            "namespace": workload.metadata.namespace,
            "labels": {**inherited.labels(workload.metadata.labels), **labels_of(workload)},
            "annotations": {**kept, names.MADE_FROM: made_from(workload, claimed=claimed)},
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
    """Return the key of the workload that controls a Job; empty if none does."""
    found = _controller(job)
    return f"{job.metadata.namespace}/{found.name}" if found else ""


def owner_uid(owned: Object) -> str:
    """Return the UID of the workload that controls an object; empty if none does."""
    found = _controller(owned)
    return found.uid if found else ""


def _controller(owned: Object) -> OwnerReference | None:
    wanted = (True, GPU_WORKLOADS.kind, GPU_WORKLOADS.group)
    for each in owned.metadata.owner_references:
        if (each.controller, each.kind, each.api_version.partition("/")[0]) == wanted:
            return each
    return None


def job_key(pod: Pod) -> str:
    """Return the key of the Job that owns a pod; empty if none does."""
    owner = next((each for each in pod.metadata.owner_references if each.kind == "Job"), None)
    return f"{pod.metadata.namespace}/{owner.name}" if owner else ""


def our_job(pod: Pod) -> str:
    """Return the key of the Job that owns a pod, if the operator made that Job."""
    is_ours = pod.metadata.labels.get(names.CONTROLLER) == names.CONTROLLER_NAME
    return job_key(pod) if is_ours else ""
