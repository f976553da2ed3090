"""Offers: nodes that fit, seen all at once, with the devices each would give. What opinions look at.

Everything is an array with one value per offer, computed when first asked for.
"""

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, Small, some
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.filters.devices import Kind, masks_of
from gpu_orchestrator.core.lazy import lazy
from gpu_orchestrator.core.policy import Allocator, Choice
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.topology import mask_of, weakest_link

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

    @property
    def gpu_load(self) -> Floats:
        """Part of the node's GPUs that is taken or out of order, 0 to 1; 0 for nodes without GPUs."""
        return self.cluster.usage.gpu_load[self.rows]

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

    @lazy
    def free_devices(self) -> Bools:
        """One row per offer, one column per device: which of them could be given."""
        return Kind(self.shape, self.cluster.inventory).free(self.cluster, self.rows)

    @lazy
    def left_on_tightest(self) -> Small:
        """Milli left on the fullest device that could be given; 0 for whole devices, which leave nothing."""
        if self.shape.exclusive or not self.shape.gpus:
            return np.zeros(len(self), np.int32)
        room = np.where(self.free_devices, some(self.cluster.usage.free_milli, self.rows), WHOLE)
        left: Small = room.min(axis=1) - self.shape.milli
        return left

    @lazy
    def sets(self) -> list["DeviceSet"]:
        """The devices each node would give."""
        return [_offered(self.allocate, choice) for choice in self.choices]

    @property
    def bandwidth_gbps(self) -> Floats:
        """Weakest link of the devices each node would give; infinite for fewer than two devices."""
        return np.array([each.gbps for each in self.sets])

    @property
    def left_in_islands(self) -> Floats:
        """Free devices left over in the islands the offer takes from; the fewer, the fewer are broken up."""
        return np.array([each.left_in_islands for each in self.sets])

    @lazy
    def choices(self) -> list[Choice]:
        """What the allocator chooses from on each node."""
        inventory, shape = self.cluster.inventory, self.shape
        gpus, asked, prefer, values = shape.gpus, shape.asked_gbps, shape.prefer_ids, inventory.names.values
        layouts, masks = inventory.topology[self.rows].tolist(), masks_of(self.free_devices)
        return [
            Choice(values[layout], mask, gpus, asked, prefer, room)
            for layout, mask, room in zip(layouts, masks, self._rooms(), strict=True)
        ]

    def chosen(self) -> "DeviceSet":
        """The devices of the first offer, after making sure that the allocator kept the rules."""
        if not self.shape.gpus:
            return DeviceSet((), (), inf, 0.0)
        _check(self.shape, self.choices[0], self.sets[0])
        return self.sets[0]

    def _rooms(self) -> list[tuple[tuple[int, int], ...]]:
        if self.shape.exclusive:
            return [()] * len(self)
        usage = self.cluster.usage
        milli, mib = usage.free_milli[self.rows].tolist(), usage.free_mib[self.rows].tolist()
        return [tuple(zip(a, b, strict=True)) for a, b in zip(milli, mib, strict=True)]


class DeviceSet(NamedTuple):
    positions: tuple[int, ...]
    ids: tuple[int, ...]
    gbps: float
    left_in_islands: float


@lru_cache(maxsize=1 << 16)
def _offered(allocate: Allocator, choice: Choice) -> DeviceSet:
    """Remembered: nodes in the same state are many."""
    positions, topology = allocate(choice), choice.topology
    ids = tuple(topology.ids[at] for at in positions)
    return DeviceSet(positions, ids, weakest_link(topology, positions), _left_over(choice, positions))


def _left_over(choice: Choice, positions: tuple[int, ...]) -> float:
    islands = choice.topology.islands
    touched = {islands[at] for at in positions}
    rest = choice.free & ~mask_of(positions)
    return float(sum(1 for at, island in enumerate(islands) if rest >> at & 1 and island in touched))


def _check(shape: Shape, choice: Choice, chosen: DeviceSet) -> None:
    taken = mask_of(chosen.positions)
    if len(chosen.positions) != shape.gpus or taken.bit_count() != shape.gpus or taken & ~choice.free:
        due = f"{shape.gpus} different ones of {choice.positions} were due"
        raise InvalidRequest(f"the allocator offered positions {chosen.positions}; {due}")
    if shape.needs_bandwidth and chosen.gbps < shape.min_bandwidth_gbps:
        due = f"{shape.min_bandwidth_gbps} are required and to be had"
        raise InvalidRequest(f"the allocator offered {chosen.gbps:g} GB/s where {due}")
