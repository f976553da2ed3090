"""What `reconcile` is told: the workload with its Jobs and pods, and a way to ask for a place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpu_orchestrator.api import claims, names
from gpu_orchestrator.api.gpuworkload import SETTLED, GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator.jobs import job as jobs
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
class WorkloadSnapshot:
    """What is known of a workload. `jobs` are all of its Jobs, `pods` those of the current one that have not
    ended. `trouble` is what befell the node or the pod of the current Job, in words; `preempted`: that it had
    to make room. Of a pod that ended, `ended_on` is its node, where only it can tell, and `overran`: that its
    time was over. `shunned` are nodes that did not take an earlier pod.
    `claims_by_default`: workloads that do not say how ask the gpu-scheduler, too."""

    workload: GPUWorkload
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    trouble: str = ""
    preempted: bool = False
    ended_on: str = ""
    overran: bool = False
    shunned: frozenset[str] = frozenset()
    claims_by_default: bool = False

    @property
    def is_claimed(self) -> bool:
        """The gpu-scheduler decides where it goes."""
        return self.claims_by_default or self.workload.spec.claim is not None

    @property
    def current(self) -> Job | None:
        expected = jobs.current_names(self.workload)
        return next((job for name in expected for job in self.jobs if job.metadata.name == name), None)

    @property
    def stale(self) -> list[Job]:
        """Jobs that have not ended and shall not go on: of earlier tries, or made from what the spec no
        longer says."""
        return [
            job
            for job in self.jobs
            if not job.is_finished and (job is not self.current or self._is_outdated(job))
        ]

    def _is_outdated(self, job: Job) -> bool:
        """A spec may change as long as the workload has no place; a claimed Job is there before it has."""
        made_from = job.metadata.annotations.get(names.MADE_FROM, "")
        is_open = self.workload.status.phase not in SETTLED
        return job.is_claimed and is_open and made_from != jobs.made_from(self.workload)

    @property
    def bound(self) -> Pod | None:
        """The pod of the current Job that has a node."""
        return next((pod for pod in self.pods if pod.spec.node_name), None)

    @property
    def node(self) -> str:
        """Where the current Job runs, will run or ran; empty when that is not known (yet)."""
        job, old = self.current, self.workload.status
        if job is None:
            return ""
        if job.node or self.bound:
            return job.node or (self.bound.spec.node_name if self.bound else "")
        return self.ended_on or (old.assigned_node if old.job_name == job.metadata.name else "")

    @property
    def where(self) -> str:
        """The same in words, with the devices that a claimed pod was given."""
        ids = claims.given(self.bound) if self.bound else ()
        devices = f"device{'s' if len(ids) > 1 else ''} {','.join(map(str, ids))}"
        return f"{self.node} ({devices})" if ids else self.node
