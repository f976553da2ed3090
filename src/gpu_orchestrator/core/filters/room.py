"""Filters on everything that is not a device: cpu, memory, pods, extended resources, host ports."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Ints
from gpu_orchestrator.core.filters.base import Filter
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.request import HostPort, Shape

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


def for_shape(shape: Shape, inventory: Inventory) -> Iterator[Filter]:
    for name, amount in shape.resources:
        yield Enough(name, amount, inventory.kind(name))
    for port in shape.host_ports:
        yield PortFree(port)


class Enough(Filter):
    fact = False

    def __init__(self, name: str, amount: int, kind: int) -> None:
        self.name, self.amount, self.kind = name, amount, kind
        self.reason = f"have too little {name}"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        if self.kind >= cluster.usage.kinds:
            return np.zeros(len(rows), np.bool_)
        passed: Bools = cluster.usage.free[rows, self.kind] >= self.amount
        return passed

    def lack(self, cluster: "Cluster", row: int) -> str:
        free = int(cluster.usage.free[row, self.kind]) if self.kind < cluster.usage.kinds else 0
        return f"lacks {self.amount - free} {self.name} ({free} of {self.amount})"


class PortFree(Filter):
    fact = False

    def __init__(self, port: HostPort) -> None:
        self.port = port
        self.reason = f"have host port {port.port} taken"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return np.fromiter((not self._taken(cluster, row) for row in rows), np.bool_, len(rows))

    def _taken(self, cluster: "Cluster", row: int) -> bool:
        held = cluster.usage.held[row].values() if row < len(cluster.usage.held) else ()
        return any(self.port.clashes(port) for placement in held for port in placement.host_ports)
