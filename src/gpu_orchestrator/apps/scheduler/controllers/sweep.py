"""Compare leases, bound pods and claims, at start and at intervals, and repair leftovers.

lease of a live pod that it certainly lacks      released: it is on another node, or we bound it elsewhere
any other lease of a live bound pod              kept, whatever the pod's annotation says
lease of a pod that is gone                      released by the rules of `controllers/release`
lease from a failed acquire, not in the watch    not counted any more
lease of an unbound pod that is not being bound  released after `wait_s`, with a write to the pod first
lost lease of a bound pod                        restored; a lease of another holder is a conflict
lease deleted while no scheduler ran             restored if the pod's claim, or its annotation where policies
                                                 guard that, says that the pod has the device
bound pod with another annotation than leases    a conflict; the leases count
bound pod beside a device plugin's pod           a conflict if they share a device, or may share one
unrelated Lease with a device lease's name       a conflict; the device stays unused while it exists
GPU that two nodes report                        a conflict; one of them does not give it
claim                                            checked by `controllers/claims`
pending pod whose reason has changed             reported with the new reason
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError, NotFound, Permanent
from gpu_orchestrator.api import claims, deviceleases, names, translate
from gpu_orchestrator.api.deviceleases import Hold
from gpu_orchestrator.api.kubernetes import PODS, Lease, Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.binding.device_leases import (
    DeviceLeases,
    HeldByOther,
    LeaseHold,
    holds,
    obstruction,
)
from gpu_orchestrator.apps.scheduler.controllers.claims import ClaimController, claim_key
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.controllers.reporter import Reporter
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device

T = TypeVar("T")

MAX_REFRESHED = 100
RESTORERS = 8

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
        self._disputed: dict[str, tuple[str | None, bool]] = {}
        self._duplicates: dict[str, dict[int, str]] = {}

    async def run(self, every_s: float) -> None:
        while True:
            try:
                await self.once()
            except KubeError as error:
                log.warning("sweep interrupted", error=str(error))
            except Exception:  # the edge of the loop: the next sweep starts again
                self._deps.metrics.error("sweep")
                log.exception("sweep failed")
            await asyncio.sleep(every_s)

    async def once(self) -> None:
        coordinator, breath = self._deps.coordinator, Breath(self._clock)
        coordinator.nodes.recount_silent()
        if self._leases is not None:
            coordinator.lease_index.forget_found()
            await self._check_leases(self._leases, breath)
            disputed, self._disputed = self._disputed, {}
            missing: dict[str, list[tuple[Pod, Hold]]] = {}
            async for pod in _breathing(coordinator.our_pods.values(), breath):
                await self._one(_done(self._find_missing, pod, missing), key(pod))
                await self._one(_done(self._report_dispute, pod, disputed), key(pod))
            await self._restore(missing, self._leases)
            self._report_obstructed()
        self._report_duplicates()
        coordinator.recheck_capacity()
        await breath.through(coordinator.pending.refresh(MAX_REFRESHED))
        checked: set[str] = set()
        async for claim in _breathing(coordinator.stores.claims, breath):
            await self._one(_done(self._check_claim, key(claim), checked), key(claim))
        before, self._plugin_conflicts = self._plugin_conflicts, set()
        async for pod in _breathing(coordinator.our_pods.values(), breath):
            await self._one(_done(self._report_plugin_conflict, pod, before), key(pod))
            await self._one(_done(self._check_claim_of, pod, checked), key(pod))

    async def _one(self, step: Coroutine[Any, Any, None], at: str) -> None:
        """Go on to the next object if the API server refuses this one, or if it breaks our code. If the
        server is unavailable or overloaded, the error ends the sweep."""
        try:
            await step
        except Permanent as error:
            log.warning("left as it is, the next sweep looks again", at=at, error=str(error))
        except KubeError:
            raise
        except Exception:  # the edge of one object: what a user wrote must not end the sweep of all others
            self._deps.metrics.error("sweep")
            log.exception("object could not be checked", at=at)

    def _check_claim_of(self, pod: Pod, checked: set[str]) -> None:
        """Check the claim of a bound pod unless that was done: it may have to be made from its template."""
        if pod.spec.node_name and (name := claim_key(pod)) and name not in checked:
            self._check_claim(name, checked)

    def _check_claim(self, name: str, checked: set[str]) -> None:
        """Check a claim, once: that looks at all the pods that name it."""
        checked.add(name)
        self._deps.claim_controller.check(name)

    async def _check_leases(self, leases: DeviceLeases, breath: Breath) -> None:
        before, self._first_seen = self._first_seen, {}
        async for lease in _breathing(self._deps.coordinator.stores.leases, breath):
            await self._one(self._check_lease(lease, leases, before), lease.metadata.name)

    async def _check_lease(self, lease: Lease, leases: DeviceLeases, before: dict[LeaseHold, float]) -> None:
        for hold in holds(lease):
            await self._one(self._check_hold(hold, leases, before), hold.ref.lease)

    async def _check_hold(
        self, hold: LeaseHold, leases: DeviceLeases, before: dict[LeaseHold, float]
    ) -> None:
        coordinator, uid = self._deps.coordinator, hold.holder.uid
        match coordinator.state_of(uid):
            case "bound" if coordinator.holdings.is_leftover(uid, hold.ref):
                self._deps.metrics.leaked.inc()
                log.warning("lease of a pod that has its devices elsewhere", lease=hold.ref.lease, uid=uid)
                await leases.release(hold)
            case "pending" if self._is_old(hold, before):
                self._deps.metrics.leaked.inc()
                self._clear_leases(coordinator.our_pods[uid])
            case "unknown" if uid not in self._deps.releaser and await self._has_ended(hold):
                self._deps.metrics.leaked.inc()
                pod = f"{hold.holder.namespace}/{hold.holder.pod}"
                self._deps.releaser.add(uid, hold.ref.node, pod)

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

    def _find_missing(self, pod: Pod, missing: dict[str, list[tuple[Pod, Hold]]]) -> None:
        """Add the leases that a bound pod has lost, as far as we know them from our own binding or from the
        leases themselves."""
        bound = self._deps.coordinator.holdings.get(pod.metadata.uid)
        if bound is not None and pod.spec.node_name:
            for hold in self._missing(pod, bound):
                missing.setdefault(hold.ref.lease, []).append((pod, hold))

    async def _restore(self, missing: dict[str, list[tuple[Pod, Hold]]], leases: DeviceLeases) -> None:
        """Restore several leases at once, since all of them may be lost; each lease's holders in turn."""
        waiting = iter(missing.values())

        async def restore() -> None:
            for of_lease in waiting:
                for pod, hold in of_lease:
                    await self._one(self._restore_hold(pod, hold, leases), key(pod))

        ended = await asyncio.gather(*(restore() for _ in range(RESTORERS)), return_exceptions=True)
        if error := next((each for each in ended if each is not None), None):
            raise error

    async def _restore_hold(self, pod: Pod, hold: Hold, leases: DeviceLeases) -> None:
        if pod.metadata.uid not in self._deps.coordinator.holdings:
            return  # it has ended meanwhile
        result = await leases.acquire(hold.ref, hold.holder, exclusive=hold.exclusive)
        if isinstance(result, HeldByOther):
            await self._report_conflict(pod, result)
        else:
            log.warning("bound pod had no lease, restored", pod=key(pod), lease=hold.ref.lease)

    def _missing(self, pod: Pod, bound: Placement) -> list[Hold]:
        """Return the holds of a bound pod that no lease shows. They carry the time of those that are left:
        all leases of a pod must look as one attempt's."""
        coordinator, uid = self._deps.coordinator, pod.metadata.uid
        held, lost = coordinator.lease_index.holds(uid), coordinator.lease_index.lost(uid)
        leased = {hold.ref.device for hold in held if hold.ref.node == bound.node}
        since = next((hold.holder.since for hold in held if hold.ref.node == bound.node), self._now())
        holder = deviceleases.holder_of(pod, bound, since, coordinator.queues.of_bound(uid))
        missing = [(each, holder, bound.exclusive) for each in bound.devices if each not in leased]
        missing += [(each.ref.device, each.holder, each.exclusive) for each in lost]
        by_id = {device.id: device for device in self._devices(bound.node, [each[0] for each in missing])}
        return [
            Hold(deviceleases.device_refs(bound.node, [by_id[device]])[0], holder, exclusive)
            for device, holder, exclusive in missing
            if device in by_id
        ]

    def _devices(self, node: str, ids: Iterable[int]) -> tuple[Device, ...]:
        return self._deps.coordinator.engine.cluster.devices(Placement("", node, devices=tuple(ids)))

    def _report_dispute(self, pod: Pod, before: dict[str, tuple[str | None, bool]]) -> None:
        """Report a bound pod whose annotation names other devices than it holds, once for each annotation,
        if two consecutive sweeps saw it: the watches of pods and leases do not move together."""
        uid, text = pod.metadata.uid, pod.metadata.annotations.get(names.ALLOCATED, "")
        bound, held = (
            self._deps.coordinator.holdings.get(uid),
            self._deps.coordinator.holdings.devices_of(uid),
        )
        if bound is None or set(claims.given(pod)) == set(held):
            return
        seen, is_reported = before.get(uid, (None, False))
        self._disputed[uid] = text, seen == text
        if seen == text and not is_reported:
            self._deps.metrics.conflicts.inc()
            has = f"devices {','.join(map(str, held))} of {bound.node}" if held else "no device"
            shown = claims.shortened(text) or "nothing"
            self._deps.reporter.report_conflict(
                pod,
                f"its annotation {names.ALLOCATED} says {shown}; by its leases it has {has}, which counts",
            )

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
        placement, devices = coordinator.holdings.get(uid), coordinator.holdings.devices_of(uid)
        if placement is None or not devices:
            return
        if not (why := coordinator.nodes.plugin_conflict(placement.node, devices)):
            return
        self._plugin_conflicts.add(uid)
        if uid in before:
            self._deps.metrics.conflicts.inc()
            given = f"devices {','.join(map(str, devices))} of {placement.node}"
            self._deps.reporter.report_conflict(
                pod, f"this pod has {given}: {why}; keep the two kinds of pods apart"
            )

    def _report_duplicates(self) -> None:
        """Report GPUs that two nodes report, once for each node that does not give them."""
        coordinator = self._deps.coordinator
        before, self._duplicates = self._duplicates, dict(coordinator.nodes.duplicates)
        for name, duplicates in self._duplicates.items():
            if before.get(name) != duplicates and (node := coordinator.stores.nodes.get(name)):
                self._deps.metrics.conflicts.inc()
                self._deps.reporter.report_duplicates(node, duplicates)

    def _report_obstructed(self) -> None:
        coordinator = self._deps.coordinator
        for ref in filter(None, map(deviceleases.obstructed, coordinator.stores.leases)):
            if self._devices(ref.node, [ref.device]):
                self._deps.metrics.conflicts.inc()
                log.error("device unused", why=obstruction(ref))


async def _breathing(all_of: Iterable[T], breath: Breath) -> AsyncIterator[T]:
    """Yield each item of a copy, and let other tasks run in between: a full cluster has tens of thousands of
    leases, and no bind must wait until all of them are checked."""
    for each in list(all_of):
        yield each
        await breath()


async def _done(step: Callable[..., None], *given: Any) -> None:
    step(*given)
