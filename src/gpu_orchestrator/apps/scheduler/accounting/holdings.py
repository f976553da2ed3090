"""What bound pods hold, including pods that other schedulers bound.

A pod's resources come from its spec. Its devices come from our own binding, as long as this process lives, or
else from its leases, which `lease_index` counts. If its leases were deleted while no scheduler ran, they come
from the status of its claim, or for a pod without a claim from its annotation if the admission policies guard
that; the sweep makes the leases again. Unguarded annotations count only without leases, and only as they were
when the pod was first seen bound: the pod's owner can change them. What a pod holds
never becomes less while it lives. Devices of an ended pod that no lease counts stay counted here until
`freed` is called.
"""

from collections.abc import Callable, Iterable

import structlog

from gpu_orchestrator.api import claims, deviceleases, neighbours, pod_amounts, translate, volumes
from gpu_orchestrator.api.deviceleases import DeviceRef, Hold
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.pod_amounts import Taken
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.node_view import NodeView
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import PlacementObserved, RequestRemoved

NOTHING = Placement("", "")
ONE_POD = Taken(0, (("pods", 1),), has_parts=False)

log = structlog.get_logger()


class Holdings:
    """`leased` returns the devices of a node that a pod holds by its leases; `has_lease` whether any lease
    names the pod; `is_live` whether the node's agent is; `queue_of` the queue in which a pod counts.
    `guarded`: nobody but a scheduler can write the devices into a pod's annotation. `ends_at` returns when a
    bound pod ends at the latest, if it says so."""

    def __init__(
        self,
        feed: Callable[..., None],
        stores: Stores,
        *,
        leased: Callable[[str, str], set[int]],
        has_lease: Callable[[str], bool],
        is_live: Callable[[str], bool],
        guarded: bool,
        queue_of: Callable[[str], str] = lambda uid: "",
        ends_at: Callable[[Pod], float | None] = lambda pod: None,
    ) -> None:
        self.nodes = NodeView(
            feed, stores.nodes, stores.node_statuses, self.devices, is_live, stores.volume_limits
        )
        self._feed, self._stores = feed, stores
        self._leased, self._has_lease, self._guarded = leased, has_lease, guarded
        self._queue_of = queue_of
        self._ends_at = ends_at
        self._placements: dict[str, Placement] = {}
        self._counted_in: dict[str, str] = {}
        """The queue in which each bound pod counts, if in any."""
        self._named: dict[str, tuple[int, ...]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._placements

    def get(self, uid: str) -> Placement | None:
        """Return what a bound pod counts itself: devices that it holds by leases only are not in it."""
        return self._placements.get(uid)

    def devices_of(self, uid: str) -> tuple[int, ...]:
        """Return the devices that a bound pod holds on its node."""
        bound = self._placements.get(uid)
        return tuple(sorted(self.devices(uid, bound.node))) if bound else ()

    def devices(self, uid: str, node: str) -> set[int]:
        """Return the devices of a node that a pod holds, by its binding or by its leases."""
        own = self._placements.get(uid)
        mine = own.devices if own is not None and own.node == node else ()
        return self._leased(uid, node).union(mine)

    def is_leftover(self, uid: str, ref: DeviceRef) -> bool:
        """Return True if a bound pod certainly lacks a device that it holds by lease: the pod is on another
        node, or we have bound it to other devices ourselves. Its annotation decides nothing."""
        bound = self._placements.get(uid)
        if bound is None or bound.node != ref.node:
            return bound is not None
        return bool(bound.devices) and ref.device not in bound.devices

    def keeps_lost(self, lost: Hold, held: Iterable[Hold]) -> bool:
        """Return True if a lease that disappeared was a live bound pod's: the pod has the device all the
        same. `held` is all that it had by leases. Leases of another scheduler's attempt at the same pod are
        not kept: that scheduler takes them back."""
        uid, node = lost.holder.uid, lost.ref.node
        bound = self._placements.get(uid)
        if bound is None or bound.node != node or bound.devices:
            return False  # with devices of its own, it counts them itself
        here = [each for each in held if each.ref.node == node]
        return deviceleases.bound_attempt(self._named.get(uid, ()), here) in ("", lost.holder.since)

    def record(self, uid: str, placement: Placement, queue: str = "") -> None:
        """Record a pod that we have bound; the engine counts its placement already, in this queue."""
        self._placements[uid] = placement
        self._count_in(uid, queue)
        self.nodes.recount(uid, placement.node)

    def add(self, pod: Pod, *, by_annotation: bool) -> None:
        """Record a bound pod, or its changed resources, and send them to the engine. `by_annotation`: nothing
        but its annotation says which devices it was bound to."""
        uid, known = pod.metadata.uid, self._placements.get(pod.metadata.uid)
        taken = _taken(pod)
        if unnamed := taken.gpus + translate.has_gpu_parts(pod, taken):  # a part is of some device, at least
            self.nodes.add_plugin_pod(uid, pod.spec.node_name, unnamed)
        devices = known
        if known is None and (named := claims.given(pod)):
            self._named[uid] = named
            devices = claims.bound(pod, self._stores.claim_spec(pod)) if by_annotation else None
        if known is None and not by_annotation:
            devices = self._without_lease(pod)
        placement = self._placement(pod, taken, devices)
        self._placements[uid] = placement
        queue = self._count_in(uid, self._queue_of(uid))
        self._feed(PlacementObserved(placement, queue=queue, ends_at=self._ends_at(pod)))
        self.nodes.recount(uid, placement.node)

    def _without_lease(self, pod: Pod) -> Placement | None:
        """Return what the pod was bound to if it has no lease of some of it. Leases on other devices than its
        claim names are a reason to believe the leases alone."""
        if not (name := claims.claim_name(pod)):
            # If some of its leases are left, they were not deleted all at once: the leases alone count.
            is_lost = self._guarded and not self._has_lease(pod.metadata.uid)
            return claims.bound(pod, None) if is_lost else None
        claim = self._stores.claims.get(f"{pod.metadata.namespace}/{name}")
        if claim is None or not (devices := claims.recorded(pod, claim)):
            return None
        leased = self._leased(pod.metadata.uid, pod.spec.node_name)
        return claims.bound(pod, claim.spec, devices=devices) if leased < set(devices) else None

    def _placement(self, pod: Pod, taken: Taken, given: Placement | None) -> Placement:
        """Return all that the pod holds: its resources, `given` devices if they are of its node, the volumes
        that it has attached, and what other pods' rules see of it."""
        has = given if given is not None and given.node == pod.spec.node_name and given.devices else NOTHING
        return Placement(
            pod.metadata.uid,
            pod.spec.node_name,
            devices=has.devices,
            exclusive=has.exclusive,
            milli=has.milli,
            memory_mib=has.memory_mib,
            resources=taken.resources,
            host_ports=translate.host_ports(pod.spec),
            bandwidth_gbps=has.bandwidth_gbps,
            volumes=volumes.attached(pod, self._stores) if pod.spec.volumes else (),
            neighbour=neighbours.neighbour(pod, self._stores),
        )

    def requeue(self, pod: Pod) -> None:
        """Count a bound pod in the queue that it belongs to now."""
        uid = pod.metadata.uid
        placement, queue = self._placements.get(uid), self._queue_of(uid)
        if placement is not None and queue != self._counted_in.get(uid, ""):
            self._count_in(uid, queue)
            self._feed(PlacementObserved(placement, queue=queue, ends_at=self._ends_at(pod)))

    def _count_in(self, uid: str, queue: str) -> str:
        self._counted_in.pop(uid, None)
        if queue:
            self._counted_in[uid] = queue
        return queue

    def remove(self, uid: str) -> Placement | None:
        """Remove an ended pod; return what it held."""
        self._named.pop(uid, None)
        self._counted_in.pop(uid, None)
        return self._placements.pop(uid, None)

    def keep_ended(self, uid: str, placement: Placement, leased: Iterable[int]) -> None:
        """Keep counting the devices of an ended pod, except those that a lease counts."""
        left = tuple(each for each in placement.devices if each not in set(leased))
        if left:
            kept = Placement(
                ended_key(uid),
                placement.node,
                devices=left,
                exclusive=placement.exclusive,
                milli=placement.milli,
                memory_mib=placement.memory_mib,
            )
            self._feed(PlacementObserved(kept, queue=self._queue_of(uid)))

    def freed(self, uid: str) -> None:
        """Free the devices of an ended pod: no process uses them any longer."""
        self._feed(RequestRemoved(ended_key(uid)))


def _taken(pod: Pod) -> Taken:
    """Return what the pod takes apart from given devices. A pod whose quantities cannot be read counts as one
    pod: it is there, and whatever devices it holds count."""
    try:
        return pod_amounts.taken(pod.spec)
    except BadQuantity as error:
        log.error("resources of a pod cannot be counted", pod=key(pod), error=str(error))
        return ONE_POD


def ended_key(uid: str) -> str:
    return f"ended/{uid}"
