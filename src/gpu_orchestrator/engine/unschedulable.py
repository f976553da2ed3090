"""Requests that do not fit now, grouped by shape and policy: equal requests get the same answer.

A group sleeps until a node could take its shape. Then only its first request becomes active; each one that is
placed activates the next, and the first that is refused puts the group back to sleep. So ten thousand equal
requests cost one decision per event that could help them, and an event that cannot help costs one comparison.

Ten thousand different ones are woken in waves: an event checks and wakes the first `WAVE` groups, in the
order of their requests, and `helped_more` the next ones. A group that was woken in vain goes back to sleep
after a look at the numbers, without a closer look at every node.
"""

from dataclasses import dataclass

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.standing import current, first_obstacle
from gpu_orchestrator.engine.eligible_rows import EligibleRows
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.neighbour_watch import NeighbourWatch
from gpu_orchestrator.engine.queue import Queue, Waiting
from gpu_orchestrator.engine.wakeup_index import WakeupIndex, is_met_anywhere

WAVE = 512
"""How many groups are checked closely at once."""
WAVE_ROWS = 100_000
"""How many rows may be judged for that: a group with rules about other pods looks at all nodes."""

Key = tuple[Shape, Policy]
Order = tuple[float, ...]
FIRST: Order = ()


@dataclass(slots=True, eq=False)
class Group:
    key: Key
    queue: Queue
    refusal: Refusal
    slot: int
    filters: tuple[Filter, ...] = ()
    asleep: bool = True


class Unschedulable:
    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._groups: dict[Key, Group] = {}
        self._wakeup, self._neighbours = WakeupIndex(), NeighbourWatch()
        self._slots: list[Group | None] = []
        self._unused: list[int] = []
        self._eligible = EligibleRows()
        self._orders: list[Order] = []
        self.waves: dict[str, Order] = {}
        """By node: the last group in order that was checked, while others are left for `helped_more`."""

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
        self.join(group, waiting)
        standing = current(waiting.request.shape, cluster, waiting.policy)
        group.filters = standing.filters
        self._wakeup.set(group.slot, waiting.request.shape, cluster)
        self._neighbours.set(key, cluster)
        self._eligible.set(group.slot, standing.eligible(), cluster.inventory.size)

    def sleep_again(self, waiting: Waiting, cluster: Cluster) -> Refusal | None:
        """Park a woken request and return why, if by the numbers it fits nowhere and the closer look would
        have to begin from the start; None if it must be judged."""
        if not self._groups:
            return None
        key = (waiting.request.shape, waiting.policy)
        group = self._groups.get(key)
        if group is None or key in cluster.standings or is_met_anywhere(waiting.request.shape, cluster):
            return None
        group.asleep = True
        self.join(group, waiting)
        self._wakeup.set(group.slot, waiting.request.shape, cluster)
        self._neighbours.set(key, cluster)
        return group.refusal

    def join(self, group: Group, waiting: Waiting) -> None:
        group.queue.push(waiting)
        self._orders[group.slot] = group.queue.first() or FIRST

    def helped_by(self, cluster: Cluster, name: str, *, observed: bool) -> list[Group]:
        """Return the sleeping groups that fit on this node now. `observed`: the node itself changed, not only
        what is free on it."""
        if not self._groups:
            return []
        if observed:
            self._eligible.notice(cluster.row(name))
        return self._next_wave(cluster, name, FIRST)

    def checked_up_to(self) -> Order:
        """Return the order up to which all groups were checked that a node could help."""
        return min(self.waves.values())

    def helped_more(self, cluster: Cluster) -> list[Group]:
        """Return the next sleeping groups that fit on a node on which not all groups were checked yet."""
        name = min(self.waves, key=self.waves.__getitem__)
        after = self.waves.pop(name)
        return self._next_wave(cluster, name, after) if name in cluster else []

    def _next_wave(self, cluster: Cluster, name: str, after: Order) -> list[Group]:
        if self.waves:
            self.waves.pop(name, None)
        row = cluster.row(name)
        met = self._wakeup.met_by(cluster, row)
        if not len(met):
            return []
        slots: list[int] = self._eligible.among(met, row).tolist()
        if after != FIRST:
            slots = [slot for slot in slots if self._orders[slot] > after]
        if len(slots) > WAVE or self._neighbours:
            slots = sorted(slots, key=self._orders.__getitem__)
        return self._fitting(cluster, name, slots)

    def _fitting(self, cluster: Cluster, name: str, slots: list[int]) -> list[Group]:
        """Return the groups of these slots, up to a wave of them, that fit on the node."""
        row, most, found = cluster.row(name), cluster.rows_judged + WAVE_ROWS, list[Group]()
        for number, slot in enumerate(slots, 1):
            if (group := self._slots[slot]) and self._fits(group, cluster, row):
                found.append(group)
            if number < len(slots) and (number >= WAVE or cluster.rows_judged >= most):
                self.waves[name] = self._orders[slot]
                break
        return found

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
        group without requests is dropped, but not while its last one is being decided."""
        if group.asleep:
            group.asleep = False
            self._wakeup.clear(group.slot)
            self._neighbours.clear(group.key)
        first = group.queue.pop()
        if first is None and not group.queue:
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
        if obstacle is not None and obstacle.fact:
            self._eligible.exclude(group.slot, row)
        return obstacle is None

    def _drop(self, group: Group) -> None:
        self._wakeup.clear(group.slot)
        self._neighbours.clear(group.key)
        del self._groups[group.key]
        self._slots[group.slot] = None
        self._unused.append(group.slot)

    def _new_slot(self) -> int:
        if self._unused:
            return self._unused.pop()
        self._slots.append(None)
        self._orders.append(FIRST)
        return len(self._slots) - 1
