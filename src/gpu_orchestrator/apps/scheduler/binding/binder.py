"""Carry out one decision: acquire the devices' leases and the pod's claim, then bind, in that order.

    acquire all ──▶ bind its volumes, ──▶ bind at the pod's version ──▶ Bound
        │ held by   wait for MPS         │ refused: release the leases that we have made
        ▼ another      │ given up        │ answer lost: read the pod, and move its version while it is
      Failed ◀─────────┴─────────────────┘              unbound, until the result is certain; leases that it
                                                        may have are left

The executor calls it for every `Place` of the engine, many at once. The version in the bind was read before
the leases were acquired, also if volumes took minutes in between. So a scheduler that takes one of the leases
away must first write to the pod, and that makes this bind fail. We release only leases that this job made, at
the version that it made: another scheduler that binds the same pod takes them over first, which moves their
version. What the pod's annotation says decides nothing, because its owner can change it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import (
    Conflict,
    KubeError,
    LostAnswer,
    NotFound,
    Permanent,
    Unavailable,
)
from gpu_orchestrator.api import claims, deviceleases, names, sharing
from gpu_orchestrator.api.deviceleases import DeviceRef
from gpu_orchestrator.api.kubernetes import PODS, Lease, Pod
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed, Outcome
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter, Refused, Reserved
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, HeldByOther, LeaseHold
from gpu_orchestrator.apps.scheduler.binding.mps_gate import MpsGate
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter
from gpu_orchestrator.apps.scheduler.binding.volume_binder import Unbound, VolumeBinder

T = TypeVar("T")

SETTLE_EVERY_S = 1.0
GANGS_AT_ONCE = 32
"""Members of gangs that are prepared or bound at once: half of the connections are left to other pods. Those
that wait for volumes or daemons do not count."""
NO_SLOTS = nullcontext()

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Acquired:
    """The results of acquiring leases and claim. `holds` are ours. With `refusals` the job cannot go on;
    `found` are the leases of other holders that caused some of them. `is_permanent`: the API server refused
    one for good."""

    holds: list[LeaseHold]
    refusals: list[str]
    found: tuple[Lease, ...] = ()
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A job that holds all it needs. Its pod is the one to bind, at the version that was read before."""

    job: BindJob
    holds: list[LeaseHold]


