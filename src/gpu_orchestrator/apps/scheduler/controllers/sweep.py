"""Compare leases, bound pods and claims, at start and at intervals, and repair leftovers.

lease of a pod that is bound elsewhere           released
lease of a pod that is gone                      released by the rules of `controllers/release`
lease from a failed acquire, not in the watch    not counted any more
lease of an unbound pod that is not being bound  released after `wait_s`, with a write to the pod first
bound pod without its lease                      gets it back; a lease of another holder is a conflict
bound pod beside a device plugin's pod           a conflict if they share a device, or may share one
unrelated Lease with a device lease's name       a conflict; the device stays unused while it exists
claim                                            checked by `controllers/claims`
pending pod whose reason has changed             reported with the new reason
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError, NotFound, Permanent
from gpu_orchestrator.api import deviceleases, names, translate
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

MAX_REFRESHED = 100
YIELD_EVERY = 100

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SweeperDeps:
    """The parts that the sweep reads and calls."""

    coordinator: Coordinator
    claim_controller: ClaimController
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
        clear_leases: Callable[[Pod], None],
        now: Callable[[], str],
        clock: Callable[[], float],
        wait_s: float,
    ) -> None:
        self._client, self._leases, self._deps = client, leases, deps
        self._clear_leases, self._now, self._clock, self._wait_s = clear_leases, now, clock, wait_s
        self._first_seen: dict[LeaseHold, float] = {}
        self._plugin_conflicts: set[str] = set()

    async def run(self, every_s: float) -> None:
        while True:
            try:
                await self.once()
            except KubeError as error:
                log.warning("sweep interrupted", error=str(error))
            await asyncio.sleep(every_s)

    async def once(self) -> None:
        coordinator, claim_controller = self._deps.coordinator, self._deps.claim_controller
        if self._leases is not None:
            coordinator.lease_index.forget_found()
            await self._check_leases(self._leases)
            async for pod in _yielding(coordinator.our_pods.values()):
                await _skip_if_refused(self._restore(pod, self._leases), key(pod))
            self._report_obstructed()
        coordinator.pending.refresh(MAX_REFRESHED)
        async for claim in _yielding(coordinator.stores.claims):
            claim_controller.check(key(claim))
        before, self._plugin_conflicts = self._plugin_conflicts, set()
        async for pod in _yielding(coordinator.our_pods.values()):
            self._report_plugin_conflict(pod, before)
            claim_controller.check_pod(pod)

    async def _check_leases(self, leases: DeviceLeases) -> None:
        before, self._first_seen = self._first_seen, {}
        async for lease in _yielding(self._deps.coordinator.stores.leases):
            for hold in _device_holds(lease):
                await _skip_if_refused(self._check_hold(hold, leases, before), hold.ref.lease)

    async def _check_hold(
        self, hold: LeaseHold, leases: DeviceLeases, before: dict[LeaseHold, float]
    ) -> None:
        coordinator, uid = self._deps.coordinator, hold.holder.uid
        match coordinator.state_of(uid):
            case "bound" if not _is_placed_on(coordinator, hold):
                self._deps.metrics.leaked.inc()
                log.warning("lease of a pod that has its devices elsewhere", lease=hold.ref.lease, uid=uid)
                await leases.release(hold)
            case "pending" if self._is_old(hold, before):
                self._deps.metrics.leaked.inc()
                self._clear_leases(coordinator.our_pods[uid])
            case "unknown" if uid not in self._deps.releaser and await self._has_ended(hold):
                self._deps.metrics.leaked.inc()
                self._deps.releaser.add(uid, hold.ref.node)

    def _is_old(self, hold: LeaseHold, before: dict[LeaseHold, float]) -> bool:
        """Return True if every sweep for `wait_s` saw this hold. `before` is what the last sweep saw."""
        since = self._first_seen[hold] = before.get(hold, self._clock())
        return self._clock() - since >= self._wait_s

    async def _has_ended(self, hold: LeaseHold) -> bool:
        """Ask the API server: our watch may not have shown the pod yet. A UID is never used again."""
        holder = hold.holder
        if not names.is_object_name(holder.pod) or not names.is_object_name(holder.namespace):
            return True
        try:
            pod = await self._client.get(PODS, holder.pod, holder.namespace)
        except NotFound:
            return True
        return pod.metadata.uid != holder.uid or pod.status.phase in translate.TERMINAL

    async def _restore(self, pod: Pod, leases: DeviceLeases) -> None:
        placement = self._deps.coordinator.holdings.get(pod.metadata.uid)
        if placement is None or not pod.spec.node_name:
            return
        for ref in self._missing_leases(pod):
            holder = deviceleases.holder_of(pod, placement, self._now())
            result = await leases.acquire(ref, holder, exclusive=placement.exclusive)
            if isinstance(result, HeldByOther):
                await self._report_conflict(pod, result)
            else:
                log.warning("bound pod had no lease, restored", pod=key(pod), lease=ref.lease)

    def _missing_leases(self, pod: Pod) -> Iterator[DeviceRef]:
        coordinator = self._deps.coordinator
        placement = coordinator.holdings.get(pod.metadata.uid)
        held = {lease.metadata.name for lease in coordinator.lease_index.of(pod.metadata.uid)}
        devices = coordinator.engine.cluster.devices(placement) if placement else ()
        for ref in deviceleases.device_refs(pod.spec.node_name, devices):
            if ref.lease not in held:
                yield ref

    async def _report_conflict(self, pod: Pod, other: HeldByOther) -> None:
        if other.lease is None:
            return  # it was deleted between two reads; the next sweep tries again
        self._deps.metrics.conflicts.inc()
        others = ", ".join(f"{each.namespace}/{each.pod}" for each in deviceleases.holders(other.lease))
        where = f"device {other.ref.device} of {other.ref.node}"
        self._deps.reporter.report_conflict(
            pod, f"{where} was given to this pod, but its lease is held by {others}; delete one of the pods"
        )

    def _report_plugin_conflict(self, pod: Pod, before: set[str]) -> None:
        """Report a device plugin's pod that uses, or may use, a claimed pod's devices. kube-scheduler ignores
        claims, so such a pod can land there at any time. Report conflicts that two consecutive sweeps saw: an
        agent needs a moment to report which devices the pod uses."""
        coordinator, uid = self._deps.coordinator, pod.metadata.uid
        placement = coordinator.holdings.get(uid)
        why = coordinator.nodes.plugin_conflict(placement.node, placement.devices) if placement else ""
        if placement is None or not placement.devices or not why:
            return
        self._plugin_conflicts.add(uid)
        if uid in before:
            self._deps.metrics.conflicts.inc()
            given = f"devices {','.join(map(str, placement.devices))} of {placement.node}"
            self._deps.reporter.report_conflict(
                pod, f"this pod has {given}: {why}; keep the two kinds of pods apart"
            )

    def _report_obstructed(self) -> None:
        coordinator = self._deps.coordinator
        for ref in filter(None, map(deviceleases.obstructed, coordinator.stores.leases)):
            if coordinator.engine.cluster.devices(Placement("", ref.node, devices=(ref.device,))):
                self._deps.metrics.conflicts.inc()
                log.error("device unused", why=obstruction(ref))


async def _yielding(all_of: Iterable[T]) -> AsyncIterator[T]:
    """Yield each item of a copy, and let other tasks run in between: a full cluster has tens of thousands of
    leases, and no bind must wait until all of them are checked."""
    for number, each in enumerate(list(all_of), 1):
        yield each
        if number % YIELD_EVERY == 0:
            await asyncio.sleep(0)


async def _skip_if_refused(step: Coroutine[Any, Any, None], at: str) -> None:
    """Go on to the next object if the API server refuses this one. If the server is unavailable or
    overloaded, the error ends the sweep."""
    try:
        await step
    except Permanent as error:
        log.warning("left as it is, the next sweep looks again", at=at, error=str(error))


def _device_holds(lease: Lease) -> list[LeaseHold]:
    return holds(lease) if deviceleases.is_device(lease) else []


def _is_placed_on(coordinator: Coordinator, hold: LeaseHold) -> bool:
    placement = coordinator.holdings.get(hold.holder.uid)
    return placement is not None and placement.node == hold.ref.node and hold.ref.device in placement.devices
