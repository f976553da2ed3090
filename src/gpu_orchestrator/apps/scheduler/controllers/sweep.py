"""What was left over: on start and every so often, leases, bound pods and claims are compared.

lease of a pod that is bound elsewhere          goes
lease of a pod that is gone                     goes, by the rules of `release`
lease that was met and is not shown             counts no more
lease of an unbound pod that nobody is binding  goes after `wait_s`, the pod touched first
bound pod without its lease                     gets it back; somebody else's lease there is a conflict
bound pod beside a device plugin's              a conflict where they share a device, or nobody can tell
Lease of something else with a device's name    a conflict; the device stays unused as long as it is there
claim                                           looked at by `account`
pod that waits for a reason no longer true      is told the new one
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError, NotFound, Permanent
from gpu_orchestrator.api import deviceleases, translate
from gpu_orchestrator.api.deviceleases import DeviceRef
from gpu_orchestrator.api.kubernetes import PODS, Lease, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.binding.device_leases import (
    DeviceLeases,
    HeldByOther,
    LeaseHold,
    holds,
    obstruction,
)
from gpu_orchestrator.apps.scheduler.controllers.claims import ClaimController
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement

T = TypeVar("T")

RETOLD = 100
BREATH = 100

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SweeperDeps:
    """Those whose work the sweep looks after."""

    coordinator: Coordinator
    account: ClaimController
    releaser: Releaser
    reporter: Reporter
    metrics: Metrics


class Sweeper:
    def __init__(
        self,
        client: Client,
        leases: DeviceLeases | None,
        deps: SweeperDeps,
        *,
        clear: Callable[[Pod], None],
        now: Callable[[], str],
        clock: Callable[[], float],
        wait_s: float,
    ) -> None:
        self._client, self._leases, self._deps = client, leases, deps
        self._clear, self._now, self._clock, self._wait_s = clear, now, clock, wait_s
        self._first_seen: dict[LeaseHold, float] = {}
        self._beside: set[str] = set()

    async def run(self, every_s: float) -> None:
        while True:
            try:
                await self.once()
            except KubeError as error:
                log.warning("sweep interrupted", error=str(error))
            await asyncio.sleep(every_s)

    async def once(self) -> None:
        coordinator, account = self._deps.coordinator, self._deps.account
        if self._leases is not None:
            coordinator.leases.forget_met()
            await self._look_at_all(self._leases)
            async for pod in _breathing(coordinator.our_pods.values()):
                await _past_refusals(self._restore(pod, self._leases), key(pod))
            self._tell_obstructed()
        coordinator.waiting.refresh(RETOLD)
        async for claim in _breathing(coordinator.stores.claims):
            account.check(key(claim))
        before, self._beside = self._beside, set()
        async for pod in _breathing(coordinator.our_pods.values()):
            self._tell_rivals(pod, before)
            account.check_pod(pod)

    async def _look_at_all(self, leases: DeviceLeases) -> None:
        before, self._first_seen = self._first_seen, {}
        async for lease in _breathing(self._deps.coordinator.stores.leases):
            for hold in _of_device(lease):
                await _past_refusals(self._look_at(hold, leases, before), hold.ref.lease)

    async def _look_at(self, hold: LeaseHold, leases: DeviceLeases, before: dict[LeaseHold, float]) -> None:
        coordinator, uid = self._deps.coordinator, hold.holder.uid
        match coordinator.fate(uid):
            case "bound" if not _names(coordinator, hold):
                self._deps.metrics.leaked.inc()
                log.warning("lease of a pod that has its devices elsewhere", lease=hold.ref.lease, uid=uid)
                await leases.release(hold)
            case "waiting" if self._is_old(hold, before):
                self._deps.metrics.leaked.inc()
                self._clear(coordinator.our_pods[uid])
            case "unknown" if uid not in self._deps.releaser and await self._is_gone(hold):
                self._deps.metrics.leaked.inc()
                self._deps.releaser.add(uid, hold.ref.node)

    def _is_old(self, hold: LeaseHold, before: dict[LeaseHold, float]) -> bool:
        """Seen by every sweep for so long. `before` is what the last one saw."""
        since = self._first_seen[hold] = before.get(hold, self._clock())
        return self._clock() - since >= self._wait_s

    async def _is_gone(self, hold: LeaseHold) -> bool:
        """Our watch may not have shown the pod yet; the server knows. A UID never comes back."""
        holder = hold.holder
        if not holder.pod or not holder.namespace:
            return True
        try:
            pod = await self._client.get(PODS, holder.pod, holder.namespace)
        except NotFound:
            return True
        return pod.metadata.uid != holder.uid or pod.status.phase in translate.TERMINAL

    async def _restore(self, pod: Pod, leases: DeviceLeases) -> None:
        placement = self._deps.coordinator.held.get(pod.metadata.uid)
        if placement is None or not pod.spec.node_name:
            return
        for ref in self._missing(pod):
            holder = deviceleases.holder_of(pod, placement, self._now())
            result = await leases.acquire(ref, holder, exclusive=placement.exclusive)
            if isinstance(result, HeldByOther):
                await self._tell_conflict(pod, result)
            else:
                log.warning("bound pod had no lease, restored", pod=key(pod), lease=ref.lease)

    def _missing(self, pod: Pod) -> Iterator[DeviceRef]:
        coordinator = self._deps.coordinator
        placement = coordinator.held.get(pod.metadata.uid)
        held = {lease.metadata.name for lease in coordinator.leases.of(pod.metadata.uid)}
        devices = coordinator.engine.cluster.devices(placement) if placement else ()
        for ref in deviceleases.device_refs(pod.spec.node_name, devices):
            if ref.lease not in held:
                yield ref

    async def _tell_conflict(self, pod: Pod, other: HeldByOther) -> None:
        if other.lease is None:
            return  # it went between two looks; the next sweep sees
        self._deps.metrics.conflicts.inc()
        others = ", ".join(f"{each.namespace}/{each.pod}" for each in deviceleases.holders(other.lease))
        where = f"device {other.ref.device} of {other.ref.node}"
        self._deps.reporter.conflict(
            pod, f"{where} was given to this pod, and its lease is held by {others}; delete one of the pods"
        )

    def _tell_rivals(self, pod: Pod, before: set[str]) -> None:
        """Whoever places a device plugin's pods knows nothing of claims, and may come at any moment. What two
        sweeps saw is told: an agent needs a moment to say which devices such a pod took."""
        coordinator, uid = self._deps.coordinator, pod.metadata.uid
        placement = coordinator.held.get(uid)
        why = coordinator.nodes.rivals(placement.node, placement.devices) if placement else ""
        if placement is None or not placement.devices or not why:
            return
        self._beside.add(uid)
        if uid in before:
            self._deps.metrics.conflicts.inc()
            given = f"devices {','.join(map(str, placement.devices))} of {placement.node}"
            self._deps.reporter.conflict(
                pod, f"this pod has {given}: {why}; keep the two kinds of pods apart"
            )

    def _tell_obstructed(self) -> None:
        coordinator = self._deps.coordinator
        for ref in filter(None, map(deviceleases.obstructed, coordinator.stores.leases)):
            if coordinator.engine.cluster.devices(Placement("", ref.node, devices=(ref.device,))):
                self._deps.metrics.conflicts.inc()
                log.error("device unused", why=obstruction(ref))


async def _breathing(all_of: Iterable[T]) -> AsyncIterator[T]:
    """Each of those that are there now, and turns for others in between: a full cluster has tens of thousands
    of leases, and no bind shall wait until all of them were looked at."""
    for number, each in enumerate(list(all_of), 1):
        yield each
        if number % BREATH == 0:
            await asyncio.sleep(0)


async def _past_refusals(look: Coroutine[Any, Any, None], at: str) -> None:
    """What the server refuses for one must not keep the sweep from the others. One that is away or has too
    much to do ends the sweep."""
    try:
        await look
    except Permanent as error:
        log.warning("left as it is, the next sweep looks again", at=at, error=str(error))


def _of_device(lease: Lease) -> list[LeaseHold]:
    return holds(lease) if deviceleases.is_device(lease) else []


def _names(coordinator: Coordinator, hold: LeaseHold) -> bool:
    placement = coordinator.held.get(hold.holder.uid)
    return placement is not None and placement.node == hold.ref.node and hold.ref.device in placement.devices
