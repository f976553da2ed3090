"""A place that is kept for one request or gang, and the words for it. Held by `Reservations`.

The place counts as taken in the cluster, beside those who still hold it: so nobody gets what they leave, and
to let somebody in, it is taken out of the cluster for that moment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.queues import Amounts
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.reservation_rules import ReservationRules
from gpu_orchestrator.engine.reservation_search import ROOM


@dataclass(slots=True, eq=False)
class Kept:
    """`waiting` is the request, or of a gang the member that is last in turn; `name` its key or the gang's.
    Who ends before `until` may use the place in between. `is_hold`: nobody knows when it begins, it is kept
    until `at`, and `until` is when the last one there ends that declares an end. `since` is when it was first
    kept, `looked_at` when it was last looked for, and `early` how many had ended early by then. `declared`
    counts those in the way whose end is known. `amounts` is what it will count in its queue. `is_broken`: one
    of an earlier turn has a part of it now."""

    name: str
    waiting: Waiting
    rooms: tuple[Placement, ...]
    at: float
    until: float
    since: float
    looked_at: float
    is_hold: bool = False
    declared: int = 0
    early: int = 0
    begins: str = ""
    amounts: Amounts = ()
    is_broken: bool = False

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(each.node for each in self.rooms))

    @property
    def expires(self) -> float:
        """When a hold ends."""
        return self.at

    def overlaps(self, placement: Placement) -> bool:
        devices = set(placement.devices)
        rooms = (each for each in self.rooms if each.node == placement.node)
        return any(not devices.isdisjoint(each.devices) for each in rooms)

    def is_for(self, waiting: Waiting) -> bool:
        return self.name == name_of(waiting)

    def words(self, rules: ReservationRules) -> str:
        """Return what its owner is told."""
        where = f"its {self.where}"
        verb = "are" if len(self.nodes) > 1 else "is"
        if self.is_hold:
            return (
                f"waits: {where} {verb} kept until {self.begins}, since it waits longer than "
                f"{rules.hold_after_s:.0f} s and not all there declare a {rules.declared}"
            )
        others = f"{self.declared} other{'s' if self.declared != 1 else ''}"
        return f"waits: {where} {verb} kept from {self.begins} (soonest by what {others} declared)"

    def words_for(self, other: Waiting, rules: ReservationRules) -> str:
        """Return what another one is told that would fit there now."""
        request, owner = other.request, self.waiting.request
        # Another tenant's names are nobody's business.
        name = rules.name_of(owner.key) if owner.tenant == request.tenant else "another tenant's request"
        verb = "begin" if len(self.nodes) > 1 else "begins"
        if self.is_hold:
            return f"the {self.where} that would take it is kept for {name} until {self.begins}"
        if request.run_s:
            return f"would end after {self.begins}, when {name}'s {self.where} {verb}"
        return f"declares no {rules.declared}, and at {self.begins} {name}'s {self.where} {verb}"

    @property
    def where(self) -> str:
        nodes = self.nodes
        return f"place on {nodes[0]}" if len(nodes) == 1 else f"places on {len(nodes)} nodes"


def name_of(waiting: Waiting) -> str:
    """Return the key of the request, or the name of its gang."""
    gang = waiting.request.gang
    return gang.name if gang else waiting.request.key


def is_usable(kept: Kept, cluster: Cluster) -> bool:
    """Return True if its nodes still take requests, and its devices are still healthy."""
    for room in kept.rooms:
        if room.node not in cluster:
            return False
        row, inventory = cluster.row(room.node), cluster.inventory
        position = inventory.node(room.node).topology.position
        if not (inventory.ready.item(row) and inventory.schedulable.item(row)):
            return False
        usable = inventory.usable[row] | inventory.slices[row]
        if not all(each in position and usable.item(position[each]) for each in room.devices):
            return False
    return True


def rooms_of(name: str, placements: Iterable[Placement]) -> tuple[Placement, ...]:
    """Return what is counted for these placements while they are kept. Nobody's rules see it."""
    return tuple(
        replace(each, key=f"{ROOM}{name}/{each.key}", neighbour=None, volumes=()) for each in placements
    )


class lifted:  # noqa: N801 - reads as a verb: with lifted(places, cluster)
    """Take these places out of the cluster for a moment. What is placed meanwhile stays."""

    def __init__(self, kept: Sequence[Kept], cluster: Cluster) -> None:
        self._kept, self._cluster = kept, cluster
        self._rooms = [room for each in kept for room in each.rooms if room.node in cluster]

    def __enter__(self) -> Sequence[Kept]:
        for room in self._rooms:
            self._cluster.release(room)
        return self._kept

    def __exit__(self, *_: object) -> None:
        for room in self._rooms:
            self._cluster.account(room)


class Open(NamedTuple):
    """What others hold nothing of: how many whole GPUs of the node that has most of them, and how much memory
    of the device that has most of it."""

    gpus: int = 0
    memory_mib: int = 0

    def has_room(self, shape: Shape) -> bool:
        return shape.whole_gpus <= self.gpus and (shape.exclusive or shape.memory_mib <= self.memory_mib)


def open_on(kept: Kept, cluster: Cluster) -> Open:
    """Return what is open now on the nodes of a place."""
    rooms: dict[str, list[Placement]] = {}
    for room in kept.rooms:
        rooms.setdefault(room.node, []).append(room)
    gpus = memory_mib = 0
    for node, here in rooms.items():
        if node not in cluster:
            continue
        row, position = cluster.row(node), cluster.inventory.node(node).topology.position
        holders, mib = cluster.usage.holders[row].copy(), cluster.usage.free_mib[row].copy()
        for room in here:
            for at in (position[each] for each in room.devices if each in position):
                holders[at] -= 1
                mib[at] += cluster.inventory.memory_mib[row, at] if room.exclusive else room.memory_mib
        usable = cluster.inventory.usable[row]
        gpus = max(gpus, int(np.count_nonzero((holders == 0) & usable)))
        memory_mib = max(memory_mib, int(np.where(usable, mib, 0).max(initial=0)))
    return Open(gpus, memory_mib)
