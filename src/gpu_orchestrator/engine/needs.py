"""What parked shapes need, as one table, so that "could this node help anyone?" is one comparison for all of
them.

A necessary condition only: whoever passes is looked at closely.
"""

import numpy as np

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Bools, Ints
from gpu_orchestrator.core.request import Shape

NOTHING = np.iinfo(np.int64).min
IMPOSSIBLE = np.iinfo(np.int64).max
WHOLE_DEVICES, MILLI, FIRST_RESOURCE = 0, 1, 2


class Needs:
    def __init__(self) -> None:
        self._table: Ints = np.full((16, FIRST_RESOURCE), IMPOSSIBLE, np.int64)

    def set(self, slot: int, shape: Shape, cluster: Cluster) -> None:
        kinds = [(FIRST_RESOURCE + cluster.inventory.kind(name), amount) for name, amount in shape.resources]
        self._make_room(slot + 1, 1 + max((kind for kind, _ in kinds), default=0))
        row = self._table[slot]
        row[:] = NOTHING
        if shape.exclusive:
            row[WHOLE_DEVICES] = shape.gpus
        else:
            row[MILLI] = shape.gpus * shape.milli
        for kind, amount in kinds:
            row[kind] = amount

    def clear(self, slot: int) -> None:
        self._table[slot] = IMPOSSIBLE

    def met_by(self, cluster: Cluster, row: int) -> Bools:
        """For each slot whether this node has, by the numbers, enough."""
        usage, width = cluster.usage, self._table.shape[1]
        has = np.zeros(max(width, FIRST_RESOURCE + usage.kinds), np.int64)
        has[WHOLE_DEVICES], has[MILLI] = usage.whole[row], usage.spare_milli[row]
        has[FIRST_RESOURCE : FIRST_RESOURCE + usage.kinds] = usage.free[row]
        met: Bools = np.logical_and.reduce(self._table <= has[:width], axis=1)
        return met

    def _make_room(self, slots: int, width: int) -> None:
        old = self._table
        if slots <= old.shape[0] and width <= old.shape[1]:
            return
        rows = old.shape[0] if slots <= old.shape[0] else max(slots, 2 * old.shape[0])
        self._table = np.full((rows, max(width, old.shape[1])), IMPOSSIBLE, np.int64)
        self._table[: old.shape[0], : old.shape[1]] = old
        if width > old.shape[1]:
            used = old[:, 0] != IMPOSSIBLE
            self._table[: old.shape[0], old.shape[1] :][used] = NOTHING
