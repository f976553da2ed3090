"""How large the devices of the cluster are: what a share by memory alone counts for depends on it.

`snapshot_reader` makes it and asks it for each workload. Nodes say it by annotation or label; what an agent
reports is not read here. A node that says nothing makes shares count for more, never for less.
"""

from collections import Counter

from gpu_orchestrator.api import capacity, translate
from gpu_orchestrator.api.gpuworkload import WorkloadClaim
from gpu_orchestrator.api.kubernetes import Node


class DeviceSizes:
    def __init__(self) -> None:
        self._kind_of: dict[str, tuple[str, str, int]] = {}
        self._nodes: Counter[tuple[str, str, int]] = Counter()

    def see_node(self, old: Node | None, new: Node | None) -> None:
        seen = new or old
        if seen is None:
            return
        if before := self._kind_of.pop(seen.metadata.name, None):
            self._nodes[before] -= 1
            if not self._nodes[before]:
                del self._nodes[before]
        if new is not None:
            self._kind_of[new.metadata.name] = kind = translate.kind(new)
            self._nodes[kind] += 1

    def largest_mib(self, asked: WorkloadClaim | None) -> int:
        """Return the memory of the largest device of the vendor and model that a claim asks for; 0 if none is
        known, or if what it counts for does not depend on it."""
        if asked is None or not capacity.needs_memory(asked.devices):
            return 0
        wish = asked.devices
        fitting = (
            mib
            for vendor, model, mib in self._nodes
            if wish.vendor in (None, vendor) and wish.model in ("", model)
        )
        return max(fitting, default=0)
