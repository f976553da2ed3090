"""Nodes on which something became free, and which parked shapes each of them may help. Kept by
`Unschedulable`.

An opening stays until every shape that it may help was placed, was checked in vain or no longer fits by the
numbers. Slots are those of the wakeup index.
"""

from dataclasses import dataclass

import numpy as np

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Bools, Ints, Small, where
from gpu_orchestrator.engine.eligible_rows import EligibleRows
from gpu_orchestrator.engine.wakeup_index import WakeupIndex

RESTARTS = 4
"""How often an event may start the checks of a node again before all shapes were checked. Then the rest comes
first, or steady events on one node would keep it waiting forever."""


@dataclass(slots=True, eq=False)
class Opening:
    """`left` are the slots to be checked yet, `asked` those at the beginning. `is_paused`: the checks of one
    call were used up. `again`: something became free since the beginning that counts only after the rest."""

    name: str
    left: Bools
    asked: Bools
    restarts: int = 0
    is_paused: bool = False
    again: bool = False


class Openings:
    def __init__(self, wakeup: WakeupIndex, eligible: EligibleRows) -> None:
        self._wakeup, self._eligible = wakeup, eligible
        self._at: dict[int, Opening] = {}
        self._mark = 0
        self._counts: Small = np.zeros(17, np.int32)
        """By slot: how many openings may help it. The last one belongs to no slot."""

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, cluster: Cluster, name: str) -> bool:
        """Something became free on this node; return True if that may help a parked shape."""
        self.refresh(cluster)
        row = cluster.row(name)
        asked, known = self._candidates(cluster, row), self._at.get(row)
        opening = Opening(name, asked.copy(), asked)
        if known is not None and known.is_paused and known.name == name:
            opening.restarts = known.restarts + 1
            if opening.restarts > RESTARTS:
                # What was checked in vain before waits until the rest was checked.
                opening.left &= known.left | ~known.asked
                opening.is_paused = opening.again = True
        self._replace(row, opening if asked.any() else None)
        return row in self._at

    def refresh(self, cluster: Cluster) -> None:
        """Leave out what no longer fits by the numbers, after placements on these nodes."""
        mark, self._mark = self._mark, cluster.changed.mark
        if mark == self._mark or not self._at:
            return
        changed = cluster.changed.since(mark)
        rows = [row for row in (self._at if changed is None else changed) if row in self._at]
        for row in rows:
            opening = self._at[row]
            if opening.name not in cluster or cluster.row(opening.name) != row:
                self._replace(row, None)
                continue
            still = opening.left & self._candidates(cluster, row)
            self._counts -= opening.left & ~still
            opening.left = still

    def may_help(self, slot: int) -> bool:
        return self._counts.item(slot) > 0

    def offered(self) -> Bools:
        """Return by slot whether an opening may help it."""
        return self._counts > 0

    def rows_for(self, slot: int) -> Ints:
        """Return the rows of the nodes that may help this slot."""
        return np.array([row for row, opening in self._at.items() if opening.left.item(slot)], np.int64)

    def refuse(self, slot: int) -> None:
        """No opening helps this slot, by a closer look."""
        if self._counts[slot]:
            self._counts[slot] = 0
            for opening in self._at.values():
                opening.left[slot] = False

    def pause(self) -> None:
        """The checks of one call are used up; the rest comes in the next one."""
        for opening in self._at.values():
            opening.is_paused = True

    def settle(self, cluster: Cluster) -> Ints:
        """All that could be checked is checked: drop the openings, and return the slots that they may help,
        which is what has no turn now. An opening that something was added to begins again."""
        found = where(self._counts > 0)
        again = [opening.name for opening in self._at.values() if opening.again]
        self._at.clear()
        self._counts[:] = 0
        for name in again:
            if name in cluster:
                self.add(cluster, name)
        return found

    def make_room(self, slots: int) -> None:
        """Keep one flag more than there are slots."""
        more = slots + 1 - len(self._counts)
        if more > 0:
            more = max(more, len(self._counts))
            self._counts = np.concatenate((self._counts, np.zeros(more, np.int32)))
            for opening in self._at.values():
                none: Bools = np.zeros(more, np.bool_)
                opening.left = np.concatenate((opening.left, none))
                opening.asked = np.concatenate((opening.asked, none))

    def _candidates(self, cluster: Cluster, row: int) -> Bools:
        found: Bools = np.zeros(len(self._counts), np.bool_)
        met = self._wakeup.met_by(cluster, row)
        if len(met):
            found[self._eligible.among(met, row)] = True
        return found

    def _replace(self, row: int, opening: Opening | None) -> None:
        if (known := self._at.pop(row, None)) is not None:
            self._counts -= known.left
        if opening is not None:
            self._at[row] = opening
            self._counts += opening.left
