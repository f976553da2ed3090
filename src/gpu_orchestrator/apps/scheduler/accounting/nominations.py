"""Room that another scheduler has made for a pod of its own: `status.nominatedNodeName`.

The pod's resources are kept on that node, whatever our own pods' priority, until it is bound or nominated no
longer: others were evicted for it.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from gpu_orchestrator.api import translate
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.node_view import NodeView
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, PlacementObserved, RequestRemoved

log = structlog.get_logger()


class Nominations:
    def __init__(self, feed: Callable[[Event], None], nodes: NodeView, scheduler_name: str) -> None:
        self._feed, self._nodes, self._scheduler_name = feed, nodes, scheduler_name
        self._kept: dict[str, Placement] = {}

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Keep room for the pod, or free it. Call it after the pod itself is counted where it is bound."""
        if (pod := new or old) is None or not (pod.status.nominated_node_name or self._kept):
            return
        kept, before = self._placement(new) if new else None, self._kept.get(pod.metadata.uid)
        if kept == before:
            return
        if before is not None:
            self._free(before)
        if kept is not None:
            self._keep(kept)

    def _placement(self, pod: Pod) -> Placement | None:
        node, phase = pod.status.nominated_node_name, pod.status.phase
        is_other = pod.spec.scheduler_name != self._scheduler_name
        if not node or pod.spec.node_name or not is_other or phase in translate.TERMINAL:
            return None
        try:
            return translate.placement(pod.metadata.uid, node, pod.spec)
        except BadQuantity as error:
            log.error("nominated pod cannot be counted", pod=key(pod), error=str(error))
            return None

    def _keep(self, placement: Placement) -> None:
        self._kept[placement.key] = placement
        if placement.unnamed:
            self._nodes.add_plugin_pod(_name(placement), placement.node, placement.unnamed)
        self._feed(PlacementObserved(replace(placement, key=_name(placement), unnamed=0)))

    def _free(self, placement: Placement) -> None:
        del self._kept[placement.key]
        self._nodes.remove_plugin_pod(_name(placement), placement.node)
        self._feed(RequestRemoved(_name(placement)))


def _name(placement: Placement) -> str:
    return f"nominated/{placement.key}"
