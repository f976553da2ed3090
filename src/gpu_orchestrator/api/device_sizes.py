"""How large the devices of a cluster are: what a share by memory alone counts for depends on the largest one.

Webhook and operator tell it what each node has. The gpu-scheduler, which knows every device, asks its own
`core/cluster.py`; all three must find the same number, or a pod requests less than the scheduler wants.
"""

from collections.abc import Iterable

from gpu_orchestrator.api import capacity
from gpu_orchestrator.api.devices import DeviceWish

Model = tuple[str, str]
"""Vendor and model."""
Size = tuple[str, str, int]
"""Vendor, model and memory in MiB; 0 if the memory is not known."""


class DeviceSizes:
    def __init__(self) -> None:
        self._of_node: dict[str, dict[Model, int]] = {}
        self._largest: dict[Model, int] | None = None

    def put(self, node: str, devices: Iterable[Size] = ()) -> None:
        """Keep the sizes of a node's devices, in place of what was known of it; none if the node is gone."""
        sizes = ({(vendor, model): mib} for vendor, model, mib in devices if mib)
        known = _largest(sizes)
        if known == self._of_node.get(node, {}):
            return
        self._largest = None
        if known:
            self._of_node[node] = known
        else:
            del self._of_node[node]

    def largest_mib(self, wish: DeviceWish) -> int:
        """Return the memory of the largest device that this wish could get; 0 if none is known, or if what
        the wish counts for does not depend on it."""
        if not capacity.needs_memory(wish):
            return 0
        if self._largest is None:
            self._largest = _largest(self._of_node.values())
        fitting = (
            mib
            for (vendor, model), mib in self._largest.items()
            if wish.vendor in (None, vendor) and wish.model in ("", model)
        )
        return max(fitting, default=0)


def _largest(known: Iterable[dict[Model, int]]) -> dict[Model, int]:
    found: dict[Model, int] = {}
    for each in known:
        for model, mib in each.items():
            found[model] = max(mib, found.get(model, 0))
    return found
