"""Does what a plan says, in an order in which a crash after any write leads to the same end.

Every write is guarded by what was read (version or UID) or can be repeated without harm. The server's answer
is handed to `keep_*`, so that nobody decides by a cache that has not seen it yet.
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
    CreateClaim,
    CreateJob,
    DeleteJob,
    Plan,
    RemoveFinalizer,
    SetTtl,
)

T = TypeVar("T", bound=Object)


class JobRefused(Exception):
    """The API server does not accept the Job or its claim. `for_good`: nor will it later."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good


class Overtaken(Exception):
    """Things are not as the plan took them to be: look again."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What is needed to perform a plan."""

    client: Client
    recorder: Recorder
    keep_workload: Callable[[GPUWorkload], None]
    keep_job: Callable[[Job], None]
    keep_deletion: Callable[[Job], None]

    async def perform(self, workload: GPUWorkload, plan: Plan) -> GPUWorkload:
        """The workload as it is afterwards."""
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
            case SetTtl(job, seconds):
                await self._set_ttl(job, seconds)
        return workload

    async def _set_finalizers(self, workload: GPUWorkload, finalizers: list[str]) -> GPUWorkload:
        """Guarded by the version: the list is written whole, and others may have theirs in it."""
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
        """One that is there already was made for an earlier try, or before a crash: its name says what it
        asks for."""
        try:
            await self._create(GPU_CLAIMS, manifest)
        except errors.AlreadyExists as error:
            await self._find(GPU_CLAIMS, workload, manifest, error)
        except errors.NotFound as error:
            why = f"GpuClaims are not known here: {error}; install them: kubectl apply -k config/crd"
            raise JobRefused(why, for_good=False) from error

    async def _create_job(self, workload: GPUWorkload, manifest: Json) -> None:
        """Already there is good news: it was made before a crash, or our cache is behind. Where it goes, it
        says itself."""
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
            why = f"a {kind.kind} {name} is there already and belongs to somebody else; delete or rename it"
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

    async def _set_ttl(self, job: Job, seconds: int) -> None:
        meta = job.metadata
        body = {"metadata": {"uid": meta.uid}, "spec": {"ttlSecondsAfterFinished": seconds}}
        try:
            self.keep_job(await self.client.patch(JOBS, meta.name, body, meta.namespace))
        except errors.NotFound:
            return
        except errors.Conflict as error:
            raise Overtaken(str(error)) from error


def difference(old: GPUWorkloadStatus, new: GPUWorkloadStatus) -> dict[str, Any]:
    """A merge patch from one status to the other: what is not said any more becomes null."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    after["retryCount"] = new.retry_count  # a column: people should see 0, not nothing
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return {**changed, **dict.fromkeys(name for name in before if name not in after)}
