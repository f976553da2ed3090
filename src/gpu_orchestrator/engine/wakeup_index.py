"""What parked shapes need, as one table: one comparison finds all shapes that a node could help.

It is a necessary condition only: the caller then checks each match closely. Slices of GPUs are not counted
here. One column per parked shape, one row per kind of resource. Memory is that of the device which has the
least of those that a shape gets at best.
"""

from collections.abc import Set

import numpy as np

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Bools, Ints, count_in_row, some, where
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.engine import slot_sets

NOTHING = np.iinfo(np.int64).min
IMPOSSIBLE = np.iinfo(np.int64).max
WHOLE_DEVICES, MILLI, MEMORY, DEVICES, FIRST_RESOURCE = 0, 1, 2, 3, 4
MOST_CLEARED = 64
FEW = 4
"""Up to this number, slots are compared one by one: numpy costs more than it saves there."""


class WakeupIndex:
    def __init__(self) -> None:
        self._table: Ints = np.full((FIRST_RESOURCE, 16), IMPOSSIBLE, np.int64)
        self._least: _Least | None = None
        self._unheard: dict[int, Shape] = {}
        self._used: dict[int, list[int]] = {}
        """What each slot needs, as in its column."""
        self._kinds = self._cleared = 0

    def set(self, slot: int, shape: Shape, cluster: Cluster) -> None:
        self.clear(slot)
        if not all(cluster.inventory.kind(name) for name, _ in shape.resources):
            self._unheard[slot] = shape  # it needs a resource that no node has; `_hear_of_new` tries again
            self._make_room(0, slot + 1)
            return
        kinds = [(FIRST_RESOURCE + cluster.inventory.kind(name), amount) for name, amount in shape.resources]
        self._make_room(1 + max((kind for kind, _ in kinds), default=0), slot + 1)
        needs = self._table[:, slot]
        needs[:] = NOTHING
        if shape.exclusive:
            needs[WHOLE_DEVICES] = shape.whole_gpus
        else:
            needs[MILLI] = shape.gpus * shape.milli
        if shape.gpus and shape.memory_mib and not shape.profile:
            needs[MEMORY], needs[DEVICES] = shape.memory_mib, shape.gpus
        for kind, amount in kinds:
            needs[kind] = amount
        self._used[slot] = needs.tolist()
        if self._least is not None:
            self._least.include(needs)

    def clear(self, slot: int) -> None:
        """Forget a slot. What the others need at least is counted again only now and then."""
        self._cleared += 1
        if self._cleared > MOST_CLEARED:
            self._least = None
        self._unheard.pop(slot, None)
        self._used.pop(slot, None)
        if slot < self._table.shape[1]:
            self._table[:, slot] = IMPOSSIBLE

    def met_by(self, cluster: Cluster, row: int) -> int:
        """Return the set of slots for which this node has enough by the numbers. First compare with the least
        that any of them needs: that decides most often."""
        self._hear_of_new(cluster)
        if len(self._used) <= FEW:
            return sum(1 << slot for slot, needs in self._used.items() if _is_met(needs, cluster, row))
        usage, table = cluster.usage, self._table
        whole, milli = usage.whole.item(row), usage.spare_milli.item(row)
        has = np.zeros(table.shape[0] - FIRST_RESOURCE, np.int64)
        known = min(len(has), usage.kinds)
        has[:known] = usage.free[row, :known]
        if self._least is None:
            self._least, self._cleared = _Least(table), 0
        if self._least.is_above(whole, milli, has):
            return 0
        met: Bools = (table[WHOLE_DEVICES] <= whole) & (table[MILLI] <= milli)
        for kind in self._least.needed:
            met &= table[FIRST_RESOURCE + kind] <= has[kind]
        if self._least.devices and met.any():
            met &= self._has_memory(cluster, row, self._least.devices)
        return slot_sets.of(met)

    def _has_memory(self, cluster: Cluster, row: int, numbers: Set[int]) -> Bools:
        """Return by slot whether devices have enough memory: for a shape with three devices, the one with the
        third most. Mostly all shapes ask for the same number of devices."""
        free = cluster.usage.free_mib[row][cluster.inventory.usable[row]]
        has = np.concatenate(([IMPOSSIBLE], np.sort(free)[::-1], [NOTHING]))
        devices: Ints | int = self._table[DEVICES] if len(numbers) > 1 else next(iter(numbers))
        enough: Bools = self._table[MEMORY] <= has[np.clip(devices, 0, len(has) - 1)]
        return enough

    def _hear_of_new(self, cluster: Cluster) -> None:
        """Add the shapes that need a resource which no node had, once a node offers a new resource."""
        if self._kinds != (kinds := len(cluster.inventory.kinds_of)):
            self._kinds = kinds
            for slot, shape in list(self._unheard.items()):
                self.set(slot, shape, cluster)

    def _make_room(self, kinds: int, slots: int) -> None:
        old = self._table
        if kinds <= old.shape[0] and slots <= old.shape[1]:
            return
        width = old.shape[1] if slots <= old.shape[1] else max(slots, 2 * old.shape[1])
        self._table = np.full((max(kinds, old.shape[0]), width), IMPOSSIBLE, np.int64)
        self._table[: old.shape[0], : old.shape[1]] = old
        used = where(old[WHOLE_DEVICES] != IMPOSSIBLE)
        self._table[old.shape[0] :, used] = NOTHING
        self._least = None


