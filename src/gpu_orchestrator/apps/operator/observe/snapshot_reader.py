"""Reads the snapshot of one workload from the watches, the operator's own writes, and remembered evictions.

Called by the controller at the start of a pass. An evicted pod shows why before it is deleted, its Job never
does, so the reader remembers the reason until the Job is gone, and the nodes that rejected a workload's pods
until the workload is gone. Both are lost at a restart: messages and choices get worse, nothing breaks.
What the watches do not show is asked of the API server, and only in the passes that need it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from msgspec import structs

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.api import translate
from gpu_orchestrator.api.device_sizes import DeviceSizes
from gpu_orchestrator.api.gpuworkload import FINAL, GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Node, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.observe import ended_pods, job_events, workload_volumes
from gpu_orchestrator.apps.operator.observe.watches import Watches
from gpu_orchestrator.apps.operator.planning import status, stuck
from gpu_orchestrator.apps.operator.planning.snapshot import WorkloadSnapshot
from gpu_orchestrator.policies.registry import Registry, UnknownPolicy

PREEMPTED = "PreemptionByScheduler"
EVICTED = "EvictionByEvictionAPI"
EVICTIONS = {
    PREEMPTED: "its pod was preempted on {} by a pod of higher priority",
    "DeletionByTaintManager": "its pod was evicted from {} because of a taint",
    EVICTED: "its pod was evicted from {}",
    "TerminationByKubelet": "its pod was terminated by the kubelet of {}",
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for workloads that do not say otherwise: the gpu-scheduler places them; they wait for room
    without spending tries."""

    claims: bool = False
    waits: bool = False


NO_DEFAULTS = Defaults()


