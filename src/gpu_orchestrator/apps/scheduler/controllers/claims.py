"""Keeps every claim true to its pod: looks at one claim at a time, as it and its pod are now, and writes what
is due. Asked after each bind, each end, and by the sweep; nothing is remembered, so nothing can be lost.

A claim is kept for its pod first, and tells what it was given when the watch has shown that. Each has writers
of its own: in one line the first claim would tell only after the last one was kept.
"""

import asyncio
from collections.abc import Callable
from math import isinf

from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import claims, deviceleases
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Lease, Pod
from gpu_orchestrator.api.wire import Json, key
from gpu_orchestrator.apps.scheduler.binding import claim_writer
from gpu_orchestrator.apps.scheduler.binding.claim_writer import ClaimWriter, Due, Refused
from gpu_orchestrator.apps.scheduler.controllers.release import Releaser
from gpu_orchestrator.apps.scheduler.cycle.coordinator import Coordinator
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.topology import weakest_link

WRITERS = 8
AGAIN_S = 0.2


class ClaimController:
    def __init__(
        self,
        claims: ClaimWriter,
        coordinator: Coordinator,
        releaser: Releaser,
        *,
        pacer: Pacer,
        now: Callable[[], str],
    ) -> None:
        self._claims, self._coordinator, self._releaser = claims, coordinator, releaser
        self._pacer, self._now = pacer, now
        self._to_keep: WorkQueue[str] = WorkQueue()
        self._to_tell: WorkQueue[str] = WorkQueue()

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self.check_pod(pod)

    def see_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        if new is not None:
            self.check(key(new))

    def see_lease(self, old: Lease | None, new: Lease | None) -> None:
        """A claim is released when the last lease of its pod is gone."""
        if new is None and old is not None and deviceleases.is_device(old):
            for holder in deviceleases.holders(old):
                self.freed(holder.uid)

    def freed(self, uid: str) -> None:
        for claim in self._coordinator.stores.claims.by("pod", uid):
            self.check(key(claim))

    def check_pod(self, pod: Pod) -> None:
        if name := claims.claim_name(pod):
            self.check(f"{pod.metadata.namespace}/{name}")

    def check(self, name: str) -> None:
        """Have the claim of this key put right, if it is not."""
        if self._unkept(name):
            self._to_keep.add(name)
        elif self._due(name):
            self._to_tell.add(name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._to_keep.run(self._keep, workers=WRITERS))
            group.create_task(self._to_tell.run(self._tell, workers=WRITERS))

    async def _keep(self, name: str) -> None:
        await self._pacer.wait()
        pod = self._unkept(name)
        asked = self._coordinator.stores.claim_of(pod) if pod else None
        if pod and asked and isinstance(await self._claims.reserve(pod, asked), Refused):
            self._to_keep.add_after(name, AGAIN_S)

    async def _tell(self, name: str) -> None:
        await self._pacer.wait()
        claim, due = self._coordinator.stores.claims.get(name), self._due(name)
        if claim and due and not await self._claims.write(claim, due):
            self._to_tell.add_after(name, AGAIN_S)

    def _unkept(self, name: str) -> Pod | None:
        """The bound pod whose claim, or child of its template, is not yet kept for it."""
        claim = self._coordinator.stores.claims.get(name)
        for pod in self._coordinator.stores.pods.by("claim", name):
            if not self._is_bound_by(pod, name):
                continue
            if claim is None:
                return pod if claims.is_template(pod) and self._coordinator.stores.claim_of(pod) else None
            if not claim.metadata.deletion_timestamp and not claims.served(claim):
                return pod
        return None

    def _is_bound_by(self, pod: Pod, name: str) -> bool:
        own = f"{pod.metadata.namespace}/{claims.claim_name(pod)}"
        return bool(pod.spec.node_name) and pod.metadata.uid in self._coordinator.our_pods and own == name

    def _due(self, name: str) -> Due | None:
        claim = self._coordinator.stores.claims.get(name)
        if claim is None:
            return None
        uid = claims.served(claim)
        pod, fate = self._coordinator.our_pods.get(uid), self._coordinator.fate(uid)
        held = fate in ("binding", "bound") or uid in self._releaser or uid in self._coordinator.leases
        given = self._given(pod, claim) if pod is not None and pod.spec.node_name else None
        return claim_writer.due(claim, pod, given=given, held=held)

    def _given(self, pod: Pod, claim: GpuClaim) -> Json:
        placement = Placement(pod.metadata.uid, pod.spec.node_name, devices=claims.given(pod))
        uuids = [device.uuid for device in self._coordinator.engine.cluster.devices(placement)]
        gbps = self._bandwidth(placement)
        return claim_writer.bound(pod, claim, uuids=uuids if all(uuids) else [], gbps=gbps, now=self._now())

    def _bandwidth(self, placement: Placement) -> int:
        cluster = self._coordinator.engine.cluster
        if placement.node not in cluster:
            return 0
        topology = cluster.node(placement.node).topology
        at = [topology.position[each] for each in placement.devices if each in topology.position]
        gbps = weakest_link(topology, at)
        return 0 if isinf(gbps) else int(gbps)
