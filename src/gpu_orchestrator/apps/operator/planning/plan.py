"""What a pass of `reconcile` wants done. `apply` does it in this order: the actions, then the status."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from gpu_orchestrator.api.gpuworkload import GPUWorkloadStatus
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
    """The template from which each pod of a claimed Job gets a claim of its own."""

    manifest: Json


@dataclass(frozen=True, slots=True)
class CreateJob:
    manifest: Json


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """With its pods. `as_seen`: only if it has not changed since, for it may have finished meanwhile."""

    job: Job
    as_seen: bool = True


@dataclass(frozen=True, slots=True)
class SetTtl:
    """Let the cluster remove a finished Job after a while."""

    job: Job
    seconds: int


Action: TypeAlias = AddFinalizer | RemoveFinalizer | CreateClaim | CreateJob | DeleteJob | SetTtl


@dataclass(frozen=True, slots=True)
class Note:
    """An event to tell about the workload, once its status says the same."""

    kind: Literal["Normal", "Warning"]
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`status` is the whole new status, or None for no change; `again_at` is when to look again although
    nothing happened."""

    actions: tuple[Action, ...] = ()
    status: GPUWorkloadStatus | None = None
    notes: tuple[Note, ...] = ()
    again_at: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return not self.actions and self.status is None

    @property
    def can_wait(self) -> bool:
        """Nobody waits for what it does."""
        return self.actions == (AddFinalizer(),) and self.status is None
