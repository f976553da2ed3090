"""Nodes as the engine may use them: from the Node, its agent's report, and the pods of a device plugin.

A pod that got GPUs, or parts of them, from a device plugin takes the devices that the agent reports for it.
If no agent reports them, all devices of the node are barred: some are in use, and it is not known which. So
are those of a node whose agent lives and has no report, as after somebody deleted it: a count tells of no ill
device. A device that a live agent reports in use by a pod that does not hold it is taken as well. A GPU that
two nodes report is given on neither of them, unless `device_owners` knows better.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import structlog

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import inventory, nodedevices
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import CsiNode, Node
from gpu_orchestrator.api.nodedevices import UNKNOWN_MODE
from gpu_orchestrator.apps.scheduler.accounting.device_owners import DeviceOwners
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, NodeRemoved, NodeUpdated, PlacementObserved, RequestRemoved

log = structlog.get_logger()


class NodeView:
    """`feed` sends events to the engine, all before it decides; `held` returns the devices of a node that a
    pod holds; `is_live` whether the node's agent is; `volume_limits` how many volumes of each driver a node
    can attach."""

    def __init__(
        self,
        feed: Callable[..., None],
        nodes: Store[Node],
        node_statuses: Store[GpuNodeStatus],
        held: Callable[[str, str], set[int]],
        is_live: Callable[[str], bool],
        volume_limits: Callable[[str], tuple[tuple[str, int], ...]] = lambda node: (),
    ) -> None:
        self._feed, self._held, self._is_live = feed, held, is_live
        self._volume_limits = volume_limits
        self._nodes, self._node_statuses = nodes, node_statuses
        self._plugin_gpus: dict[str, dict[str, int]] = {}
        self._untracked: dict[str, Placement] = {}
        self._used: dict[str, dict[str, tuple[int, ...]]] = {}
        self._reasons: dict[str, str] = {}
        self._lived: dict[str, bool] = {}
        """Nodes that a live agent makes a difference for, and whether they had one when last sent."""
        self._owners = DeviceOwners(self._stands)
        self.duplicates: dict[str, dict[int, str]] = {}
        """By node: devices that are not given because another node reports them too, each with that node."""

    def on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            if unknown := nodedevices.unknown_mode(old, new):
                log.warning("mode of node ignored", node=new.metadata.name, found=unknown, why=UNKNOWN_MODE)
            self.update(new.metadata.name)
        elif old is not None:
            self._used.pop(old.metadata.name, None)
            self._reasons.pop(old.metadata.name, None)
            self._lived.pop(old.metadata.name, None)
            self._count_untracked(old.metadata.name)
            self.duplicates.pop(old.metadata.name, None)
            others = self._owners.observe(old.metadata.name, None)
            self._feed(NodeRemoved(old.metadata.name), *self._updates(others))

    def on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        if report := new or old:
            self.update(report.spec.node_name)

    def on_csi_node(self, old: CsiNode | None, new: CsiNode | None) -> None:
        if drivers := new or old:
            self.update(drivers.metadata.name)

    def add_plugin_pod(self, uid: str, node: str, gpus: int) -> None:
        """Record a pod that got at least this number of GPUs from the node's device plugin or DRA driver."""
        if self._plugin_gpus.setdefault(node, {}).get(uid) != gpus:
            self._plugin_gpus[node][uid] = gpus
            self.update(node)

    def remove_plugin_pod(self, uid: str, node: str) -> None:
        if self._plugin_gpus.get(node, {}).pop(uid, None) is not None:
            self.update(node)

    def recount(self, uid: str, node: str) -> None:
        """Count again what is in use on a node: what this pod holds there has changed."""
        if uid in self._used.get(node, ()):
            self._count_untracked(node)

    def on_agent(self, node: str) -> None:
        """Count again what is in use on a node: its agent has come to life, or is gone."""
        if self._used.get(node):
            self._count_untracked(node)
        self._settle(node)
        if (lived := self._lived.get(node)) is not None and lived != self._is_live(node):
            self.update(node)

    def recount_silent(self) -> None:
        """Count again where agents may have fallen silent: what a dead agent reported is not believed."""
        for node in [node for node, lived in self._lived.items() if lived and not self._is_live(node)]:
            self.update(node)
        for node in [node for node in self._untracked if not self._is_live(node)]:
            self._count_untracked(node)
        for node in self._owners.disputed():
            self._settle(node)

    def _settle(self, node: str) -> None:
        """Look again at the disputes of a node: its report may count for more or less than before."""
        if changed := self._owners.restand(node):
            self._feed(*self._updates(changed))

    def _stands(self, name: str) -> bool:
        """Return True if the report of a node may keep other nodes from a device that both report."""
        node = self._nodes.get(name)
        return node is not None and not node.spec.unschedulable and self._is_live(name)

    def barred(self, name: str) -> str:
        """Return why a node takes no claims now; empty if it does."""
        return self._reasons.get(name, "")

    def plugin_conflict(self, name: str, devices: Iterable[int]) -> str:
        """Return why a device plugin's pod may use these devices as well; empty if none is known to."""
        plugin, report = self._plugin_gpus.get(name, {}), self._node_statuses.get(name)
        if self._is_plugin_unreported(name, report):
            return "pods of a device plugin also run there, and no agent reports which devices they use"
        used = inventory.used_by(report)
        shared = sorted({each for uid in plugin for each in used.get(uid, ())} & set(devices))
        return f"a pod of a device plugin also uses {','.join(map(str, shared))} of them" if shared else ""

    def update(self, name: str) -> None:
        """Send the node to the engine as it is now, together with others whose GPUs it takes or leaves."""
        seen, report = self._nodes.get(name), self._node_statuses.get(name)
        if seen is None:
            return
        self._used[name] = inventory.used_by(report)
        self._count_untracked(name)  # before the node may be given to others
        others = self._owners.observe(name, report)
        self._feed(self._updated(seen, report), *self._updates(others))

    def _updates(self, names: Iterable[str]) -> Iterator[Event]:
        for name in sorted(names):
            if seen := self._nodes.get(name):
                yield self._updated(seen, self._node_statuses.get(name))

    def _updated(self, seen: Node, report: GpuNodeStatus | None) -> NodeUpdated:
        name = seen.metadata.name
        self.duplicates.pop(name, None)
        if duplicates := self._owners.duplicates(name):
            self.duplicates[name] = duplicates
        is_live = self._is_live(name)
        if report is None or report.status.mps is not None:
            self._lived[name] = is_live
        else:
            self._lived.pop(name, None)
        barred = self._barred(name, report)
        node = inventory.node_of(seen, report, barred=barred, duplicates=duplicates, is_live=is_live)
        if node.barred != self._reasons.get(name, ""):
            self._reasons[name] = node.barred
            log.warning("claims on node", node=name, barred=node.barred or "no longer")
        limits = self._volume_limits(name)
        return NodeUpdated(replace(node, volume_limits=limits) if limits else node)

    def _barred(self, name: str, report: GpuNodeStatus | None) -> str:
        if report is None and self._is_live(name):
            return inventory.NOT_REPORTED
        return inventory.PLUGIN_UNREPORTED if self._is_plugin_unreported(name, report) else ""

    def _is_plugin_unreported(self, name: str, report: GpuNodeStatus | None) -> bool:
        if not (plugin := self._plugin_gpus.get(name)):
            return False
        used = inventory.used_by(report)
        return any(len(used.get(uid, ())) < gpus for uid, gpus in plugin.items())

    def _count_untracked(self, name: str) -> None:
        """Count devices in use by pods that do not hold them: a plugin's pods, ended pods whose processes
        still run, and strangers. The last two only while the agent lives: nobody else would end them."""
        plugin, is_live = self._plugin_gpus.get(name, {}), self._is_live(name)
        ids = set[int]()
        for uid, devices in self._used.get(name, {}).items():
            if uid in plugin:
                ids.update(devices)
            elif is_live:
                ids.update(set(devices) - self._held(uid, name))
        before = self._untracked.pop(name, None)
        if ids:
            placement = Placement(f"untracked/{name}", name, devices=tuple(sorted(ids)))
            self._untracked[name] = placement
            if before != placement:
                self._feed(PlacementObserved(placement))
        elif before is not None:
            self._feed(RequestRemoved(before.key))