class Binder:
    """`may_write` returns True while we lead; `barred` why a node takes no claims, if it does not any longer;
    `leases` is None if the binding alone is the lock.
    `reserves_claims`: reserve the claim before the bind, as is necessary when several schedulers decide. A
    single leader knows which claims it has assigned, and writes the reservation later."""

    def __init__(
        self,
        client: Client,
        pod_status: PodStatusWriter,
        leases: DeviceLeases | None,
        claim_writer: ClaimWriter,
        *,
        volume_binder: VolumeBinder,
        mps_gate: MpsGate,
        reserves_claims: bool,
        may_write: Callable[[], bool],
        now: Callable[[], str],
        barred: Callable[[str], str] = lambda node: "",
    ) -> None:
        self._client, self._pod_status = client, pod_status
        self._leases, self._claim_writer, self._volume_binder = leases, claim_writer, volume_binder
        self._reserves_claims, self._may_write, self._now = reserves_claims, may_write, now
        self._barred, self._mps_gate = barred, mps_gate
        self._gang_slots = asyncio.Semaphore(GANGS_AT_ONCE)

    async def perform(self, job: BindJob) -> Outcome:
        """Acquire what the job needs and bind its pod; on failure release what was acquired."""
        ready = await self._prepare(job)
        return ready if isinstance(ready, Failed) else await self._finish(ready)

    async def perform_gang(self, gang: str, jobs: Sequence[BindJob]) -> list[Outcome]:
        """Acquire what all jobs need, then bind all pods. If one job cannot go on, release everything. A bind
        cannot be undone, so after the first one the others go on, whatever becomes of it."""
        preparing = (self._prepare(job, self._gang_slots) for job in jobs)
        results = await asyncio.gather(*preparing, return_exceptions=True)
        prepared: list[Ready | Failed] = [
            _judged(job, result) for job, result in zip(jobs, results, strict=True)
        ]
        failed = next((each for each in prepared if isinstance(each, Failed)), None)
        ready = [each for each in prepared if isinstance(each, Ready)]
        if failed is None and self._may_write():
            bound = await asyncio.gather(*map(self._finish_in_turn, ready), return_exceptions=True)
            return [_judged(each.job, result) for each, result in zip(ready, bound, strict=True)]
        await self._release([hold for each in ready for hold in each.holds])
        why = f"{key(failed.job.pod)}: {failed.why}" if failed else "another scheduler leads now"
        return [
            each if isinstance(each, Failed) else Failed(each.job, f"gang {gang}: {why}") for each in prepared
        ]

    async def _finish_in_turn(self, ready: Ready) -> Outcome:
        async with self._gang_slots:
            return await self._finish(ready)

    async def _prepare(
        self, job: BindJob, slots: AbstractAsyncContextManager[None] = NO_SLOTS
    ) -> Ready | Failed:
        """Acquire what the job needs; on failure release what was acquired. `slots` bound how many write
        leases at once."""
        try:
            async with slots:
                job = replace(job, pod=await self._pod_status.latest(job.pod))
                acquired = await self._acquire(job)
            if not acquired.refusals and job.volumes is not None and self._may_write():
                acquired = await self._with_volumes(job, job.volumes, acquired)
            why = "; ".join(acquired.refusals)
            if not why and (folder := _mps_answer(job).get(names.MPS_FOLDER)):
                why = await self._mps_gate.wait(job.placement.node, folder)
            if not why and not self._may_write():
                why = "another scheduler leads now"
            if not why and (barred := self._barred(job.placement.node)):
                # A device plugin's pod came first, or somebody has labelled the node: while we wrote the
                # leases, or in the minutes that volumes took.
                why = f"node {job.placement.node} was closed to claims meanwhile: such nodes {barred}"
            if why:
                await self._release(acquired.holds)
                return Failed(job, why, acquired.found, acquired.is_permanent)
            return Ready(job, acquired.holds)
        except KubeError as error:
            return Failed(job, str(error), is_permanent=_is_permanent(error))

    def stop(self) -> None:
        """Let no job wait for volumes or daemons any longer."""
        self._volume_binder.stop()
        self._mps_gate.stop()

    async def _acquire(self, job: BindJob) -> Acquired:
        """Acquire all leases and the claim at once. If one is refused, the caller releases the others."""
        wanted: list[Coroutine[Any, Any, LeaseHold | HeldByOther | Reserved | Refused]] = []
        if self._leases is not None:
            holder = deviceleases.holder_of(job.pod, job.placement, self._now(), job.queue)
            exclusive = job.placement.exclusive
            wanted += [self._leases.acquire(ref, holder, exclusive=exclusive) for ref in _refs(job)]
        if job.claim is not None and self._reserves_claims:
            wanted.append(self._claim_writer.reserve(job.pod, job.claim))
        results = await _all(wanted)
        refusals = [each.why for each in results if isinstance(each, Refused)]
        refusals += [str(each) for each in results if isinstance(each, KubeError)]
        refusals += [str(each) for each in results if isinstance(each, HeldByOther)]
        return Acquired(
            [each for each in results if isinstance(each, LeaseHold)],
            refusals,
            tuple(each.lease for each in results if isinstance(each, HeldByOther) and each.lease),
            any(map(_is_permanent, results)),
        )

    async def _with_volumes(self, job: BindJob, plan: VolumePlan, acquired: Acquired) -> Acquired:
        """Bind the pod's volumes as well."""
        try:
            failed = await self._volume_binder.bind(job.pod, plan)
        except Exception as error:  # the leases must be released, whatever it was
            log.exception("volumes not bound", pod=key(job.pod))
            failed = Unbound(repr(error))
        if failed is None:
            return acquired
        return replace(acquired, refusals=[failed.why], is_permanent=failed.is_permanent)

    async def _finish(self, ready: Ready) -> Outcome:
        try:
            return await self._bind(ready.job, ready.holds)
        except KubeError as error:
            return Failed(ready.job, str(error), is_permanent=_is_permanent(error))

    async def _bind(self, job: BindJob, holds: list[LeaseHold]) -> Outcome:
        answer = claims.answer(job.placement, job.devices) | _mps_answer(job)
        try:
            await pods.bind(self._client, job.pod, job.placement.node, annotations=answer, at_version=True)
        except (LostAnswer, Unavailable) as error:
            return await self._settle(job, holds, str(error))
        except KubeError as error:  # refused, or the request never reached the server
            await self._release(holds)
            return Failed(job, str(error), is_permanent=_is_permanent(error))
        return Bound(job)

    async def _settle(self, job: BindJob, holds: list[LeaseHold], why: str) -> Outcome:
        """Find out whether a bind without an answer was carried out, or make sure that it never will be."""
        while True:
            try:
                pod = await self._read(job.pod)
                if pod is not None and pod.spec.node_name == job.placement.node:
                    return _bound_here(job, pod, holds)
                if pod is not None and not pod.spec.node_name:
                    why_again = f"the bind to {job.placement.node} had no answer; scheduling again"
                    await self._pod_status.bump_version(pod, why_again)
                break
            except Conflict:
                continue
            except Permanent as error:  # we cannot find out: keep the leases, so that nothing is given twice
                log.error("outcome of a bind unknown, leases kept", pod=key(job.pod), error=str(error))
                return Failed(job, f"{why}; {error}", _leases(holds), is_permanent=True)
            except KubeError as error:
                log.warning("outcome of a bind unknown, asking again", pod=key(job.pod), error=str(error))
                await asyncio.sleep(SETTLE_EVERY_S)
        await self._release(holds)
        return Failed(job, why)

    async def _read(self, pod: Pod) -> Pod | None:
        """Return the pod as it is now; None if it is gone, also if another pod has its name."""
        try:
            found = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return None
        return found if found.metadata.uid == pod.metadata.uid else None

    async def _release(self, holds: list[LeaseHold]) -> None:
        """Release those of the holds that the job made. The sweep finds those that cannot be released now."""
        made = [hold for hold in holds if hold.is_new]
        if self._leases is not None and made:
            results = await _all([self._leases.release(hold) for hold in made])
            for error in results:
                if isinstance(error, KubeError):
                    log.warning("lease not released, the sweep will", error=str(error))


