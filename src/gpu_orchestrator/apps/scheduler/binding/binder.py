"""One decision carried out: the devices' leases and the pod's claim, then the binding, in that order.

    acquire all ──▶ bind at the pod's version ──▶ Bound
        │ taken          │ refused: read the pod again; it has its place, or our leases go back
        ▼                │ answer lost: touch the pod until it is certain, then the same
      Failed ◀───────────┘

Called by `work` for every `Place` of the engine; many at once. The version in the bind was read before the
leases were acquired, so whoever takes one of them away and touches the pod first makes this bind fail.
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
    """What the guards answered: `holds` are ours; with `refusals` the job cannot go on, and `found` are the
    leases of other holders among them."""

    holds: list[LeaseHold]
    refusals: list[str]
    found: tuple[Lease, ...] = ()


class Binder:
    """`may_write` says whether we still lead; `leases` is None where the binding alone is the lock.
    `keeps_claims`: claims are kept for their pod before it is bound, as they must be where others decide,
    too; a single leader knows by itself which claims it has given, and writes that down later."""

    def __init__(
        self,
        client: Client,
        pods: PodStatusWriter,
        leases: DeviceLeases | None,
        claims: ClaimWriter,
        *,
        keeps_claims: bool,
        may_write: Callable[[], bool],
        now: Callable[[], str],
    ) -> None:
        self._client, self._pods, self._leases, self._claims = client, pods, leases, claims
        self._keeps_claims, self._may_write, self._now = keeps_claims, may_write, now

    async def perform(self, job: BindJob) -> Outcome:
        try:
            job = replace(job, pod=await self._pods.latest(job.pod))
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
        """Ask all guards at once. If one refuses, the caller gives back what the others granted."""
        wanted: list[Coroutine[Any, Any, LeaseHold | HeldByOther | Reserved | Refused]] = []
        if self._leases is not None:
            holder = deviceleases.holder_of(job.pod, job.placement, self._now())
            exclusive = job.placement.exclusive
            wanted += [self._leases.acquire(ref, holder, exclusive=exclusive) for ref in _refs(job)]
        if job.claim is not None and self._keeps_claims:
            wanted.append(self._claims.reserve(job.pod, job.claim))
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
        except KubeError as error:  # it never reached the server
            await self._release(holds)
            return Failed(job, str(error))
        return Bound(job)

    async def _refused(self, job: BindJob, holds: list[LeaseHold], why: str) -> Outcome:
        """The server said no, so this bind has not happened. Another's may have."""
        pod = await self._read(job.pod)
        if pod is None or not pod.spec.node_name:
            await self._release(holds)
            return Failed(job, why)
        return await self._keep_named(job, pod, holds)

    async def _settle(self, job: BindJob, holds: list[LeaseHold], why: str) -> Outcome:
        """Nobody knows whether the bind was or will be carried out. Find out, or see that it cannot be."""
        while True:
            try:
                pod = await self._read(job.pod)
                if pod is None:
                    break
                if pod.spec.node_name:
                    return await self._keep_named(job, pod, holds)
                await self._pods.touch(pod, f"the bind to {job.placement.node} had no answer; deciding anew")
                break
            except Conflict:
                continue
            except KubeError as error:
                log.warning("outcome of a bind unknown, asking again", pod=key(job.pod), error=str(error))
                await asyncio.sleep(SETTLE_EVERY_S)
        await self._release(holds)
        return Failed(job, why)

    async def _keep_named(self, job: BindJob, pod: Pod, holds: list[LeaseHold]) -> Outcome:
        """The pod has its place: leases its annotation names stay, ours that it does not name go."""
        named = {(pod.spec.node_name, device) for device in claims.given(pod)}
        await self._release([hold for hold in holds if (hold.ref.node, hold.ref.device) not in named])
        if named == {(ref.node, ref.device) for ref in _refs(job)}:
            return Bound(job)
        return Failed(job, f"the pod was bound to {pod.spec.node_name} by another scheduler")

    async def _read(self, pod: Pod) -> Pod | None:
        """The pod as it is now; None when it is gone, also if another has its name."""
        try:
            found = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return None
        return found if found.metadata.uid == pod.metadata.uid else None

    async def _release(self, holds: list[LeaseHold]) -> None:
        """What cannot be given back now is found by the sweep."""
        if self._leases is not None and holds:
            results = await _all([self._leases.release(hold) for hold in holds])
            for error in results:
                if isinstance(error, KubeError):
                    log.warning("lease not released, the sweep will", error=str(error))


def _refs(job: BindJob) -> list[DeviceRef]:
    return deviceleases.device_refs(job.placement.node, job.devices)


async def _all(wanted: list[Coroutine[Any, Any, T]]) -> list[T | KubeError]:
    """Every result, errors of the server among them: one that failed must not hide what others acquired."""
    if len(wanted) == 1:
        return [await _caught(wanted[0])]
    return list(await asyncio.gather(*map(_caught, wanted)))


async def _caught(one: Coroutine[Any, Any, T]) -> T | KubeError:
    try:
        return await one
    except KubeError as error:
        return error
