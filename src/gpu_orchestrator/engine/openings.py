"""Nodes on which something became free, and which parked shapes each of them may help. Kept by
`Unschedulable`.

An opening stays until every shape that it may help was placed, was checked in vain or no longer fits by the
numbers. Slots are those of the wakeup index.
"""

from dataclasses import dataclass

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.engine import slot_sets
from gpu_orchestrator.engine.eligible_rows import EligibleRows
from gpu_orchestrator.engine.wakeup_index import WakeupIndex

RESTARTS = 4
"""How often an event may start the checks of a node again before all shapes were checked. Then the rest comes
first, or steady events on one node would keep it waiting forever."""


@dataclass(slots=True, eq=False)
class Opening:
    """`left` is the set of slots to be checked yet, `asked` that at the beginning. `is_paused`: the checks of
    one call were used up. `again`: something became free since the beginning that counts only after the
    rest."""

    name: str
    left: int
    asked: int
    restarts: int = 0
    is_paused: bool = False
    again: bool = False

    @property
    def possible(self) -> int:
        return self.left | self.asked if self.again else self.left


class Openings:
    def __init__(self, wakeup: WakeupIndex, eligible: EligibleRows) -> None:
        self._wakeup, self._eligible = wakeup, eligible
        self._at: dict[int, Opening] = {}
        self._freed: dict[str, None] = {}
        """Nodes on which something became free since `refresh`."""
        self._mark = 0
        self.offered = 0
        """The set of slots that an opening may help, as of the last `refresh`."""
        self.opened = 0
        """How many openings were made so far."""

    @property
    def has_news(self) -> bool:
        """True if something became free since `refresh`."""
        return bool(self._freed)

    def __bool__(self) -> bool:
        return bool(self._at or self._freed)

    def add(self, name: str) -> None:
        """Something became free on this node. `refresh` looks whom that may help: once for many events."""
        self._freed[name] = None

    def refresh(self, cluster: Cluster) -> None:
        """Look again at the nodes on which something became free or was taken since the last time."""
        mark, self._mark = self._mark, cluster.changed.mark
        if mark != self._mark and self._at:
            self._narrow(cluster, mark)
        if self._freed:
            freed, self._freed = self._freed, {}
            for name in freed:
                if name in cluster:
                    self._open(cluster, name)

    def may_help(self, slot: int) -> bool:
        return self.offered >> slot & 1 == 1

    def rows_for(self, slot: int) -> list[int]:
        """Return the rows of all nodes that may help this slot, also of those that it would wait for."""
        return [row for row, each in self._at.items() if each.possible >> slot & 1]

    def refuse(self, slot: int) -> None:
        """No opening helps this slot, by a closer look."""
        if not self.may_help(slot):
            return
        self.offered ^= 1 << slot
        others = ~(1 << slot)
        for opening in self._at.values():
            opening.left &= others

    def pause(self) -> None:
        """The checks of one call are used up; the rest comes in the next one."""
        for opening in self._at.values():
            opening.is_paused = True

    def settle(self) -> list[int]:
        """All that could be checked is checked: drop the openings, and return the slots that they may help,
        which is what has no turn now. An opening that something was added to begins again."""
        found, self.offered = slot_sets.members(self.offered), 0
        for opening in self._at.values():
            if opening.again:
                self.add(opening.name)
        self._at.clear()
        return found

    def _narrow(self, cluster: Cluster, mark: int) -> None:
        """Leave out what no longer fits by the numbers, after placements since the mark."""
        changed = cluster.changed.since(mark)
        for row in list(self._at) if changed is None else changed:
            opening = self._at.get(row)
            if opening is None:
                continue
            if cluster.inventory.row_of.get(opening.name) != row:
                self._replace(row, None)
            elif opening.left and opening.name not in self._freed:
                left, opening.left = opening.left, opening.left & self._candidates(cluster, row)
                self._withdraw(left & ~opening.left)

    def _open(self, cluster: Cluster, name: str) -> None:
        row = cluster.row(name)
        asked, known = self._candidates(cluster, row), self._at.get(row)
        opening = Opening(name, asked, asked)
        if known is not None and known.is_paused and known.name == name:
            opening.restarts = known.restarts + 1
            if opening.restarts > RESTARTS:
                # What was checked in vain before waits until the rest was checked.
                opening.left &= known.left | ~known.asked
                opening.is_paused = opening.again = True
        self._replace(row, opening if asked else None)

    def _candidates(self, cluster: Cluster, row: int) -> int:
        inventory = cluster.inventory
        if not (inventory.ready.item(row) and inventory.schedulable.item(row)):
            return 0  # it takes no shape, whatever is free
        met = self._wakeup.met_by(cluster, row)
        return met & self._eligible.slots(row) if met else 0

    def _replace(self, row: int, opening: Opening | None) -> None:
        if (known := self._at.pop(row, None)) is not None:
            self._withdraw(known.left)
        if opening is not None:
            self._at[row] = opening
            self.offered |= opening.left
            self.opened += 1

    def _withdraw(self, slots: int) -> None:
        """These slots are no longer offered, except those that another opening may help."""
        for opening in self._at.values():
            if not slots:
                return
            slots &= ~opening.left
        self.offered &= ~slots
