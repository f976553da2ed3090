"""What bound pods hold, whoever bound them: other schedulers' pods are counted, too.

Where there are no leases, what an ended pod held stays taken here until it is freed.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from gpu_orchestrator.api import claims
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
        self.nodes = NodeView(feed, stores.nodes, stores.node_statuses, self.__contains__)
        self._feed, self._stores, self._keeps_ended = feed, stores, keeps_ended
        self._of: dict[str, Placement] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def get(self, uid: str) -> Placement | None:
        return self._of.get(uid)

    def placed(self, uid: str, placement: Placement) -> None:
        """We have bound the pod; the engine counts it already."""
        self._of[uid] = placement

    def taken_by(self, pod: Pod) -> Placement | None:
        """What a bound pod takes; None if it counts nothing."""
        try:
            return claims.held(pod, self._stores.claim_spec(pod))
        except BadQuantity as error:
            log.error("pod cannot be counted", pod=key(pod), error=str(error))
            return None

    def take(self, placement: Placement) -> None:
        """A bound pod has this."""
        uid = placement.key
        if placement.unnamed:
            self.nodes.plugin_pod(uid, placement.node, placement.unnamed)
            placement = replace(placement, unnamed=0)
        self._of[uid] = placement
        self._feed(PlacementObserved(placement))

    def drop(self, uid: str) -> Placement | None:
        """The pod has ended; what it held."""
        return self._of.pop(uid, None)

    def keep(self, uid: str, placement: Placement) -> None:
        """Devices of an ended pod stay taken by our own memory, unless leases do that."""
        if placement.devices and self._keeps_ended:
            self._feed(PlacementObserved(replace(placement, key=_ended(uid), resources=(), host_ports=())))

    def freed(self, uid: str) -> None:
        """Nothing of what an ended pod held is in use any longer."""
        self._feed(RequestRemoved(_ended(uid)))


def _ended(uid: str) -> str:
    return f"ended/{uid}"
