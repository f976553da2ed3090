"""What `reconcile` decides from: a workload with its Jobs and pods, and the type of its question for a place.

Made by `snapshot_reader`, once per pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.api import claims, names
from gpu_orchestrator.api.gpuworkload import MOST_INDEX, SETTLED, AssignedDevice, GPUWorkload
from gpu_orchestrator.api.job import EndedPod, Job
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request, Term

MOST_DEVICES, LONGEST = 64, 253
"""Of a pod, and of a device's UUID or model: what the API server accepts in a status."""


@dataclass(frozen=True, slots=True)
class Given:
    """A place: the node, and the resource name that its device plugin offers its GPUs under. `others` are
    nodes that fit too, best first; nothing is reserved on them."""

    node: str
    resource: str
    others: tuple[str, ...] = ()


class Ask(Protocol):
    """Reserves a place for the first of these wishes that fits, and names up to `most` nodes. If no wish
    fits, the last one waits, and a later pass gets its place."""

    def __call__(self, wishes: Sequence[Request], most: int = 1) -> Given | Refusal: ...


@dataclass(frozen=True, slots=True)
class Volumes:
    """What a workload's volumes demand before it has a Job.

    reach       the alternatives of each bound volume: where it can be mounted
    not_ready   why a volume cannot be mounted on any node; empty if all can
    is_open     a volume will be made where the kube-scheduler places the pod
    """

    reach: tuple[tuple[Term, ...], ...] = ()
    not_ready: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadSnapshot:
    """What is known about a workload.

    jobs      all of its Jobs
    pods      the pods of the current Job that have not ended
    trouble   what happened to the node or the pod of the current Job, as a sentence
    preempted the pod was preempted
    displaced others ended the pod: it was preempted, or evicted by a request to the API server
    ended     an ended pod of the current Job, if only that pod shows where it ran
    overran   an ended pod ran into its deadline
    warning   why the Job created no pod, from its last event
    shunned   nodes that rejected an earlier pod
    volumes   where its volumes can be mounted, if it has no Job yet
    model     the model of the GPUs on the current Job's node
    largest_mib         the memory of the largest device that its claim could get, if its share depends on it
    claims_by_default   the gpu-scheduler places workloads without a claim, too
    waits_by_default    a workload that does not say so waits for room without spending tries
    unknown_strategy    the error if no strategy has the name that the workload gives
    """

    workload: GPUWorkload
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    trouble: str = ""
    preempted: bool = False
    displaced: bool = False
    ended: EndedPod | None = None
    overran: bool = False
    warning: str = ""
    shunned: frozenset[str] = frozenset()
    volumes: Volumes = Volumes()
    model: str = ""
    largest_mib: int = 0
    claims_by_default: bool = False
    waits_by_default: bool = False
    unknown_strategy: str = ""

    @property
    def is_claimed(self) -> bool:
        """True if the gpu-scheduler chooses the node."""
        return self.claims_by_default or self.workload.spec.claim is not None or self.is_gang

    @property
    def is_gang(self) -> bool:
        """True if several pods start together or not at all."""
        return self.workload.spec.replicas > 1

    @property
    def waits_for_room(self) -> bool:
        """True if lack of room costs no try."""
        asked = self.workload.spec.retry_policy.on_no_capacity
        return self.waits_by_default if asked is None else asked == "Wait"

    @property
    def current(self) -> Job | None:
        expected = jobs.current_names(self.workload)
        return next((job for name in expected for job in self.jobs if job.metadata.name == name), None)

    @property
    def stale(self) -> list[Job]:
        """Return the unfinished Jobs to delete: of earlier tries, or made from an older spec."""
        return [
            job
            for job in self.jobs
            if not job.is_finished and (job is not self.current or self._is_outdated(job))
        ]

    def _is_outdated(self, job: Job) -> bool:
        """A spec may change until the status says that the workload has a place, and the Job exists before
        that."""
        return self.workload.status.phase not in SETTLED and self.is_edited(job)

    def is_edited(self, job: Job) -> bool:
        """Return True if the spec has changed since the Job was made from it. Earlier releases did not note
        what a plain Job was made from."""
        made_from = job.metadata.annotations.get(names.MADE_FROM)
        if made_from is None and not job.is_claimed:
            return False
        return made_from != jobs.made_from(self.workload, claimed=job.is_claimed)

    @property
    def is_open(self) -> bool:
        """True if the kube-scheduler chooses among several nodes for the current Job."""
        return self.current is not None and len(self.current.nodes) > 1

    @property
    def bound(self) -> Pod | None:
        """Return the pod of the current Job that has a node; of a gang the first one, once all have nodes."""
        bound = [pod for pod in self.pods if pod.spec.node_name]
        if self.is_gang and len(bound) < self.workload.spec.replicas:
            return None
        return min(bound, key=_index, default=None)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of all replicas of a gang, by their index, while all of them have one."""
        if not self.is_gang or self.bound is None:
            return ()
        return tuple(pod.spec.node_name for pod in sorted(self.pods, key=_index) if pod.spec.node_name)

    @property
    def node(self) -> str:
        """Return where the current Job runs, will run or ran; empty if that is not known (yet)."""
        job, old = self.current, self.workload.status
        if job is None:
            return ""
        if job.node:
            return job.node
        if pod := self.bound or self.ended:
            return pod.spec.node_name
        return old.assigned_node if old.job_name == job.metadata.name else ""

    @property
    def devices(self) -> list[AssignedDevice]:
        """Return the devices of a claimed pod, as far as its annotations name them. Those of a gang are in
        the annotations of its pods alone."""
        pod = None if self.is_gang else self.bound or self.ended
        ids = claims.given(pod) if pod else ()
        if not pod or len(ids) > MOST_DEVICES or any(each > MOST_INDEX for each in ids):
            return []
        uuids = claims.uuids(pod) or [""] * len(ids)
        return [
            AssignedDevice(index, uuid[:LONGEST], self.model[:LONGEST])
            for index, uuid in zip(ids, uuids, strict=True)
        ]


def _index(pod: Pod) -> tuple[int, str]:
    """Return the pod's place among the replicas."""
    given = pod.metadata.labels.get(names.COMPLETION_INDEX, "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 6 else 0, pod.metadata.name
