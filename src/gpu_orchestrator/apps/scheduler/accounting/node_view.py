"""Nodes as they are offered: what they and their agents tell, and what a device plugin took of them.

A pod that got GPUs from a device plugin takes the devices that the agent reports for it. Where no agent
tells, the node's devices are barred: one of them is taken, and nobody knows which.
"""

from collections.abc import Callable, Iterable

import structlog

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.errors import CoreError
from gpu_orchestrator.engine.events import Event, NodeRemoved, NodeUpdated, PlacementObserved, RequestRemoved

log = structlog.get_logger()


class NodeView:
    """`holds` says whether a pod counts its devices by itself."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        nodes: Store[Node],
        node_statuses: Store[GpuNodeStatus],
        holds: Callable[[str], bool],
    ) -> None:
        self._feed, self._nodes, self._node_statuses, self._holds = feed, nodes, node_statuses, holds
        self._plugin: dict[str, dict[str, int]] = {}
        self._strangers: dict[str, Placement] = {}

    def see(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self.look_at(new.metadata.name)
        elif old is not None:
            self._feed(NodeRemoved(old.metadata.name))

    def see_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if report := new or old:
            self.look_at(report.spec.node_name)

    def plugin_pod(self, uid: str, node: str, gpus: int) -> None:
        """A device plugin gave this pod so many GPUs of the node."""
        if self._plugin.setdefault(node, {}).get(uid) != gpus:
            self._plugin[node][uid] = gpus
            self.look_at(node)

    def plugin_pod_ended(self, uid: str, node: str) -> None:
        if self._plugin.get(node, {}).pop(uid, None) is not None:
            self.look_at(node)

    def rivals(self, name: str, devices: Iterable[int]) -> str:
        """Why a claimed pod may not be alone on these devices; empty if it is, as far as we know."""
        plugin, report = self._plugin.get(name, {}), self._node_statuses.get(name)
        if self._barred(name, report):
            return "pods of a device plugin run there, too, and no agent tells which devices these took"
        used = inventory.used_by(report)
        shared = sorted({each for uid in plugin for each in used.get(uid, ())} & set(devices))
        return f"a pod of a device plugin uses {','.join(map(str, shared))} of them as well" if shared else ""

    def look_at(self, name: str) -> None:
        seen, report = self._nodes.get(name), self._node_statuses.get(name)
        if seen is None:
            return
        self._count_strangers(name, report)  # before the node may be given to others
        try:
            node = inventory.node_of(seen, report, barred=self._barred(name, report))
        except (BadQuantity, CoreError) as error:
            log.error("node cannot be counted", node=name, error=str(error))
            return
        self._feed(NodeUpdated(node))

    def _barred(self, name: str, report: GpuNodeStatus | None) -> str:
        used = inventory.used_by(report)
        untold = any(len(used.get(uid, ())) < gpus for uid, gpus in self._plugin.get(name, {}).items())
        return inventory.PLUGIN_UNTOLD if untold else ""

    def _count_strangers(self, name: str, report: GpuNodeStatus | None) -> None:
        """Devices used by pods that count none by themselves: a plugin's, or what is left of an ended one."""
        used, plugin = inventory.used_by(report), self._plugin.get(name, {})
        ids = {each for uid, them in used.items() if uid in plugin or not self._holds(uid) for each in them}
        placement = Placement(f"strangers/{name}", name, devices=tuple(sorted(ids)))
        before = self._strangers.pop(name, None)
        if ids:
            self._strangers[name] = placement
            if before != placement:
                self._feed(PlacementObserved(placement))
        elif before is not None:
            self._feed(RequestRemoved(before.key))
