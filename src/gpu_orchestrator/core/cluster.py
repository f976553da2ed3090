"""The cluster as a value: nodes, what is free on them, and a cache of standings per shape.

To try something out, work on `copy()`: it costs microseconds and never changes the original. Every change is
noted in a journal, from which cached standings are updated, so a decision looks only at nodes that changed
since the last one like it. Callers use the methods; filters and opinions read the columns `inventory` and
`usage`.
"""

from collections.abc import Iterable, Iterator

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.errors import Oversold, Unknown
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.journal import Journal
from gpu_orchestrator.core.neighbours import Neighbours
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.standing_cache import StandingCache
from gpu_orchestrator.core.usage import Usage


class Cluster:
    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.inventory, self.usage = Inventory(), Usage()
        self.observed, self.changed = Journal(), Journal()
        self.standings, self.neighbours = StandingCache(), Neighbours()
        self._shares_inventory = False
        for node in nodes:
            self.set_node(node)

    def copy(self) -> "Cluster":
        """Return an independent copy. Facts about nodes are shared until one side observes a node again."""
        twin = Cluster.__new__(Cluster)
        twin.inventory, twin.usage = self.inventory, self.usage.copy()
        twin.observed, twin.changed = self.observed.copy(), self.changed.copy()
        twin.standings, twin.neighbours = self.standings.copy(), Neighbours()
        twin._shares_inventory = self._shares_inventory = True
        return twin

    def __len__(self) -> int:
        return len(self.inventory.row_of)

    @property
    def rows_judged(self) -> int:
        """How many rows were looked at so far for what could not be taken from a cache."""
        return self.standings.rows_judged + self.inventory.rows_read

    def __contains__(self, name: str) -> bool:
        return name in self.inventory.row_of

    def __iter__(self) -> Iterator[Node]:
        return (self.inventory.node(name) for name in self.inventory.row_of)

    def set_node(self, node: Node) -> bool:
        """Record a node; what is held on it stays held. Return False if nothing changed."""
        known = self.inventory.row_of.get(node.name)
        if known is not None and self.inventory.nodes[known] == node:
            return False
        self._own_inventory()
        row, kinds = self.inventory.put(node), self.usage.kinds
        self.usage.follow(self.inventory, row)
        self._note(row, observed=True)
        if self.usage.kinds > kinds:
            self._count_held_from(kinds)
        return True

    def remove_node(self, name: str) -> None:
        """Remove a node and everything held on it."""
        self.row(name)
        self._own_inventory()
        row = self.inventory.drop(name)
        for placement in self.usage.held[row].values():
            self.neighbours.remove(row, placement)
        self.usage.drop(row)
        self._note(row, observed=True)

    def place(self, placement: Placement) -> None:
        """Take what the placement needs; raise `Oversold` rather than give anything twice."""
        row = self.row(placement.node)
        if placement.key in self.usage.held[row]:
            raise Oversold(f"{placement.key} already holds something on {placement.node}; release it first")
        self.usage.check(self.inventory, row, placement)
        self.usage.add(self.inventory, row, placement)
        self.neighbours.add(row, placement)
        self._note(row)

    def account(self, placement: Placement) -> None:
        """Record a placement that already exists, even if it oversells the node; it replaces what the key
        held there."""
        row = self.row(placement.node)
        if placement.key in self.usage.held[row]:
            self.neighbours.remove(row, self.usage.remove(self.inventory, row, placement.key))
        self.usage.add(self.inventory, row, placement)
        self.neighbours.add(row, placement)
        self._note(row)

    def release(self, placement: Placement) -> Placement:
        """Release what this key holds on this node, and return it."""
        row = self.row(placement.node)
        if placement.key not in self.usage.held[row]:
            raise Unknown(f"{placement.key} holds nothing on {placement.node}")
        given = self.usage.remove(self.inventory, row, placement.key)
        self.neighbours.remove(row, given)
        self._note(row)
        return given

    def row(self, name: str) -> int:
        row = self.inventory.row_of.get(name)
        if row is None:
            raise Unknown(f"no node {name} among the {len(self)} of this cluster")
        return row

    def node(self, name: str) -> Node:
        self.row(name)
        return self.inventory.node(name)

    def devices(self, placement: Placement) -> tuple[Device, ...]:
        """Return the devices of a placement, in its order, without those that the node no longer has."""
        if placement.node not in self:
            return ()
        by_id = {device.id: device for device in self.node(placement.node).devices}
        return tuple(by_id[each] for each in placement.devices if each in by_id)

    def held_on(self, name: str) -> dict[str, Placement]:
        """Return the placements on a node, by key."""
        return dict(self.usage.held[self.row(name)])

    def free_gpus(self, name: str) -> int:
        """Return how many healthy GPUs are free. Slices are not counted."""
        return int(self.usage.whole[self.row(name)])

    def free_slices(self, name: str) -> int:
        """Return how many healthy slices of GPUs are free."""
        if not self.inventory.has_slices:
            return 0
        row = self.row(name)
        return int((self.inventory.slices[row] & (self.usage.holders[row] == 0)).sum())

    def largest_mib(self, vendor: str = "", model: str = "") -> int:
        """Return the memory of the largest device of this vendor and model, each empty for any; 0 if none is
        known."""
        inventory = self.inventory
        match = inventory.alive[:, None] & (inventory.vendor > 0)
        for column, name in ((inventory.vendor, vendor), (inventory.model, model)):
            if name:
                match = match & (column == inventory.names.find(name))
        return int(inventory.memory_mib.max(initial=0, where=match))

    def _note(self, row: int, *, observed: bool = False) -> None:
        self.changed.note(row)
        if observed:
            self.observed.note(row)

    def _own_inventory(self) -> None:
        if self._shares_inventory:
            self.inventory, self._shares_inventory = self.inventory.copy(), False

    def _count_held_from(self, kind: int) -> None:
        """Count what is held of the resources from this column on: no node had offered them before."""
        for row, held in enumerate(self.usage.held):
            resources = (each for placement in held.values() for each in placement.resources)
            if any(self.inventory.kind(name) >= kind for name, _ in resources):
                self.usage.follow(self.inventory, row)
                self._note(row)
