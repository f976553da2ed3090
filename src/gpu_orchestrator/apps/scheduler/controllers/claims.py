"""Bring every claim into line with its pod: check one claim and its pod as they are, and write what is due.

The watches call it after each bind and each end, and so does the sweep. It keeps no state, so a crash loses
nothing. A claim is first reserved for its pod; its status is written after the watch has shown that. Each of
the two steps has its own queue and writers: in one queue the first status would wait for the last
reservation.
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
RETRY_S = 0.2


class ClaimController:
    def __init__(
        self,
        writer: ClaimWriter,
        coordinator: Coordinator,
        releaser: Releaser,
        *,
        pacer: Pacer,
        now: Callable[[], str],
    ) -> None:
        self._writer, self._coordinator, self._releaser = writer, coordinator, releaser
        self._pacer, self._now = pacer, now
        self._to_reserve: WorkQueue[str] = WorkQueue()
        self._to_write: WorkQueue[str] = WorkQueue()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self.check_pod(pod)

    def on_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        if new is not None:
            self.check(key(new))

    def on_lease(self, old: Lease | None, new: Lease | None) -> None:
        """Check the claims of a lease's holders: a claim is released when its pod's last lease is gone."""
        if new is None and old is not None and deviceleases.is_device(old):
            for holder in deviceleases.holders(old):
                self.freed(holder.uid)

    def freed(self, uid: str) -> None:
        """Check the claims of a pod whose devices are free."""
        for claim in self._coordinator.stores.claims.by("pod", uid):
            self.check(key(claim))

    def check_pod(self, pod: Pod) -> None:
        if name := claims.claim_name(pod):
            self.check(f"{pod.metadata.namespace}/{name}")

    def check(self, name: str) -> None:
        """Queue the claim of this key if a write to it is due."""
        if self._unreserved_pod(name):
            self._to_reserve.add(name)
        elif self._due(name):
            self._to_write.add(name)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._to_reserve.run(self._reserve, workers=WRITERS))
            group.create_task(self._to_write.run(self._write, workers=WRITERS))

    async def _reserve(self, name: str) -> None:
        await self._pacer.wait()
        pod = self._unreserved_pod(name)
        claim = self._coordinator.stores.claim_of(pod) if pod else None
        if pod and claim and isinstance(await self._writer.reserve(pod, claim), Refused):
            self._to_reserve.add_after(name, RETRY_S)

    async def _write(self, name: str) -> None:
        await self._pacer.wait()
        claim, due = self._coordinator.stores.claims.get(name), self._due(name)
        if claim and due and not await self._writer.write(claim, due):
            self._to_write.add_after(name, RETRY_S)

    def _unreserved_pod(self, name: str) -> Pod | None:
        """Return the bound pod whose claim, or child of its template, is not yet reserved for it."""
        claim = self._coordinator.stores.claims.get(name)
        for pod in self._coordinator.stores.pods.by("claim", name):
            if not self._is_bound_with(pod, name):
                continue
            if claim is None:
                return pod if claims.is_template(pod) and self._coordinator.stores.claim_of(pod) else None
            if not claim.metadata.deletion_timestamp and not claims.reserved_for(claim):
                return pod
        return None

    def _is_bound_with(self, pod: Pod, name: str) -> bool:
        own = f"{pod.metadata.namespace}/{claims.claim_name(pod)}"
        return bool(pod.spec.node_name) and pod.metadata.uid in self._coordinator.our_pods and own == name

    def _due(self, name: str) -> Due | None:
        claim = self._coordinator.stores.claims.get(name)
        if claim is None:
            return None
        uid = claims.reserved_for(claim)
        pod, state = self._coordinator.our_pods.get(uid), self._coordinator.state_of(uid)
        held = state in ("binding", "bound") or uid in self._releaser or uid in self._coordinator.lease_index
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
