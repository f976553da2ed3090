"""How much memory the largest device of each model has, as nodes and agents report it.

A claim for memory alone counts for its part of that device. Fed by the watches of Nodes and GpuNodeStatuses.
"""

from collections.abc import Iterable

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.core.device import Device

Model = tuple[str, str]
"""Vendor and model."""


class DeviceMemory:
    def __init__(self, nodes: Store[Node], reports: Store[GpuNodeStatus]) -> None:
        self._nodes, self._reports = nodes, reports
        self._of_node: dict[str, dict[Model, int]] = {}
        self._largest: dict[Model, int] | None = None

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        for each in (old, new):
            if each is not None:
                self._look_at(each.metadata.name)

    def report_changed(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        for each in (old, new):
            if each is not None:
                self._look_at(each.metadata.name)

    def largest_mib(self, wish: DeviceWish) -> int:
        """Return the memory of the largest device that this wish could get; 0 if none is known."""
        if self._largest is None:
            self._largest = _largest(self._of_node.values())
        return max(
            (
                mib
                for (vendor, model), mib in self._largest.items()
                if wish.vendor in (None, vendor) and wish.model in ("", model)
            ),
            default=0,
        )

    def _look_at(self, name: str) -> None:
        node = self._nodes.get(name)
        known = _of_devices(inventory.node_of(node, self._reports.get(name)).devices) if node else {}
        if known != self._of_node.get(name, {}):
            self._of_node[name] = known
            self._largest = None
        if not known:
            self._of_node.pop(name, None)


def _of_devices(devices: Iterable[Device]) -> dict[Model, int]:
    return _largest({(each.vendor, each.model): each.memory_mib} for each in devices if each.memory_mib)


def _largest(known: Iterable[dict[Model, int]]) -> dict[Model, int]:
    found: dict[Model, int] = {}
    for each in known:
        for model, mib in each.items():
            found[model] = max(mib, found.get(model, 0))
    return found
