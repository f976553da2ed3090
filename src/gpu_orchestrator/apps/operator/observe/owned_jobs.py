"""Which Jobs count: those of workloads that exist, unless somebody has suspended or deleted them.

Kept by `capacity`. A Job can name any owner and carry any label; without this check, anyone could hold GPUs
with a Job that never runs.
"""

from collections.abc import Sequence

from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.operator.jobs import job as jobs


class OwnedJobs:
    """The unfinished Jobs by key, and the UIDs of the workloads that exist."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._of_workload: dict[str, set[str]] = {}
        self._uids: dict[str, str] = {}

    def see(self, name: str, job: Job | None) -> None:
        """Keep what is known of a Job; None if it is gone."""
        known = self._jobs.pop(name, None)
        if known is not None:
            self._forget(name, jobs.workload_of(known))
        if job is not None and not job.is_finished:
            self._jobs[name] = job
            self._of_workload.setdefault(jobs.workload_of(job), set()).add(name)

    def _forget(self, name: str, owner: str) -> None:
        self._of_workload[owner].discard(name)
        if not self._of_workload[owner]:
            del self._of_workload[owner]

    def see_workload(self, old: GPUWorkload | None, new: GPUWorkload | None) -> Sequence[str]:
        """Return the keys of the Jobs that may count differently now."""
        workload = new or old
        if workload is None:
            return ()
        name, uid = key(workload), new.metadata.uid if new else ""
        if self._uids.get(name, "") == uid:
            return ()
        if uid:
            self._uids[name] = uid
        else:
            del self._uids[name]
        return sorted(self._of_workload.get(name, ()))

    def is_owned(self, job: Job) -> bool:
        """Return True if the workload that the Job names as its controller exists."""
        uid = jobs.owner_uid(job)
        return bool(uid) and self._uids.get(jobs.workload_of(job)) == uid

    def holds(self, job: Job) -> bool:
        """Return True if the Job takes room on its node even before it has a pod. One that is being deleted
        creates no pod any more, and a finalizer could keep it; a pod that it has counts by itself."""
        is_stopped = job.spec.suspend or job.is_deleting
        return bool(job.nodes) and not is_stopped and self.is_owned(job)

    def holding(self, name: str) -> Job | None:
        """Return the Job with this key if it takes room."""
        job = self._jobs.get(name)
        return job if job is not None and self.holds(job) else None
