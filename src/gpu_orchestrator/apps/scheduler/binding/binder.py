"""Carry out one decision: acquire the devices' leases and the pod's claim, then bind, in that order.

    acquire all ──▶ bind at the pod's version ──▶ Bound
        │ held by        │ refused: read the pod again; it is bound, or we release our leases
        ▼ another        │ answer lost: move the pod's version until the result is certain, then the same
      Failed ◀───────────┘

The executor calls it for every `Place` of the engine, many at once. The version in the bind was read before
the leases were acquired. So a scheduler that takes one of them away must first write to the pod, and that
makes this bind fail.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from gpu_orchestrator.adapters.kube import pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import (
    ApiError,
    Conflict,
    KubeError,
    LostAnswer,
    NotFound,
    Unavailable,
)
from gpu_orchestrator.api import claims, deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef
from gpu_orchestrator.api.kubernetes import PODS, Lease, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound, Failed, Outcome
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter, Refused, Reserved
from gpu_orchestrator.apps.scheduler.binding.device_leases import DeviceLeases, HeldByOther, LeaseHold
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter

T = TypeVar("T")

SETTLE_EVERY_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Acquired:
    """The results of acquiring leases and claim. `holds` are ours. With `refusals` the job cannot go on;
    `found` are the leases of other holders that caused some of them."""

    holds: list[LeaseHold]
    refusals: list[str]
    found: tuple[Lease, ...] = ()


class Binder:
    """`may_write` returns True while we lead; `leases` is None if the binding alone is the lock.
    `reserves_claims`: reserve the claim before the bind, as is necessary when several schedulers decide. A
    single leader knows which claims it has assigned, and writes the reservation later."""

    def __init__(
        self,
        client: Client,
        pod_status: PodStatusWriter,
        leases: DeviceLeases | None,
        claim_writer: ClaimWriter,
        *,
        reserves_claims: bool,
        may_write: Callable[[], bool],
        now: Callable[[], str],
    ) -> None:
        self._client, self._pod_status = client, pod_status
        self._leases, self._claim_writer = leases, claim_writer
        self._reserves_claims, self._may_write, self._now = reserves_claims, may_write, now

    async def perform(self, job: BindJob) -> Outcome:
        """Acquire what the job needs and bind its pod; on failure release what was acquired."""
        try:
            job = replace(job, pod=await self._pod_status.latest(job.pod))
            acquired = await self._acquire(job)
            why = "; ".join(acquired.refusals)
            if not why and not self._may_write():
                why = "another scheduler leads now"
            if why:
                await self._release(acquired.holds)
                return Failed(job, why, acquired.found)
            return await self._bind(job, acquired.holds)
        except KubeError as error:
            return Failed(job, str(error))

    async def _acquire(self, job: BindJob) -> Acquired:
        """Acquire all leases and the claim at once. If one is refused, the caller releases the others."""
        wanted: list[Coroutine[Any, Any, LeaseHold | HeldByOther | Reserved | Refused]] = []
        if self._leases is not None:
            holder = deviceleases.holder_of(job.pod, job.placement, self._now())
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
        )

    async def _bind(self, job: BindJob, holds: list[LeaseHold]) -> Outcome:
        answer = claims.answer(job.placement, job.devices)
        try:
            await pods.bind(self._client, job.pod, job.placement.node, annotations=answer, at_version=True)
        except (LostAnswer, Unavailable) as error:
            return await self._settle(job, holds, str(error))
        except ApiError as error:
            return await self._refused(job, holds, str(error))
        except KubeError as error:  # the request never reached the server
            await self._release(holds)
            return Failed(job, str(error))
        return Bound(job)

    async def _refused(self, job: BindJob, holds: list[LeaseHold], why: str) -> Outcome:
        """The server refused this bind. Another scheduler's bind may have succeeded."""
        pod = await self._read(job.pod)
        if pod is None or not pod.spec.node_name:
            await self._release(holds)
            return Failed(job, why)
        return await self._keep_named(job, pod, holds)

    async def _settle(self, job: BindJob, holds: list[LeaseHold], why: str) -> Outcome:
        """Find out whether a bind without an answer was carried out, or make sure that it never will be."""
        while True:
            try:
                pod = await self._read(job.pod)
                if pod is None:
                    break
                if pod.spec.node_name:
                    return await self._keep_named(job, pod, holds)
                why_again = f"the bind to {job.placement.node} had no answer; scheduling again"
                await self._pod_status.bump_version(pod, why_again)
                break
            except Conflict:
                continue
            except KubeError as error:
                log.warning("outcome of a bind unknown, asking again", pod=key(job.pod), error=str(error))
                await asyncio.sleep(SETTLE_EVERY_S)
        await self._release(holds)
        return Failed(job, why)

    async def _keep_named(self, job: BindJob, pod: Pod, holds: list[LeaseHold]) -> Outcome:
        """Keep those of our leases that the bound pod's annotation names, and release the others."""
        named = {(pod.spec.node_name, device) for device in claims.given(pod)}
        await self._release([hold for hold in holds if (hold.ref.node, hold.ref.device) not in named])
        if named == {(ref.node, ref.device) for ref in _refs(job)}:
            return Bound(job)
        return Failed(job, f"the pod was bound to {pod.spec.node_name} by another scheduler")

    async def _read(self, pod: Pod) -> Pod | None:
        """Return the pod as it is now; None if it is gone, also if another pod has its name."""
        try:
            found = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return None
        return found if found.metadata.uid == pod.metadata.uid else None

    async def _release(self, holds: list[LeaseHold]) -> None:
        """Release these holds. The sweep finds those that cannot be released now."""
        if self._leases is not None and holds:
            results = await _all([self._leases.release(hold) for hold in holds])
            for error in results:
                if isinstance(error, KubeError):
                    log.warning("lease not released, the sweep will", error=str(error))


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