def _judged(job: BindJob, result: T | BaseException) -> T | Failed:
    """Return the result of one job of many, of which each must have one; leases of it may be left."""
    if isinstance(result, Exception):
        log.error("binding failed", pod=key(job.pod), exc_info=result)
        return Failed(job, repr(result))
    if isinstance(result, BaseException):
        raise result
    return result


def _bound_here(job: BindJob, pod: Pod, holds: list[LeaseHold]) -> Outcome:
    """The pod is on the node that we wanted. If its annotation does not say what we wrote, we cannot tell
    whether we have bound it or another scheduler: our leases stay, and say what it holds."""
    if set(claims.given(pod)) == set(job.placement.devices):
        return Bound(job)
    return Failed(
        job, f"the pod is on {pod.spec.node_name} and its annotation is not this scheduler's", _leases(holds)
    )


def _mps_answer(job: BindJob) -> dict[str, str]:
    return sharing.answer(job.pod, job.claim.spec if job.claim else None, job.placement)


def _leases(holds: list[LeaseHold]) -> tuple[Lease, ...]:
    return tuple(hold.lease for hold in holds if hold.lease)


def _is_permanent(result: object) -> bool:
    """Return True for a refusal that will repeat. A conflict will not: the next try reads the object
    again."""
    return isinstance(result, Permanent) and not isinstance(result, Conflict | NotFound)


def _refs(job: BindJob) -> list[DeviceRef]:
    return deviceleases.device_refs(job.placement.node, job.devices)


async def _all(wanted: list[Coroutine[Any, Any, T]]) -> list[T | KubeError]:
    """Return every result, server errors included: one failure must not hide what the others acquired."""
    if len(wanted) == 1:
        return [await _caught(wanted[0])]
    return list(await asyncio.gather(*map(_caught, wanted)))


async def _caught(one: Coroutine[Any, Any, T]) -> T | KubeError:
    try:
        return await one
    except KubeError as error:
        return error
