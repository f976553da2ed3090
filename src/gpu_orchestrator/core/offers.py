"""Offers: all nodes that fit, with the devices each would give. Opinions rate them.

Everything is an array with one value per offer, computed on first use.
"""

from collections.abc import Iterable
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, Small, some
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.filters.devices import Kind, masks_of
from gpu_orchestrator.core.lazy import lazy
from gpu_orchestrator.core.policy import Allocator, Choice
from gpu_orchestrator.core.topology import mask_of, weakest_link

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


class Offers:
    """Offers of one kind of device by one allocator. `known` caches chosen device sets, because many nodes
    are in the same state."""

    def __init__(
        self, cluster: "Cluster", kind: Kind, allocate: Allocator, rows: Ints, known: "Known"
    ) -> None:
        self.cluster, self.kind, self.allocate, self.rows, self.known = cluster, kind, allocate, rows, known
        self.shape = kind.shape

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        nodes = self.cluster.inventory.nodes
        return [node.name for row in self.rows if (node := nodes[row])]

    @property
    def gpus(self) -> Small:
        """Devices of the node."""
        return self.cluster.inventory.gpus[self.rows]

    @property
    def free_gpus(self) -> Small:
        """Healthy devices that are free."""
        return self.cluster.usage.whole[self.rows]

    @property
    def free_milli(self) -> Small:
        """Free capacity of the healthy devices, shares included: 1000 per whole device. For a request for
        slices, that of the slices."""
        usage = self.cluster.usage
        return (usage.slice_milli if self.shape.profile else usage.spare_milli)[self.rows]

    @property
    def gpu_load(self) -> Floats:
        """Part of the node's GPUs that is taken or unhealthy, 0 to 1; 0 for nodes without GPUs."""
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
        has: Bools = inventory.label_at(key, self.rows) == inventory.names.find(value)
        return has

    def label_number(self, key: str) -> Floats:
        """A label as a number; NaN where it is missing or not a number."""
        return self.cluster.inventory.number_at(key, self.rows)

    @lazy
    def free_devices(self) -> Bools:
        """One row per offer, one column per device: which of them could be given."""
        return self.kind.free(self.cluster, self.rows)

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
        """The devices that each node would give."""
        known = self.known
        if len(known) > MOST_KNOWN:
            known.clear()
        states = self._states()
        return [known.get(state) or self._choose(state) for state in states]

    @property
    def bandwidth_gbps(self) -> Floats:
        """Weakest link of the devices that each node would give; infinite for fewer than two devices."""
        return np.array([each.gbps for each in self.sets])

    @property
    def left_in_islands(self) -> Floats:
        """Free devices left over in the islands that the offer takes from; fewer means fewer broken
        islands."""
        return np.array([each.left_in_islands for each in self.sets])

    @property
    def begun(self) -> Small:
        """Wholly free devices that the offer takes, or takes a share of."""
        if self.shape.exclusive or not self.shape.gpus:
            return np.full(len(self), self.shape.whole_gpus, np.int32)
        untouched = some(self.cluster.usage.holders, self.rows) == 0
        taken = [free[list(each.positions)].sum() for free, each in zip(untouched, self.sets, strict=True)]
        return np.array(taken, np.int32)

    def chosen(self) -> "DeviceSet":
        """Return the devices of the first offer, after a check that the allocator kept the rules."""
        if not self.shape.gpus:
            return DeviceSet((), (), inf, 0.0)
        chosen = self.sets[0]
        if self.shape.needs_bandwidth and chosen.gbps < self.shape.min_bandwidth_gbps:
            due = f"{self.shape.min_bandwidth_gbps} are required and to be had"
            raise InvalidRequest(f"the allocator offered {chosen.gbps:g} GB/s where {due}")
        return chosen

    def _states(self) -> "list[State]":
        """Everything that decides which devices a node gives: its links, what is free and, for shares, how
        much."""
        layouts = self.cluster.inventory.topology[self.rows].tolist()
        masks = masks_of(self.free_devices)
        if self.shape.exclusive:
            return list(zip(layouts, masks, _NO_ROOM, strict=False))
        usage = self.cluster.usage
        milli, mib = some(usage.free_milli, self.rows).tolist(), some(usage.free_mib, self.rows).tolist()
        rooms = [tuple(zip(a, b, strict=True)) for a, b in zip(milli, mib, strict=True)]
        return list(zip(layouts, masks, rooms, strict=True))

    def _choose(self, state: "State") -> "DeviceSet":
        layout, free, room = state
        shape, topology = self.shape, self.cluster.inventory.names.values[layout]
        choice = Choice(topology, free, shape.gpus, shape.asked_gbps, shape.prefer_ids, room)
        chosen = self.known[state] = _device_set(choice, self.allocate(choice))
        return chosen


State = tuple[int, int, tuple[tuple[int, int], ...]]
Known = dict[State, "DeviceSet"]
MOST_KNOWN = 1 << 14
_NO_ROOM: Iterable[tuple[tuple[int, int], ...]] = repeat(())


class DeviceSet(NamedTuple):
    positions: tuple[int, ...]
    ids: tuple[int, ...]
    gbps: float
    left_in_islands: float


def _device_set(choice: Choice, positions: tuple[int, ...]) -> DeviceSet:
    _check(choice, positions)
    topology = choice.topology
    ids = tuple(topology.ids[at] for at in positions)
    return DeviceSet(positions, ids, weakest_link(topology, positions), _left_over(choice, positions))


def _left_over(choice: Choice, positions: tuple[int, ...]) -> float:
    islands = choice.topology.islands
    touched = {islands[at] for at in positions}
    rest = choice.free & ~mask_of(positions)
    return float(sum(1 for at, island in enumerate(islands) if rest >> at & 1 and island in touched))


def _check(choice: Choice, positions: tuple[int, ...]) -> None:
    taken = mask_of(positions)
    if len(positions) != choice.gpus or taken.bit_count() != choice.gpus or taken & ~choice.free:
        due = f"{choice.gpus} different ones of {choice.positions} were due"
        raise InvalidRequest(f"the allocator offered positions {positions}; {due}")
