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
from gpu_orchestrator.api.kubernetes import JobStatus, PodSpec, StatusCondition
from gpu_orchestrator.api.wire import Json, Object, ObjectMeta, Resource, Wire
from gpu_orchestrator.apps.operator import labels


class PodTemplate(Wire, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class JobSpec(Wire, frozen=True, gc=False):
    ttl_seconds_after_finished: int | None = None
    template: PodTemplate = PodTemplate()


class Job(Wire, frozen=True, gc=False):
    """A Job with its pod template, of which we want to know where it goes and what it takes."""

    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def node(self) -> str:
        """The node that we chose for it; none for a claimed one, whose affinity is the user's own."""
        if self.is_claimed:
            return ""
        required = self.spec.template.spec.affinity.node_affinity.required
        terms = required.node_selector_terms if required else []
        fields = (field for term in terms for field in term.match_fields)
        return next((f.values[0] for f in fields if f.key == NODE_FIELD and f.operator == "In"), "")

    @property
    def is_claimed(self) -> bool:
        """The gpu-scheduler places its pods."""
        return any(name in self.spec.template.metadata.annotations for name in names.ASKING_ANNOTATIONS)

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @property
    def is_complete(self) -> bool:
        return self._condition("Complete") is not None

    @property
    def failure(self) -> StatusCondition | None:
        """Why it failed. A Job whose pod hangs on a lost node says for a long time only that it is going to
        fail; nothing can change that any more."""
        return self._condition("Failed") or self._condition("FailureTarget")

    @property
    def is_finished(self) -> bool:
        return self.is_complete or self.failure is not None

    def _condition(self, kind: str) -> StatusCondition | None:
        return next(
            (each for each in self.status.conditions if (each.type, each.status) == (kind, "True")), None
        )


JOBS = Resource(Job, "Job", "jobs", "batch")

NODE_FIELD = "metadata.name"
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


def manifest(workload: GPUWorkload, retry: int, pod_template: Json) -> Json:
    """The Job around a pod template that is complete."""
    spec: dict[str, Any] = {"backoffLimit": 0, "template": pod_template}
    if workload.spec.max_runtime_seconds is not None:
        spec["activeDeadlineSeconds"] = workload.spec.max_runtime_seconds
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
