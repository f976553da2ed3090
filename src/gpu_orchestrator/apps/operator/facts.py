"""What `reconcile` is told: the workload with its Jobs and pods, and a way to ask for a place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request


@dataclass(frozen=True, slots=True)
class Given:
    """A node was found; it gives out its GPUs under this resource name."""

    node: str
    resource: str


Ask: TypeAlias = Callable[[Sequence[Request]], Given | Refusal]
"""Seeks a place for the first of these wishes that fits. If none does, the last one waits: its place is told
by another pass. Raises `UnknownPolicy`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a workload. `jobs` are all of its Jobs, `pods` those of the current one that have not
    ended. `trouble` is what befell the node or the pod of the current Job, in words; `preempted`: that it had
    to make room."""

    workload: GPUWorkload
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    trouble: str = ""
    preempted: bool = False

    @property
    def current(self) -> Job | None:
        name = jobs.name_of(self.workload, self.workload.status.retry_count)
        return next((job for job in self.jobs if job.metadata.name == name), None)

    @property
    def stale(self) -> list[Job]:
        """Jobs of earlier tries that have not ended."""
        return [job for job in self.jobs if job is not self.current and not job.is_finished]
