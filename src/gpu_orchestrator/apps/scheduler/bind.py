"""One decision carried out: the devices' leases and the pod's claim, then the binding, in that order.

    acquire all ──▶ bind at the pod's version ──▶ Bound
        │ taken          │ refused: read the pod again; it has its place, or our leases go back
        ▼                │ answer lost: touch the pod until it is certain, then the same
      Failed ◀───────────┘

Called by the desk for every `Place` of the engine; many at once. The version in the bind was read before the
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
from gpu_orchestrator.api import claims
from gpu_orchestrator.api.deviceleases import Holder, Spot
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.claims import Claims
from gpu_orchestrator.apps.scheduler.leases import Grip, Leases, Taken
from gpu_orchestrator.apps.scheduler.touch import Touch
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device

T = TypeVar("T")

SETTLE_EVERY_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine decided, with all that is needed to do it. `claim` is the claim or template that the
    pod names; None when it asked for bare GPUs."""

    pod: Pod
    placement: Placement
    devices: tuple[Device, ...]
    claim: GpuClaim | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    job: Job


@dataclass(frozen=True, slots=True)
class Failed:
    """`taken` are devices that turned out to be somebody else's."""

    job: Job
    why: str
    taken: tuple[Taken, ...] = ()


Outcome = Bound | Failed


class Binder:
    """`may_write` says whether we still lead; `leases` is None where the binding alone is the lock.
    `keeps_claims`: claims are kept for their pod before it is bound, as they must be where others decide,
    too; a single leader knows by itself which claims it has given, and writes that down later."""

    def __init__(
        self,
        client: Client,
        pods: Touch,
        leases: Leases | None,
        claims: Claims,
        *,
        keeps_claims: bool,
        may_write: Callable[[], bool],
        now: Callable[[], str],
    ) -> None:
        self._client, self._pods, self._leases, self._claims = client, pods, leases, claims
        self._keeps_claims, self._may_write, self._now = keeps_claims, may_write, now

    async def perform(self, job: Job) -> Outcome:
        try:
            job = replace(job, pod=await self._pods.latest(job.pod))
            grips, why, taken = await self._acquire(job)
            if not why and not self._may_write():
                why = "another scheduler leads now"
            if why:
                await self._release(grips)
                return Failed(job, why, taken)
            return await self._bind(job, grips)
        except KubeError as error:
            return Failed(job, str(error))

    async def _acquire(self, job: Job) -> tuple[list[Grip], str, tuple[Taken, ...]]:
        """All guards at once. What could not be had is said in words; what was had is given back by the
        caller."""
        wanted: list[Coroutine[Any, Any, Grip | Taken | str | None]] = []
        if self._leases is not None:
            holder, exclusive = self._holder(job), job.placement.exclusive
            wanted += [self._leases.acquire(spot, holder, exclusive=exclusive) for spot in spots(job)]
        if job.claim is not None and self._keeps_claims:
            wanted.append(self._claims.reserve(job.pod, job.claim))
        results = await _all(wanted)
        grips = [each for each in results if isinstance(each, Grip)]
        taken = tuple(each for each in results if isinstance(each, Taken))
        reasons = [each for each in results if isinstance(each, str)]
        reasons += [str(each) for each in results if isinstance(each, KubeError)]
        reasons += [str(each) for each in taken]
        return grips, "; ".join(reasons), taken

    def _holder(self, job: Job) -> Holder:
        meta, given = job.pod.metadata, job.placement
        if given.exclusive:
            return Holder(meta.uid, meta.name, meta.namespace, since=self._now())
        return Holder(meta.uid, meta.name, meta.namespace, given.milli, given.memory_mib, self._now())

    async def _bind(self, job: Job, grips: list[Grip]) -> Outcome:
        answer = claims.answer(job.placement, job.devices)
        try:
            await pods.bind(self._client, job.pod, job.placement.node, annotations=answer, at_version=True)
        except (LostAnswer, Unavailable) as error:
            return await self._settle(job, grips, str(error))
        except ApiError as error:
            return await self._refused(job, grips, str(error))
        except KubeError as error:  # it never reached the server
            await self._release(grips)
            return Failed(job, str(error))
        return Bound(job)

    async def _refused(self, job: Job, grips: list[Grip], why: str) -> Outcome:
        """The server said no, so this bind has not happened. Another's may have."""
        pod = await self._read(job.pod)
        if pod is None or not pod.spec.node_name:
            await self._release(grips)
            return Failed(job, why)
        return await self._keep_named(job, pod, grips)

    async def _settle(self, job: Job, grips: list[Grip], why: str) -> Outcome:
        """Nobody knows whether the bind was or will be carried out. Find out, or see that it cannot be."""
        while True:
            try:
                pod = await self._read(job.pod)
                if pod is None:
                    break
                if pod.spec.node_name:
                    return await self._keep_named(job, pod, grips)
                await self._pods.touch(pod, f"the bind to {job.placement.node} had no answer; deciding anew")
                break
            except Conflict:
                continue
            except KubeError as error:
                log.warning("outcome of a bind unknown, asking again", pod=key(job.pod), error=str(error))
                await asyncio.sleep(SETTLE_EVERY_S)
        await self._release(grips)
        return Failed(job, why)

    async def _keep_named(self, job: Job, pod: Pod, grips: list[Grip]) -> Outcome:
        """The pod has its place: leases its annotation names stay, ours that it does not name go."""
        named = {(pod.spec.node_name, device) for device in claims.given(pod)}
        await self._release([grip for grip in grips if (grip.spot.node, grip.spot.device) not in named])
        if named == {(spot.node, spot.device) for spot in spots(job)}:
            return Bound(job)
        return Failed(job, f"the pod was bound to {pod.spec.node_name} by another scheduler")

    async def _read(self, pod: Pod) -> Pod | None:
        """The pod as it is now; None when it is gone, also if another has its name."""
        try:
            found = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        except NotFound:
            return None
        return found if found.metadata.uid == pod.metadata.uid else None

    async def _release(self, grips: list[Grip]) -> None:
        """What cannot be given back now is found by the sweep."""
        if self._leases is not None and grips:
            results = await _all([self._leases.release(grip) for grip in grips])
            for error in results:
                if isinstance(error, KubeError):
                    log.warning("lease not released, the sweep will", error=str(error))


def spots(job: Job) -> list[Spot]:
    node = job.placement.node
    return [Spot(node, device.id, device.uuid, device.memory_mib) for device in job.devices]


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
