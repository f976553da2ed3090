"""Offers: nodes that fit, seen all at once, with the devices each would give. What opinions look at.

Everything is an array with one value per offer, computed when first asked for.
"""

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, Small
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.filters.devices import Kind, masks_of
from gpu_orchestrator.core.policy import Allocator, Choice
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.topology import Topology, mask_of, weakest_link

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


class Offers:
    def __init__(self, cluster: "Cluster", shape: Shape, allocate: Allocator, rows: Ints) -> None:
        self.cluster, self.shape, self.allocate, self.rows = cluster, shape, allocate, rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        nodes = self.cluster.inventory.nodes
        return [node.name for row in self.rows if (node := nodes[row])]

    @property
    def gpus(self) -> Small:
        """Devices the node has."""
        return self.cluster.inventory.gpus[self.rows]

    @property
    def free_gpus(self) -> Small:
        """Healthy devices nobody holds."""
        return self.cluster.usage.whole[self.rows]

    @property
    def free_milli(self) -> Small:
        """What is free of the healthy devices, shares included: 1000 per whole device."""
        return self.cluster.usage.spare_milli[self.rows]

    @cached_property
    def gpu_load(self) -> Floats:
        """Part of the node's GPUs that is taken or out of order, 0 to 1; 0 for nodes without GPUs."""
        load: Floats = 1.0 - self.free_milli / np.maximum(self.gpus * WHOLE, 1)
        load[self.gpus == 0] = 0
        return load

    def resource_load(self, resource: str) -> Floats:
        """Part of a resource that is taken, 0 to 1; 1 where there is none of it."""
        kind = self.cluster.inventory.kind(resource)
        if kind >= min(self.cluster.usage.kinds, self.cluster.inventory.kinds):
            return np.ones(len(self))
        has = self.cluster.inventory.capacity[self.rows, kind]
        load: Floats = 1.0 - self.cluster.usage.free[self.rows, kind] / np.maximum(has, 1)
        return load

    def has_label(self, key: str, value: str) -> Bools:
        inventory = self.cluster.inventory
        has: Bools = inventory.label(key)[self.rows] == inventory.names.number(value)
        return has

    def label_number(self, key: str) -> Floats:
        """A label read as a number; NaN where it is missing or none."""
        return self.cluster.inventory.label_as_number(key)[self.rows]

    @cached_property
    def free_devices(self) -> Bools:
        """One row per offer, one column per device: which of them could be given."""
        return Kind(self.shape, self.cluster.inventory).free(self.cluster, self.rows)

    @cached_property
    def left_on_tightest(self) -> Small:
        """Milli left on the fullest device that could be given; 0 for whole devices, which leave nothing."""
        if self.shape.exclusive or not self.shape.gpus:
            return np.zeros(len(self), np.int32)
        room = np.where(self.free_devices, self.cluster.usage.free_milli[self.rows], WHOLE)
        left: Small = room.min(axis=1) - self.shape.milli
        return left

    @cached_property
    def devices(self) -> list[tuple[int, ...]]:
        """The positions each node would give."""
        return [_allocated(self.allocate, choice) for choice in self._choices()]

    @cached_property
    def bandwidth_gbps(self) -> Floats:
        """Weakest link of the devices each node would give; infinite for fewer than two devices."""
        return np.array(
            [_weakest(t, d) for t, d in zip(self._topologies(), self.devices, strict=True)], float
        )

    @cached_property
    def left_in_islands(self) -> Small:
        """Free devices left over in the islands the offer takes from; the fewer, the fewer are broken up."""
        sets = zip(self._topologies(), masks_of(self.free_devices), self.devices, strict=True)
        return np.array([_left_over(*each) for each in sets], np.int32)

    def chosen(self) -> tuple[tuple[int, ...], float]:
        """Ids and weakest link of the first offer, after making sure that the allocator kept the rules."""
        if not self.shape.gpus:
            return (), np.inf
        (topology,), (choice,) = self._topologies()[:1], self._choices()[:1]
        positions = _allocated(self.allocate, choice)
        link = _weakest(topology, positions)
        _check(self.shape, choice, positions, link)
        return tuple(topology.ids[at] for at in positions), link

    def _topologies(self) -> list[Topology]:
        inventory = self.cluster.inventory
        return [inventory.names.values[at] for at in inventory.topology[self.rows].tolist()]

    def _choices(self) -> list[Choice]:
        shape, rooms = self.shape, self._rooms()
        return [
            Choice(topology, mask, shape.gpus, shape.asked_gbps, shape.prefer_ids, room)
            for topology, mask, room in zip(
                self._topologies(), masks_of(self.free_devices), rooms, strict=True
            )
        ]

    def _rooms(self) -> list[tuple[tuple[int, int], ...]]:
        if self.shape.exclusive:
            return [()] * len(self)
        usage = self.cluster.usage
        milli, mib = usage.free_milli[self.rows].tolist(), usage.free_mib[self.rows].tolist()
        return [tuple(zip(a, b, strict=True)) for a, b in zip(milli, mib, strict=True)]


@lru_cache(maxsize=1 << 16)
def _allocated(allocate: Allocator, choice: Choice) -> tuple[int, ...]:
    return allocate(choice)


@lru_cache(maxsize=1 << 16)
def _weakest(topology: Topology, positions: tuple[int, ...]) -> float:
    return weakest_link(topology, positions)


@lru_cache(maxsize=1 << 16)
def _left_over(topology: Topology, free: int, positions: tuple[int, ...]) -> int:
    touched = {topology.islands[at] for at in positions}
    rest = free & ~mask_of(positions)
    return sum(1 for at, island in enumerate(topology.islands) if rest >> at & 1 and island in touched)


def _check(shape: Shape, choice: Choice, positions: tuple[int, ...], link: float) -> None:
    taken = mask_of(positions)
    if len(positions) != shape.gpus or taken.bit_count() != shape.gpus or taken & ~choice.free:
        due = f"{shape.gpus} different ones of {choice.positions} were due"
        raise InvalidRequest(f"the allocator offered positions {positions}; {due}")
    if shape.needs_bandwidth and link < shape.min_bandwidth_gbps:
        due = f"{shape.min_bandwidth_gbps} are required and to be had"
        raise InvalidRequest(f"the allocator offered {link:g} GB/s where {due}")
