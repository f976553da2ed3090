"""The values of a plan. `reconcile` returns a `Plan`; `apply` performs its actions and writes its status."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from gpu_orchestrator.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.wire import Json


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    pass


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    pass


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create the template from which each pod of a claimed Job gets its own claim."""

    manifest: Json


@dataclass(frozen=True, slots=True)
class CreateJob:
    manifest: Json


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a Job and its pods. `as_seen`: only if it is unchanged, since it may have finished meanwhile."""

    job: Job
    as_seen: bool = True


@dataclass(frozen=True, slots=True)
class ChangeJob:
    """Change these fields of a Job's spec: its deadline, or when Kubernetes removes it after its end."""

    job: Job
    spec: Json


Action: TypeAlias = AddFinalizer | RemoveFinalizer | CreateClaim | CreateJob | DeleteJob | ChangeJob


def new_limit(workload: GPUWorkload, job: Job) -> tuple[ChangeJob, ...]:
    """Give a plain Job the time limit of a spec that has changed since the status was written. Otherwise a
    limit that differs is not the user's: a policy of the cluster has set it. Every plan that writes the
    status of a workload with a Job does this."""
    limit_s = workload.spec.max_runtime_seconds
    is_seen = workload.status.observed_generation == workload.metadata.generation
    if is_seen or job.is_claimed or job.spec.active_deadline_seconds == limit_s:
        return ()
    return (ChangeJob(job, {"activeDeadlineSeconds": limit_s}),)


@dataclass(frozen=True, slots=True)
class Note:
    """An event about the workload, recorded after its status is written."""

    kind: Literal["Normal", "Warning"]
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`status` is the whole new status, or None for no change. `again_at` is when to reconcile again even if
    no event arrives. `failed` is why a try failed, for the metrics; `shun` names the nodes that rejected
    the pod, for the next try."""

    actions: tuple[Action, ...] = ()
    status: GPUWorkloadStatus | None = None
    notes: tuple[Note, ...] = ()
    again_at: datetime | None = None
    failed: str = ""
    shun: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.actions and self.status is None

    @property
    def can_wait(self) -> bool:
        """True if the plan only adds the finalizer and can be deferred."""
        return self.actions == (AddFinalizer(),) and self.status is None
