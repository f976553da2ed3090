"""What bound pods hold, including pods that other schedulers bound.

Without device leases, the devices of an ended pod stay counted here until `freed` is called.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from gpu_orchestrator.api import claims, neighbours, volumes
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.node_view import NodeView
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved

log = structlog.get_logger()


class Holdings:
    def __init__(self, feed: Callable[[Event], None], stores: Stores, *, keeps_ended: bool) -> None:
        self.nodes = NodeView(
            feed, stores.nodes, stores.node_statuses, self.__contains__, stores.volume_limits
        )
        self._feed, self._stores, self._keeps_ended = feed, stores, keeps_ended
        self._placements: dict[str, Placement] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._placements

    def get(self, uid: str) -> Placement | None:
        return self._placements.get(uid)

    def record(self, uid: str, placement: Placement) -> None:
        """Record a pod that we have bound; the engine counts its placement already."""
        self._placements[uid] = placement

    def placement_of(self, pod: Pod) -> Placement | None:
        """Return what a bound pod takes from its node; None if it takes nothing."""
        try:
            held = claims.held(pod, self._stores.claim_spec(pod))
            return held and self._with_surroundings(held, pod)
        except BadQuantity as error:
            log.error("pod cannot be counted", pod=key(pod), error=str(error))
            return None

    def _with_surroundings(self, placement: Placement, pod: Pod) -> Placement:
        """Add what other pods' rules see of the pod, and the volumes that it has attached."""
        attached = volumes.attached(pod, self._stores) if pod.spec.volumes else ()
        return replace(placement, volumes=attached, neighbour=neighbours.neighbour(pod, self._stores))

    def add(self, placement: Placement) -> None:
        """Record what a bound pod has, and send it to the engine."""
        uid = placement.key
        if placement.unnamed:
            self.nodes.add_plugin_pod(uid, placement.node, placement.unnamed)
            placement = replace(placement, unnamed=0)
        self._placements[uid] = placement
        self._feed(PlacementObserved(placement))

    def remove(self, uid: str) -> Placement | None:
        """Remove an ended pod; return what it held."""
        return self._placements.pop(uid, None)

    def keep_ended(self, uid: str, placement: Placement) -> None:
        """Keep counting the devices of an ended pod, unless leases do that."""
        if placement.devices and self._keeps_ended:
            kept = replace(
                placement, key=_ended_key(uid), resources=(), host_ports=(), volumes=(), neighbour=None
            )
            self._feed(PlacementObserved(kept))

    def freed(self, uid: str) -> None:
        """Free the devices of an ended pod: no process uses them any longer."""
        self._feed(RequestRemoved(_ended_key(uid)))


def _ended_key(uid: str) -> str:
    return f"ended/{uid}"
