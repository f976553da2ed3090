"""What parked shapes need, as one table: one comparison finds all shapes that a node could help.

It is a necessary condition only: the caller then checks each match closely. One column per parked shape, one
row per kind of resource.
"""

import numpy as np

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Ints, where
from gpu_orchestrator.core.request import Shape

NOTHING = np.iinfo(np.int64).min
IMPOSSIBLE = np.iinfo(np.int64).max
WHOLE_DEVICES, MILLI, FIRST_RESOURCE = 0, 1, 2
NONE: Ints = np.zeros(0, np.int64)


class WakeupIndex:
    def __init__(self) -> None:
        self._table: Ints = np.full((FIRST_RESOURCE, 16), IMPOSSIBLE, np.int64)
        self._least: tuple[int, int] | None = None
        self._unheard: dict[int, Shape] = {}
        self._kinds = 0

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
            needs[WHOLE_DEVICES] = shape.gpus
        else:
            needs[MILLI] = shape.gpus * shape.milli
        for kind, amount in kinds:
            needs[kind] = amount

    def clear(self, slot: int) -> None:
        self._least = None
        self._unheard.pop(slot, None)
        if slot < self._table.shape[1]:
            self._table[:, slot] = IMPOSSIBLE

    def met_by(self, cluster: Cluster, row: int) -> Ints:
        """Return the slots for which this node has enough by the numbers. Devices are compared first, because
        they decide most often."""
        self._hear_of_new(cluster)
        usage, table = cluster.usage, self._table
        whole, milli = usage.whole.item(row), usage.spare_milli.item(row)
        if self._least is None:
            self._least = _least(table[WHOLE_DEVICES]), _least(table[MILLI])
        if whole < self._least[0] and milli < self._least[1]:
            return NONE
        slots = where((table[WHOLE_DEVICES] <= whole) & (table[MILLI] <= milli))
        kinds = table.shape[0] - FIRST_RESOURCE
        has = np.zeros(kinds, np.int64)
        known = min(kinds, usage.kinds)
        has[:known] = usage.free[row, :known]
        enough = np.logical_and.reduce(table[FIRST_RESOURCE:, slots] <= has[:, None], axis=0)
        return slots[enough]

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


def is_met_anywhere(shape: Shape, cluster: Cluster) -> bool:
    """Return True if some node has enough for the shape by the numbers. If none has, the shape fits nowhere,
    and the closer look at every node can be saved."""
    usage, inventory = cluster.usage, cluster.inventory
    has, needs = (
        (usage.whole, shape.gpus) if shape.exclusive else (usage.spare_milli, shape.gpus * shape.milli)
    )
    rows = where(inventory.alive & (has[: inventory.size] >= needs))
    for name, amount in shape.resources:
        kind = inventory.kind(name)
        if not len(rows) or not 0 < kind < usage.kinds:
            return False
        rows = rows[usage.free[rows, kind] >= amount]
    return len(rows) > 0


def _least(needs: Ints) -> int:
    """Smallest requirement in the column; a node with less cannot help any parked shape."""
    return int(needs[needs != NOTHING].min(initial=IMPOSSIBLE))
