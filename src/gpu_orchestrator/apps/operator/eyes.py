"""Gathers the facts about one workload from the watches, our own fresh writes, and what pods said last.

A pod that is evicted says why before it goes, and its Job never does; so that is remembered here as long as
the Job is there, and as long as the workload is, which nodes did not take its pods. It makes words and
choices better; after a restart, without it, all goes well too.
"""

from dataclasses import dataclass, field, replace

from msgspec import structs

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.overlay import Overlay
from gpu_orchestrator.adapters.kube.watch import Watch
from gpu_orchestrator.api import translate
from gpu_orchestrator.api.gpuworkload import FINAL, GPUWorkload
from gpu_orchestrator.api.kubernetes import Node, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator import autopsy
from gpu_orchestrator.apps.operator import job as jobs
from gpu_orchestrator.apps.operator.facts import Facts
from gpu_orchestrator.apps.operator.job import Job
from gpu_orchestrator.apps.operator.world import job_key

PREEMPTED = "PreemptionByScheduler"
LAST_WORDS = {
    PREEMPTED: "its pod had to make room on {} for a pod of higher priority",
    "DeletionByTaintManager": "its pod was evicted from {} because of a taint",
    "EvictionByEvictionAPI": "its pod was evicted from {}",
    "TerminationByKubelet": "its pod was ended by the kubelet of {}",
}


@dataclass(slots=True)
class Eyes:
    client: Client
    nodes: Watch[Node]
    pods: Watch[Pod]
    jobs: Watch[Job]
    workloads: Watch[GPUWorkload]
    claims_by_default: bool = False
    _fresh_jobs: Overlay[Job] = field(init=False)
    _fresh_workloads: Overlay[GPUWorkload] = field(init=False)
    _evicted: dict[str, str] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _shunned: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fresh_jobs = Overlay(self.jobs)
        self._fresh_workloads = Overlay(self.workloads)
        self.pods.on_change(self._hear_pod)
        self.jobs.on_change(self._forget_job)
        self.workloads.on_change(self._forget_workload)

    def keep_workload(self, answer: GPUWorkload) -> None:
        self._fresh_workloads.keep(answer)

    def keep_job(self, answer: Job) -> None:
        self._fresh_jobs.keep(answer)

    def keep_deletion(self, job: Job) -> None:
        """It was asked to go: see it as leaving before the watch does, so that it is asked once."""
        known = self.jobs.store.get(key(job))
        if known and known.metadata.uid == job.metadata.uid:  # else it is gone, and nobody would forget it
            self._leaving.add(job.metadata.uid)

    async def look(self, name: str) -> Facts | None:
        """All there is to know, with what only the pod of an ended Job can tell; None for what is gone."""
        facts = self.glance(name)
        job = facts.current if facts else None
        if not facts or not job or not _has_more_to_tell(facts, job):
            return facts
        found = await autopsy.examine(self.client, job)
        facts = self.glance(name)  # anew, for time has passed
        if facts is None:
            return None
        cause = facts.trouble or found.cause
        return replace(facts, trouble=cause, ended_on=found.node, overran=found.overran)

    def glance(self, name: str) -> Facts | None:
        workload = self._fresh_workloads.get(name)
        if workload is None:
            return None
        space = workload.metadata.namespace
        current = [f"{space}/{each}" for each in jobs.current_names(workload)]
        found = self._fresh_jobs.by("owner", workload.metadata.uid, current)
        own = tuple(self._as_left(job) for job in found if jobs.owner_uid(job) == workload.metadata.uid)
        pods = tuple(pod for each in current for pod in self.pods.store.by("job", each))
        shunned = frozenset(self._shunned.get(workload.metadata.uid, ()))
        facts = Facts(workload, own, pods, shunned=shunned, claims_by_default=self.claims_by_default)
        job = facts.current
        if job is None:
            return facts
        last_words = self._evicted.get(job.metadata.uid, "")
        trouble = self._trouble(facts.node, last_words)
        return replace(facts, trouble=trouble, preempted=last_words == PREEMPTED)

    def _as_left(self, job: Job) -> Job:
        if job.metadata.uid not in self._leaving or job.is_deleting:
            return job
        leaving = structs.replace(job.metadata, deletion_timestamp=job.metadata.creation_timestamp)
        return structs.replace(job, metadata=leaving)

    def _trouble(self, name: str, last_words: str) -> str:
        """What befell the Job on its node from outside, if anything did."""
        node = self.nodes.store.get(name)
        if name and node is None:
            return f"node {name} is gone"
        if node and not translate.is_ready(node):
            return f"node {name} is not ready"
        return LAST_WORDS.get(last_words, "").format(name or "its node")

    def _hear_pod(self, _: Pod | None, new: Pod | None) -> None:
        job = self.jobs.store.get(job_key(new)) if new else None
        for each in new.status.conditions if new and job else ():
            if job and each.type == "DisruptionTarget" and each.status == "True":
                self._evicted[job.metadata.uid] = each.reason

    def _forget_job(self, old: Job | None, new: Job | None) -> None:
        if old and not new:
            self._evicted.pop(old.metadata.uid, None)
            self._leaving.discard(old.metadata.uid)
            self._shun(old)

    def _shun(self, job: Job) -> None:
        """We deleted a Job of an earlier try: its node did not take the pod, for a reason that only the
        kube-scheduler knows. Without this, the same node would be chosen again and again."""
        workload = self._fresh_workloads.get(jobs.workload_of(job))
        if workload and job.node and job.metadata.name not in jobs.current_names(workload):
            self._shunned.setdefault(workload.metadata.uid, set()).add(job.node)

    def _forget_workload(self, old: GPUWorkload | None, new: GPUWorkload | None) -> None:
        if old and not new:
            self._shunned.pop(old.metadata.uid, None)


def _has_more_to_tell(facts: Facts, job: Job) -> bool:
    if facts.workload.status.phase in FINAL or not job.is_finished:
        return False
    return not facts.node or (job.failure is not None and not facts.trouble)
