"""Filters on everything that is not a device: cpu, memory, pods, extended resources, host ports, volumes."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Ints, all_in_row, some
from gpu_orchestrator.core.filters.base import Filter
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.request import HostPort, Shape

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


def for_shape(shape: Shape, inventory: Inventory) -> Iterator[Filter]:
    if shape.resources:
        yield Enough(shape.resources, inventory)
    if shape.host_ports:
        yield PortsFree(shape.host_ports)
    if shape.volumes:
        yield Attachable(shape.volumes)


class Enough(Filter):
    """Enough of every requested resource, in one comparison for all of them."""

    fact = False

    def __init__(self, asked: tuple[tuple[str, int], ...], inventory: Inventory) -> None:
        self.names = [name for name, _ in asked]
        self.amounts = np.array([amount for _, amount in asked], np.int64)
        self.floors: dict[int, Ints] = {}
        self.unheard = True
        self._resolve(inventory)

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        self._resolve(cluster.inventory)
        kinds = cluster.usage.kinds
        if self.unheard or kinds <= max(self.kinds):
            return np.zeros(len(rows), np.bool_)
        floor = self.floors.get(kinds)
        if floor is None:
            floor = self.floors[kinds] = self._floor(kinds)
        return all_in_row(some(cluster.usage.free, rows) >= floor)

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        first_short = (self.free(cluster, rows) < self.amounts).argmax(axis=1)
        has_any = self.capacity(cluster.inventory, rows)[np.arange(len(rows)), first_short] > 0
        counted = enumerate(np.bincount(2 * first_short + has_any).tolist())
        return {_short_of(self.names[at >> 1], has_any=bool(at & 1)): n for at, n in counted if n}

    def lack(self, cluster: "Cluster", row: int) -> str:
        free = np.maximum(self.free(cluster, np.array([row]))[0], 0)
        short = [
            f"{asked - has} {name} ({has} of {asked})"
            for name, has, asked in zip(self.names, free.tolist(), self.amounts.tolist(), strict=True)
            if has < asked
        ]
        return f"lacks {' and '.join(short)}"

    def free(self, cluster: "Cluster", rows: Ints) -> Ints:
        """Return what is free of each requested resource, one row per node."""
        self._resolve(cluster.inventory)
        return _columns(cluster.usage.free, rows, self.kinds)

    def capacity(self, inventory: Inventory, rows: Ints) -> Ints:
        self._resolve(inventory)
        return _columns(inventory.capacity, rows, self.kinds)

    def _resolve(self, inventory: Inventory) -> None:
        """Look up the columns again: a resource that was unknown when it was requested may have one by
        now."""
        if self.unheard:
            self.kinds = [inventory.kind(name) for name in self.names]
            self.unheard = 0 in self.kinds
            self.floors.clear()

    def _floor(self, kinds: int) -> Ints:
        """Return what must be free of every kind of resource; for kinds not requested, any number passes,
        even a negative one."""
        floor = np.full(kinds, np.iinfo(np.int64).min)
        floor[self.kinds] = self.amounts
        return floor


def _short_of(name: str, *, has_any: bool) -> str:
    if name == "pods":
        return "have no room for another pod"
    return f"have too little {name}" if has_any else f"have no {name}"


def _columns(amounts: Ints, rows: Ints, kinds: list[int]) -> Ints:
    """Return some columns of some rows; zeroes for a resource that no node ever had."""
    if max(kinds) < amounts.shape[1]:
        return amounts[rows][:, kinds]
    known = [kind if kind < amounts.shape[1] else 0 for kind in kinds]
    return amounts[rows][:, known]  # column 0 belongs to no resource and stays zero


class PortsFree(Filter):
    """No pod of the node has one of the host ports. One filter for all of them: each node's pods are looked
    through once."""

    fact = False

    def __init__(self, ports: tuple[HostPort, ...]) -> None:
        self.ports = ports
        self.alike: dict[tuple[int, str], list[HostPort]] = {}
        for port in ports:
            self.alike.setdefault((port.port, port.protocol), []).append(port)

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return np.fromiter((self._taken(cluster, row) is None for row in rows.tolist()), np.bool_, len(rows))

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        taken = (self._taken(cluster, row) for row in rows.tolist())
        return Counter(f"have host port {port.port} taken" for port in taken if port)

    def _taken(self, cluster: "Cluster", row: int) -> HostPort | None:
        """Return the first of the ports that a pod of this node has."""
        held = cluster.usage.held[row].values() if row < len(cluster.usage.held) else ()
        used = (port for placement in held if placement.host_ports for port in placement.host_ports)
        taken = [
            mine
            for port in used
            for mine in self.alike.get((port.port, port.protocol), ())
            if mine.clashes(port)
        ]
        return min(taken, key=self.ports.index, default=None)


class Attachable(Filter):
    """The node can attach the request's volumes beside those of its pods. A volume that several use is
    attached once; a driver without a limit attaches any number."""

    fact = False
    reason = "have no room for another attached volume"

    def __init__(self, volumes: tuple[tuple[str, str], ...]) -> None:
        self.volumes = frozenset(volumes)

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return np.fromiter((self._can_attach(cluster, row) for row in rows), np.bool_, len(rows))

    def _can_attach(self, cluster: "Cluster", row: int) -> bool:
        node = cluster.inventory.nodes[row]
        if node is None or not node.volume_limits:
            return True
        attached = {each for held in cluster.usage.held[row].values() for each in held.volumes}
        needed = {driver for driver, _ in self.volumes - attached}
        counts = Counter(driver for driver, _ in attached | self.volumes)
        return all(counts[driver] <= most for driver, most in node.volume_limits if driver in needed)
