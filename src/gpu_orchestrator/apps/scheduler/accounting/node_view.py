"""Nodes as the engine may use them: from the Node, its agent's report, and the pods of a device plugin.

A pod that got GPUs from a device plugin takes the devices that the agent reports for it. If no agent reports
them, all devices of the node are barred: some are in use, and it is not known which.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import CsiNode, Node
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.errors import CoreError
from gpu_orchestrator.engine.events import Event, NodeRemoved, NodeUpdated, PlacementObserved, RequestRemoved

log = structlog.get_logger()


class NodeView:
    """`is_counted` returns True if a pod's devices are already counted as its own holding; `volume_limits`
    returns how many volumes of each driver a node can attach."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        nodes: Store[Node],
        node_statuses: Store[GpuNodeStatus],
        is_counted: Callable[[str], bool],
        volume_limits: Callable[[str], tuple[tuple[str, int], ...]] = lambda node: (),
    ) -> None:
        self._feed, self._is_counted, self._volume_limits = feed, is_counted, volume_limits
        self._nodes, self._node_statuses = nodes, node_statuses
        self._plugin_gpus: dict[str, dict[str, int]] = {}
        self._untracked: dict[str, Placement] = {}

    def on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self.update(new.metadata.name)
        elif old is not None:
            self._feed(NodeRemoved(old.metadata.name))

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if report := new or old:
            self.update(report.spec.node_name)

    def on_csi_node(self, old: CsiNode | None, new: CsiNode | None) -> None:
        if drivers := new or old:
            self.update(drivers.metadata.name)

    def add_plugin_pod(self, uid: str, node: str, gpus: int) -> None:
        """Record a pod that got this number of GPUs from the node's device plugin."""
        if self._plugin_gpus.setdefault(node, {}).get(uid) != gpus:
            self._plugin_gpus[node][uid] = gpus
            self.update(node)

    def remove_plugin_pod(self, uid: str, node: str) -> None:
        if self._plugin_gpus.get(node, {}).pop(uid, None) is not None:
            self.update(node)

    def plugin_conflict(self, name: str, devices: Iterable[int]) -> str:
        """Return why a device plugin's pod may use these devices as well; empty if none is known to."""
        plugin, report = self._plugin_gpus.get(name, {}), self._node_statuses.get(name)
        if self._barred(name, report):
            return "pods of a device plugin also run there, and no agent reports which devices they use"
        used = inventory.used_by(report)
        shared = sorted({each for uid in plugin for each in used.get(uid, ())} & set(devices))
        return f"a pod of a device plugin also uses {','.join(map(str, shared))} of them" if shared else ""

    def update(self, name: str) -> None:
        """Send the node to the engine as it is now."""
        seen, report = self._nodes.get(name), self._node_statuses.get(name)
        if seen is None:
            return
        self._count_untracked(name, report)  # before the node may be given to others
        try:
            node = inventory.node_of(seen, report, barred=self._barred(name, report))
        except (BadQuantity, CoreError) as error:
            log.error("node cannot be counted", node=name, error=str(error))
            return
        limits = self._volume_limits(name)
        self._feed(NodeUpdated(replace(node, volume_limits=limits) if limits else node))

    def _barred(self, name: str, report: GpuNodeStatus | None) -> str:
        used = inventory.used_by(report)
        plugin = self._plugin_gpus.get(name, {})
        unreported = any(len(used.get(uid, ())) < gpus for uid, gpus in plugin.items())
        return inventory.PLUGIN_UNREPORTED if unreported else ""

    def _count_untracked(self, name: str, report: GpuNodeStatus | None) -> None:
        """Count devices in use by pods without a holding of their own: a plugin's pods, and ended pods whose
        processes still run."""
        used, plugin = inventory.used_by(report), self._plugin_gpus.get(name, {})
        uids = [uid for uid in used if uid in plugin or not self._is_counted(uid)]
        ids = {each for uid in uids for each in used[uid]}
        placement = Placement(f"untracked/{name}", name, devices=tuple(sorted(ids)))
        before = self._untracked.pop(name, None)
        if ids:
            self._untracked[name] = placement
            if before != placement:
                self._feed(PlacementObserved(placement))
        elif before is not None:
            self._feed(RequestRemoved(before.key))
