"""Keeps every claim's status true to its pod: looks at one claim at a time, as it is now, and writes what is
due. Asked after each bind, each end and by the sweep."""

from collections.abc import Callable
from math import isinf

from gpu_orchestrator.adapters.kube.workqueue import WorkQueue
from gpu_orchestrator.api import claims as asks
from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.kubernetes import Lease, Pod
from gpu_orchestrator.api.wire import Json, key
from gpu_orchestrator.apps.scheduler import claims, wish
from gpu_orchestrator.apps.scheduler.claims import Claims
from gpu_orchestrator.apps.scheduler.desk import Desk
from gpu_orchestrator.apps.scheduler.release import Releaser
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.topology import weakest_link

WRITERS = 8


class Account:
    def __init__(self, claims: Claims, desk: Desk, releaser: Releaser, now: Callable[[], str]) -> None:
        self._claims, self._desk, self._releaser, self._now = claims, desk, releaser, now
        self.queue: WorkQueue[str] = WorkQueue()

    def look_at(self, claim: GpuClaim) -> None:
        self.queue.add(key(claim))

    def see_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name) and (name := asks.claim_name(pod)):
            self.queue.add(f"{pod.metadata.namespace}/{name}")

    def see_lease(self, old: Lease | None, new: Lease | None) -> None:
        """A claim is released when the last lease of its pod is gone."""
        if new is None and old is not None and deviceleases.is_device(old):
            for holder in deviceleases.holders(old):
                self.freed(holder.uid)

    def freed(self, uid: str) -> None:
        for claim in self._desk.stores.claims.by("pod", uid):
            self.look_at(claim)

    def see_claim(self, old: GpuClaim | None, new: GpuClaim | None) -> None:
        if new is not None and self.due(new) is not None:
            self.look_at(new)

    async def run(self) -> None:
        await self.queue.run(self._look, workers=WRITERS)

    async def _look(self, name: str) -> None:
        claim = self._desk.stores.claims.get(name)
        due = self.due(claim) if claim else None
        if claim is None or due is None:
            return
        if not await self._claims.write(claim, due):
            self.queue.add_after(name, 0.2)

    def due(self, claim: GpuClaim) -> claims.Due | None:
        uid = wish.served(claim)
        pod, fate = self._desk.ours.get(uid), self._desk.fate(uid)
        held = fate in ("flying", "bound") or uid in self._releaser or bool(self._desk.leases_of(uid))
        given = self._given(pod, claim) if pod is not None and pod.spec.node_name else None
        return claims.due(claim, pod, given=given, held=held)

    def _given(self, pod: Pod, claim: GpuClaim) -> Json:
        placement = Placement(pod.metadata.uid, pod.spec.node_name, devices=asks.given(pod))
        devices = self._desk.devices(placement)
        uuids = [device.uuid for device in devices]
        gbps = self._bandwidth(placement)
        return claims.bound(pod, claim, uuids=uuids if all(uuids) else [], gbps=gbps, now=self._now())

    def _bandwidth(self, placement: Placement) -> int:
        cluster = self._desk.engine.cluster
        if placement.node not in cluster:
            return 0
        topology = cluster.node(placement.node).topology
        at = [topology.position[each] for each in placement.devices if each in topology.position]
        gbps = weakest_link(topology, at)
        return 0 if isinf(gbps) else int(gbps)