@dataclass(slots=True)
class SnapshotReader:
    client: Client
    watches: Watches
    registry: Registry
    defaults: Defaults = NO_DEFAULTS
    _fresh_jobs: Overlay[Job] = field(init=False)
    _fresh_workloads: Overlay[GPUWorkload] = field(init=False)
    _evicted: dict[str, str] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _shunned: dict[str, set[str]] = field(default_factory=dict)
    _sizes: DeviceSizes = field(default_factory=DeviceSizes)

    def __post_init__(self) -> None:
        seen = self.watches
        self._fresh_jobs = Overlay(seen.jobs)
        self._fresh_workloads = Overlay(seen.workloads)
        seen.nodes.on_change(self._note_sizes)
        seen.pods.on_change(self._note_eviction)
        seen.jobs.on_change(self._forget_job)
        seen.workloads.on_change(self._forget_workload)

    def _note_sizes(self, old: Node | None, new: Node | None) -> None:
        """Nodes say by annotation or label how large their devices are; what an agent reports is not read
        here. A node that says nothing makes shares count for more, never for less."""
        if seen := new or old:
            self._sizes.put(seen.metadata.name, (translate.kind(new),) if new else ())

    def _largest_mib(self, workload: GPUWorkload) -> int:
        claim = workload.spec.claim
        return self._sizes.largest_mib(claim.devices) if claim else 0

    def keep_workload(self, answer: GPUWorkload) -> None:
        self._fresh_workloads.keep(answer)

    def keep_job(self, answer: Job) -> None:
        self._fresh_jobs.keep(answer)

    def keep_deletion(self, job: Job) -> None:
        """Show the Job as deleting before the watch does, so that it is deleted only once."""
        known = self.watches.jobs.store.get(key(job))
        # Of a Job that is gone already, the entry would stay forever.
        if known and known.metadata.uid == job.metadata.uid:
            self._leaving.add(job.metadata.uid)

    async def read(self, name: str, now: datetime) -> WorkloadSnapshot | None:
        """Return the snapshot of a workload, or None if it is gone. Ask the API server for the pods of a Job
        that has ended, for the events of one that creates no pod, and for the volumes of a workload that has
        no Job. `now` must be the time that the plan is made for: it decides what is read."""
        snapshot = await self._read_job(name, now)
        if snapshot is None or not _needs_volumes(snapshot, now):
            return snapshot
        volumes = await workload_volumes.examine(self.client, snapshot.workload)
        snapshot = self.peek(name)  # again: the watches went on during the request
        return replace(snapshot, volumes=volumes) if snapshot else None

    async def _read_job(self, name: str, now: datetime) -> WorkloadSnapshot | None:
        snapshot = self.peek(name)
        job = snapshot.current if snapshot else None
        if not snapshot or not job:
            return snapshot
        if _needs_ended_pods(snapshot, job):
            return await self._with_ended_pods(name, job)
        if not stuck.is_overdue(snapshot, job, now):
            return snapshot
        warning = await job_events.last_warning(self.client, job)
        snapshot = self.peek(name)
        return replace(snapshot, warning=warning) if snapshot else None

    async def _with_ended_pods(self, name: str, job: Job) -> WorkloadSnapshot | None:
        found = await ended_pods.examine(self.client, job)
        snapshot = self.peek(name)
        if snapshot is None:
            return None
        cause = snapshot.trouble or found.cause
        snapshot = replace(snapshot, trouble=cause, ended=found.placed, overran=found.overran)
        return replace(snapshot, model=self._model(job, snapshot.node))

    def shun(self, workload: GPUWorkload, nodes: Iterable[str]) -> None:
        """Avoid these nodes from the next try on: they rejected the pod for a reason that only the
        kube-scheduler knows. Without this, the operator would choose the same node again and again."""
        self._shunned.setdefault(workload.metadata.uid, set()).update(nodes)

    def peek(self, name: str) -> WorkloadSnapshot | None:
        """Return the snapshot from memory alone, without a request."""
        workload = self._fresh_workloads.get(name)
        if workload is None:
            return None
        space = workload.metadata.namespace
        current = [f"{space}/{each}" for each in jobs.current_names(workload)]
        found = self._fresh_jobs.by("owner", workload.metadata.uid, current)
        own = tuple(self._with_deletion(job) for job in found if jobs.owner_uid(job) == workload.metadata.uid)
        pods = tuple(pod for each in current for pod in self.watches.pods.store.by("job", each))
        shunned = frozenset(self._shunned.get(workload.metadata.uid, ()))
        snapshot = WorkloadSnapshot(
            workload,
            own,
            pods,
            shunned=shunned,
            largest_mib=self._largest_mib(workload),
            claims_by_default=self.defaults.claims,
            waits_by_default=self.defaults.waits,
            unknown_strategy=self._unknown_strategy(workload),
        )
        job = snapshot.current
        if job is None:
            return snapshot
        eviction = self._evicted.get(job.metadata.uid, "")
        trouble = self._trouble(snapshot.node, eviction)
        model = self._model(job, snapshot.node)
        return replace(
            snapshot,
            trouble=trouble,
            preempted=eviction == PREEMPTED,
            displaced=eviction in (PREEMPTED, EVICTED),
            model=model,
        )

    def _model(self, job: Job, name: str) -> str:
        """Return the model of the GPUs on this node; only of a claimed Job are the devices known at all."""
        node = self.watches.nodes.store.get(name) if job.is_claimed else None
        return translate.model(node) if node else ""

    def _unknown_strategy(self, workload: GPUWorkload) -> str:
        try:
            self.registry.policy(workload.spec.scheduling_strategy)
        except UnknownPolicy as error:
            return str(error)
        return ""

    def _with_deletion(self, job: Job) -> Job:
        if job.metadata.uid not in self._leaving or job.is_deleting:
            return job
        leaving = structs.replace(job.metadata, deletion_timestamp=job.metadata.creation_timestamp)
        return structs.replace(job, metadata=leaving)

    def _trouble(self, name: str, eviction: str) -> str:
        """Return what went wrong on the Job's node or with its pod, from outside the Job; empty if
        nothing."""
        node = self.watches.nodes.store.get(name)
        if name and node is None:
            return f"node {name} is gone"
        if node and not translate.is_ready(node):
            return f"node {name} is not ready"
        return EVICTIONS.get(eviction, "").format(name or "its node")

    def _note_eviction(self, _: Pod | None, new: Pod | None) -> None:
        job = self.watches.jobs.store.get(jobs.job_key(new)) if new else None
        for each in new.status.conditions if new and job else ():
            if job and each.type == "DisruptionTarget" and each.status == "True":
                self._evicted[job.metadata.uid] = each.reason

    def _forget_job(self, old: Job | None, new: Job | None) -> None:
        if old and not new:
            self._evicted.pop(old.metadata.uid, None)
            self._leaving.discard(old.metadata.uid)

    def _forget_workload(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if old and not new:
            self._shunned.pop(old.metadata.uid, None)


def _needs_volumes(snapshot: WorkloadSnapshot, now: datetime) -> bool:
    """Return True if a plain workload with volumes may get its place in this pass."""
    workload = snapshot.workload
    if snapshot.is_claimed or snapshot.current or workload.status.phase in FINAL:
        return False
    if workload.metadata.deletion_timestamp or workload.spec.suspend:
        return False
    backs_off = status.backs_off_until(workload.status, now)
    return not backs_off and bool(workload_volumes.mounted(workload))


def _needs_ended_pods(snapshot: WorkloadSnapshot, job: Job) -> bool:
    if snapshot.workload.status.phase in FINAL or not job.is_finished:
        return False
    return not snapshot.node or (job.failure is not None and not snapshot.trouble)
