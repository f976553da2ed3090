"""Keep the sizes of all devices, as nodes and agents report them. Fed by the watches of Nodes and
GpuNodeStatuses."""

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import inventory
from gpu_orchestrator.api.device_sizes import DeviceSizes
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Node


class DeviceMemory:
    def __init__(self, nodes: Store[Node], reports: Store[GpuNodeStatus]) -> None:
        self._nodes, self._reports = nodes, reports
        self.sizes = DeviceSizes()

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        for each in (old, new):
            if each is not None:
                self._look_at(each.metadata.name)

    def report_changed(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        for each in (old, new):
            if each is not None:
                self._look_at(each.metadata.name)

    def _look_at(self, name: str) -> None:
        node = self._nodes.get(name)
        found = inventory.node_of(node, self._reports.get(name)).devices if node else ()
        self.sizes.put(name, ((each.vendor, each.model, each.memory_mib) for each in found))
