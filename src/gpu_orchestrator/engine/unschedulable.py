"""Requests that do not fit now, grouped by shape and policy: equal requests get the same answer.

A group sleeps until a node could take its shape. Then only its first request becomes active; each one that is
placed activates the next, and the first that is refused puts the group back to sleep. So ten thousand equal
requests cost one decision per event that could help them, and an event that cannot help costs one comparison.
"""

from dataclasses import dataclass, field

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.standing import current, first_obstacle
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.neighbour_watch import NeighbourWatch
from gpu_orchestrator.engine.queue import Queue, Waiting
from gpu_orchestrator.engine.wakeup_index import WakeupIndex

FEW = 256
"""A group that at most this many nodes could ever take is looked up by node; the others are compared with
every node."""

Key = tuple[Shape, Policy]


@dataclass(slots=True, eq=False)
class Group:
    key: Key
    queue: Queue
    refusal: Refusal
    slot: int
    filters: tuple[Filter, ...] = ()
    rows: set[int] = field(default_factory=set)
    asleep: bool = True


class Unschedulable:
    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._groups: dict[Key, Group] = {}
        self._wakeup, self._neighbours = WakeupIndex(), NeighbourWatch()
        self._slots: list[Group | None] = []
        self._unused: list[int] = []
        self._few: set[int] = set()
        self._by_row: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return sum(len(group.queue) for group in self._groups.values())

    def asleep(self, waiting: Waiting) -> Group | None:
        """Return the group of this request if it is known not to fit now."""
        group = self._groups.get((waiting.request.shape, waiting.policy))
        return group if group is not None and group.asleep else None

    def sleep(self, waiting: Waiting, refusal: Refusal, cluster: Cluster) -> None:
        """Park a request that was refused just now; it and all equal ones wait until a node could take
        them."""
        key = (waiting.request.shape, waiting.policy)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, Queue(self._fair_share), refusal, self._new_slot())
            self._slots[group.slot] = group
        group.refusal, group.asleep = refusal, True
        group.queue.push(waiting)
        self._unwatch(group)
        self._watch(group, cluster)

    def join(self, group: Group, waiting: Waiting) -> None:
        group.queue.push(waiting)

    def helped_by(self, cluster: Cluster, name: str, *, observed: bool) -> list[Group]:
        """Return the sleeping groups that fit on this node now. `observed`: the node itself changed, not only
        what is free on it."""
        if not self._groups:
            return []
        row = cluster.row(name)
        if observed:
            self._notice(row)
        met = self._wakeup.met_by(cluster, row)
        near = self._by_row.get(row, set())
        slots = [slot for slot in met if slot not in self._few or slot in near]
        return [group for slot in slots if (group := self._slots[slot]) and self._fits(group, cluster, row)]

    @property
    def is_behind(self) -> bool:
        """True if groups are left that other pods may have helped."""
        return self._neighbours.is_behind

    def helped_by_others(self, cluster: Cluster) -> list[Group]:
        """Return sleeping groups that fit now because of pods on other nodes; a few at a time."""
        if not self._neighbours:
            return []
        return [self._groups[key] for key in self._neighbours.helped(cluster)]

    def wake(self, group: Group) -> Waiting | None:
        """Return the next request of a group that may fit; None if all of its flows are at their limit. A
        group without requests is dropped."""
        if group.asleep:
            group.asleep = False
            self._unwatch(group)
        first = group.queue.pop()
        if not group.queue:
            self._drop(group)
        return first

    def wake_all(self) -> list[Waiting]:
        """Return the next request of every awake group, after a flow's at-limit state changed."""
        awake = [group for group in self._groups.values() if not group.asleep]
        return [first for group in awake if (first := self.wake(group)) is not None]

    def next_like(self, waiting: Waiting) -> Waiting | None:
        """Return the next request of the same group, if the group is awake."""
        group = self._groups.get((waiting.request.shape, waiting.policy))
        return self.wake(group) if group is not None and not group.asleep else None

    def leave(self, waiting: Waiting) -> None:
        """Remove a parked request."""
        group = self._groups[waiting.request.shape, waiting.policy]
        group.queue.remove(waiting)
        if not group.queue:
            self._drop(group)

    def _fits(self, group: Group, cluster: Cluster, row: int) -> bool:
        obstacle = first_obstacle(group.filters, cluster, row)
        if obstacle is not None and obstacle.fact and group.slot in self._few:
            self._look_away(group, row)  # this node cannot take the group until the node itself changes
        return obstacle is None

    def _watch(self, group: Group, cluster: Cluster) -> None:
        """Register the group, so that `helped_by` finds it when a node could take it."""
        shape, policy = group.key
        standing = current(shape, cluster, policy)
        group.filters = standing.filters
        self._wakeup.set(group.slot, shape, cluster)
        self._neighbours.set(group.key, cluster)
        rows = standing.eligible()
        if len(rows) <= FEW:
            self._few.add(group.slot)
            for row in rows.tolist():
                self._look_at(group, row)

    def _unwatch(self, group: Group) -> None:
        self._wakeup.clear(group.slot)
        self._neighbours.clear(group.key)
        self._few.discard(group.slot)
        for row in list(group.rows):
            self._look_away(group, row)

    def _notice(self, row: int) -> None:
        """A node changed: for a group that watches few nodes, it may have become one of them."""
        for slot in self._few:
            if (group := self._slots[slot]) is not None:
                self._look_at(group, row)

    def _look_at(self, group: Group, row: int) -> None:
        group.rows.add(row)
        self._by_row.setdefault(row, set()).add(group.slot)

    def _look_away(self, group: Group, row: int) -> None:
        group.rows.discard(row)
        slots = self._by_row[row]
        slots.discard(group.slot)
        if not slots:
            del self._by_row[row]

    def _drop(self, group: Group) -> None:
        self._unwatch(group)
        del self._groups[group.key]
        self._slots[group.slot] = None
        self._unused.append(group.slot)

    def _new_slot(self) -> int:
        if self._unused:
            return self._unused.pop()
        self._slots.append(None)
        return len(self._slots) - 1