def _is_met(needs: list[int], cluster: Cluster, row: int) -> bool:
    """Compare what one slot needs with what the node has."""
    usage, usable = cluster.usage, cluster.inventory.usable
    if needs[WHOLE_DEVICES] > usage.whole.item(row) or needs[MILLI] > usage.spare_milli.item(row):
        return False
    for kind, amount in enumerate(needs[FIRST_RESOURCE:]):
        if amount != NOTHING and amount > (usage.free.item(row, kind) if kind < usage.kinds else 0):
            return False
    if needs[MEMORY] == NOTHING:
        return True
    large: Bools = (usage.free_mib[row] >= needs[MEMORY]) & usable[row]
    return int(np.count_nonzero(large)) >= needs[DEVICES]


def is_met_anywhere(shape: Shape, cluster: Cluster) -> bool:
    """Return True if some node has enough for the shape by the numbers. If none has, the shape fits nowhere,
    and the closer look at every node can be saved."""
    usage, inventory = cluster.usage, cluster.inventory
    has, needs = (
        (usage.whole, shape.whole_gpus) if shape.exclusive else (usage.spare_milli, shape.gpus * shape.milli)
    )
    takes_any: Bools = inventory.alive & inventory.ready & inventory.schedulable
    rows = where(takes_any & (has[: inventory.size] >= needs))
    for name, amount in shape.resources:
        kind = inventory.kind(name)
        if not len(rows) or not 0 < kind < usage.kinds:
            return False
        rows = rows[usage.free[rows, kind] >= amount]
    if len(rows) and shape.gpus and shape.memory_mib and not shape.profile:
        large: Bools = (some(usage.free_mib, rows) >= shape.memory_mib) & some(inventory.usable, rows)
        rows = rows[count_in_row(large) >= shape.gpus]
    return len(rows) > 0


class _Least:
    """The least that any shape in the table needs; a node with less helps none. `needed` are the kinds of
    resources that some shape needs, `devices` the numbers of devices on which some shape needs memory. After
    shapes left, the least may be less than the truth, and the others more."""

    def __init__(self, table: Ints) -> None:
        used = table[:, table[WHOLE_DEVICES] != IMPOSSIBLE]
        self._whole, self._milli = _least(used[WHOLE_DEVICES]), _least(used[MILLI])
        self._resources = used[FIRST_RESOURCE:].min(axis=1, initial=IMPOSSIBLE)
        most = used[FIRST_RESOURCE:].max(axis=1, initial=NOTHING)
        self.needed: set[int] = set(where(most != NOTHING).tolist())
        self.devices: set[int] = set(np.unique(used[DEVICES]).tolist()) - {NOTHING}

    def include(self, needs: Ints) -> None:
        """One more shape needs this."""
        self._whole = min(self._whole, _least(needs[WHOLE_DEVICES : WHOLE_DEVICES + 1]))
        self._milli = min(self._milli, _least(needs[MILLI : MILLI + 1]))
        resources = needs[FIRST_RESOURCE:]
        self._resources = np.minimum(self._resources, resources)
        self.needed.update(where(resources != NOTHING).tolist())
        self.devices |= set(needs[DEVICES : DEVICES + 1].tolist()) - {NOTHING}

    def is_above(self, whole: int, milli: int, has: Ints) -> bool:
        if whole < self._whole and milli < self._milli:
            return True
        return bool((self._resources > has).any())


def _least(needs: Ints) -> int:
    return int(needs[needs != NOTHING].min(initial=IMPOSSIBLE))
