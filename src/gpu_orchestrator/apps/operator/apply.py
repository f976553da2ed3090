"""Carry out a plan, in an order in which a crash after any write leads to the same end.

Called by the controller. Every write is guarded by what was read (version or UID) or is safe to repeat. The
server's answer goes to `keep_*`, so that the next pass does not decide from a watch that lags behind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder, about
from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS
from gpu_orchestrator.api.gpuworkload import GPU_WORKLOADS, GPUWorkload, GPUWorkloadStatus
from gpu_orchestrator.api.job import JOBS, Job
from gpu_orchestrator.api.wire import Json, Object, Resource
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.planning.plan import (
    Action,
    AddFinalizer,
    ChangeJob,
    CreateClaim,
    CreateJob,
    DeleteJob,
    Plan,
    RemoveFinalizer,
)

T = TypeVar("T", bound=Object)


class JobRefused(Exception):
    """The API server rejected the Job or its claim. `for_good`: a retry cannot succeed."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good


class Overtaken(Exception):
    """The cluster changed since the plan was made: reconcile again."""


@dataclass(frozen=True, slots=True)
class Applier:
    """What it takes to perform a plan: the client, the event recorder, and where to keep answers."""

    client: Client
    recorder: Recorder
    keep_workload: Callable[[GPUWorkload], None]
    keep_job: Callable[[Job], None]
    keep_deletion: Callable[[Job], None]

    async def perform(self, workload: GPUWorkload, plan: Plan) -> GPUWorkload:
        """Perform the actions, write the status, record the events; return the workload as written."""
        for action in plan.actions:
            workload = await self._act(workload, action)
        if plan.status is not None:
            workload = await self._write_status(workload, plan.status)
        for note in plan.notes:
            self.recorder.record(note.kind, about(GPU_WORKLOADS, workload), note.reason, note.text)
        return workload

    async def _act(self, workload: GPUWorkload, action: Action) -> GPUWorkload:
        match action:
            case AddFinalizer():
                held = [*workload.metadata.finalizers, names.WORKLOAD_FINALIZER]
                return await self._set_finalizers(workload, held)
            case RemoveFinalizer():
                rest = [each for each in workload.metadata.finalizers if each != names.WORKLOAD_FINALIZER]
                return await self._set_finalizers(workload, rest)
            case CreateClaim(manifest):
                await self._create_claim(workload, manifest)
            case CreateJob(manifest):
                await self._create_job(workload, manifest)
            case DeleteJob(job, as_seen):
                await self._delete(job, as_seen)
            case ChangeJob(job, spec):
                await self._change(job, spec)
        return workload

    async def _set_finalizers(self, workload: GPUWorkload, finalizers: list[str]) -> GPUWorkload:
        """Guard the patch with the version: it replaces the whole list, which may hold others' finalizers."""
        return await self._patch(workload, {"metadata": {"finalizers": finalizers}})

    async def _write_status(self, workload: GPUWorkload, status: GPUWorkloadStatus) -> GPUWorkload:
        return await self._patch(workload, {"status": difference(workload.status, status)}, "status")

    async def _patch(self, workload: GPUWorkload, body: Json, subresource: str = "") -> GPUWorkload:
        meta = workload.metadata
        body.setdefault("metadata", {})["resourceVersion"] = meta.resource_version
        try:
            answer = await self.client.patch(
                GPU_WORKLOADS, meta.name, body, meta.namespace, subresource=subresource
            )
        except errors.Conflict as error:
            raise Overtaken(str(error)) from error
        self.keep_workload(answer)
        return answer

    async def _create_claim(self, workload: GPUWorkload, manifest: Json) -> None:
        """Accept one that exists: an earlier try made it, or this one before a crash. Its name contains a
        hash of its spec."""
        try:
            await self._create(GPU_CLAIMS, manifest)
        except errors.AlreadyExists as error:
            await self._find(GPU_CLAIMS, workload, manifest, error)
        except errors.NotFound as error:
            why = f"GpuClaims are not installed: {error}; install them: kubectl apply -k config/crd"
            raise JobRefused(why, for_good=False) from error

    async def _create_job(self, workload: GPUWorkload, manifest: Json) -> None:
        """If the Job exists, it was made before a crash, or the watch lags behind. Keep it and reconcile
        again: its own manifest shows on which node it runs."""
        try:
            self.keep_job(await self._create(JOBS, manifest))
        except errors.AlreadyExists as error:
            self.keep_job(await self._find(JOBS, workload, manifest, error))
            raise Overtaken(str(error)) from error

    async def _create(self, kind: Resource[T], manifest: Json) -> T:
        try:
            return await self.client.create(kind, manifest, idempotent=True)
        except (errors.Invalid, errors.BadRequest) as error:
            raise JobRefused(str(error), for_good=True) from error
        except errors.Forbidden as error:
            raise JobRefused(str(error), for_good=False) from error

    async def _find(
        self, kind: Resource[T], workload: GPUWorkload, manifest: Json, error: errors.AlreadyExists
    ) -> T:
        name = manifest["metadata"]["name"]
        try:
            found = await self.client.get(kind, name, workload.metadata.namespace)
        except errors.NotFound:
            raise Overtaken(str(error)) from error
        if jobs.owner_uid(found) != workload.metadata.uid:
            why = f"a {kind.kind} {name} exists already and has another owner; delete or rename it"
            raise JobRefused(why, for_good=False) from error
        return found

    async def _delete(self, job: Job, as_seen: bool) -> None:
        meta = job.metadata
        try:
            await self.client.delete(
                JOBS,
                meta.name,
                meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version if as_seen else "",
                propagation="Foreground",
            )
        except errors.NotFound:
            return
        except errors.Conflict as error:
            raise Overtaken(str(error)) from error
        self.keep_deletion(job)

    async def _change(self, job: Job, spec: Json) -> None:
        meta = job.metadata
        body = {"metadata": {"uid": meta.uid}, "spec": spec}
        try:
            self.keep_job(await self.client.patch(JOBS, meta.name, body, meta.namespace))
        except errors.NotFound:
            return
        except errors.Conflict as error:
            raise Overtaken(str(error)) from error


def difference(old: GPUWorkloadStatus, new: GPUWorkloadStatus) -> dict[str, Any]:
    """Return the merge patch from one status to the other. Fields that are no longer set become null."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    after["retryCount"] = new.retry_count  # kubectl shows it as a column: print 0, not an empty cell
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return {**changed, **dict.fromkeys(name for name in before if name not in after)}
