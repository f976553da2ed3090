"""Requests that do not fit now, grouped by shape and policy: equal requests get the same answer.

A group sleeps until a node could take its shape. Something that becomes free on a node makes an opening: it
is offered to the groups that it may help in the order in which the queue would take their requests, one at a
time, and only while the node has enough for any of them. So an event that helps one of ten thousand shapes
costs one decision, and an event that cannot help costs one comparison.

A group whose flows are all at their limit cannot take what it is offered. It is open until one of its
requests was decided: it may fit, but nobody knows where. The same holds for requests whose queue has no room:
their lines are blocked, and `HeldBack` knows when they may be tried.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpu_orchestrator.core.answer import Refusal, too_little
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import Filter, compile_filters
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.queues import Full
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.standing import current, passing
from gpu_orchestrator.engine.eligible_rows import EligibleRows
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.held_back import HeldBack
from gpu_orchestrator.engine.neighbour_watch import NeighbourWatch
from gpu_orchestrator.engine.openings import Openings
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota, refused
from gpu_orchestrator.engine.turns import Line, Turn, Turns
from gpu_orchestrator.engine.wakeup_index import WakeupIndex, is_met_anywhere

WAVE = 512
"""How many groups are checked closely in one call."""
WAVE_ROWS = 100_000
"""How many rows may be judged for that: a group with rules about other pods looks at all nodes."""

LINES_PER_ROW = 32
"""Finding the next of this many lines costs about as much as judging a node for a new shape."""

Key = tuple[Shape, Policy]
LineKey = tuple[int, str, str, tuple[str, ...] | None]
"""Lane, flow and queue, and the models asked for if the request is decided for fewer."""


@dataclass(slots=True, eq=False)
class Group:
    key: Key
    refusal: Refusal
    slot: int
    filters: tuple[Filter, ...] = ()
    is_open: bool = False
    lines: dict[LineKey, Line] = field(default_factory=dict)


class Unschedulable:
    def __init__(self, fair_share: FairShare, quota: Quota) -> None:
        self._fair_share, self._quota = fair_share, quota
        self._groups: dict[Key, Group] = {}
        self._turns = Turns(fair_share)
        self._held_back = HeldBack(quota, self._turns.of)
        self._wakeup, self._neighbours = WakeupIndex(), NeighbourWatch()
        self._eligible = EligibleRows()
        self._openings = Openings(self._wakeup, self._eligible)
        self._open = 0
        self._slots: list[Group | None] = []
        self._unused: list[int] = []
        self._size = 0
        self._is_settled = True
        self._offers = 0
        self._best: tuple[Turn, tuple[int, int, int]] | None = None
        """The turn of the next request that may fit, and the state in which that was found."""
        self.is_paused = False
        """True if the last call of `next_in_turn` has more groups to check."""
        self.fitting: list[int] | None = None
        """The only rows on which the request that `next_in_turn` returned fits, if they are known."""

    def __len__(self) -> int:
        return self._size

    @property
    def is_settled(self) -> bool:
        """True if `next_in_turn` has nothing to return until something becomes free or a limit changes."""
        return not self._size or (self._is_settled and not self._held_back.has_news)

    def turn(self, waiting: Waiting) -> Turn:
        """Return a value that is smaller the earlier the request's turn is."""
        return self._turns.of(waiting)

    def in_turn(self) -> Iterator[tuple[Waiting, Refusal]]:
        """Return the first request of each line with the refusal of its group, in turn. Do not change
        anything meanwhile."""
        for line in self._turns.in_turn((1 << len(self._slots)) - 1):
            group, waiting = self._slots[line.slot], line.heap.first()
            if group is not None and waiting is not None:
                yield waiting, group.refusal

    def blocked(self) -> Iterator[Waiting]:
        """Return requests whose queue has no room, the first of those that are alike."""
        return self._held_back.blocked()

    def refusal(self, waiting: Waiting) -> Refusal | None:
        group = self._groups.get((waiting.request.shape, waiting.policy))
        return None if group is None else group.refusal

    # --- in and out --------------------------------------------------------------------------------------

    def join_refused(self, waiting: Waiting, cluster: Cluster, *, has_room: bool) -> Refusal | None:
        """Park a request whose shape is known not to fit now, and return why; None if that is not known.
        `has_room`: its queue has room for it."""
        if not self._groups:
            return None
        group = self._groups.get((waiting.asked.shape, waiting.policy))
        if group is None or group.is_open:
            return None
        self._openings.refresh(cluster)
        if self._openings.may_help(group.slot):
            return None
        line = self._join(group, waiting)
        if has_room:
            self._unblock(line)
        elif line.is_blocked and line.held is not None and isinstance(line.held.verdict, Full):
            return refused(line.held.verdict, len(cluster))
        return group.refusal

    def hold_back(self, waiting: Waiting, full: Full, cluster: Cluster) -> Refusal:
        """Park a request whose queue has no room for it, and all equal ones of its queue; return why. Nobody
        has looked where it would fit."""
        key, refusal = (waiting.asked.shape, waiting.policy), refused(full, len(cluster))
        group = self._groups.get(key)
        if group is None:
            group = self._new_group(key, refusal)
            self._set_open(group)
        self._block(self._join(group, waiting), full)
        return refusal

    def park(self, waiting: Waiting, refusal: Refusal, cluster: Cluster) -> None:
        """Park a request that was refused just now; it and all equal ones wait until a node could take
        them."""
        shape = waiting.asked.shape
        key = (shape, waiting.policy)
        group = self._groups.get(key) or self._new_group(key, refusal)
        standing = current(shape, cluster, waiting.policy)
        group.refusal, group.filters = refusal, standing.filters
        self._eligible.set(group.slot, standing.eligible(), cluster.inventory.size)
        self._sleep(group, cluster)
        self._unblock(self._join(group, waiting))

    def park_by_numbers(self, waiting: Waiting, cluster: Cluster, *, explained: bool) -> Refusal | None:
        """Park a request and return why, if by the numbers it fits nowhere and the closer look would have to
        begin from the start; None if it must be judged. `explained`: a closer look must have said why."""
        shape = waiting.asked.shape
        key = (shape, waiting.policy)
        group = self._groups.get(key)
        is_judged = group is not None and not group.refusal.quota
        if (explained and not is_judged) or (group is not None and not group.is_open):
            return None
        if key in cluster.standings or is_met_anywhere(shape, cluster):
            return None
        if group is None or group.refusal.quota:
            refusal = too_little(len(cluster))
            group = group or self._new_group(key, refusal)
            group.refusal = refusal
            self._eligible.set_all(group.slot, cluster.inventory.size)
        self._sleep(group, cluster)
        self._unblock(self._join(group, waiting))
        return group.refusal

    def take(self, waiting: Waiting) -> None:
        """Take out a request that `next_in_turn` returned. Call `settle` once it is decided."""
        self._leave(waiting)

    def settle(self, waiting: Waiting) -> None:
        """Drop the request's group if it has none left."""
        group = self._groups.get((waiting.asked.shape, waiting.policy))
        if group is not None and not group.lines:
            self._drop(group)

    def remove(self, waiting: Waiting) -> None:
        """Take out a request that is no longer wanted."""
        self._leave(waiting)
        self.settle(waiting)

    # --- what may help -----------------------------------------------------------------------------------

    def offer(self, cluster: Cluster, name: str, *, observed: bool) -> None:
        """Offer a node on which something became free. `observed`: the node itself changed, not only what is
        free on it."""
        if not self._groups:
            return
        if observed:
            self._eligible.notice(cluster.row(name))
        self._openings.add(name)
        self._is_settled = False

    @property
    def is_behind(self) -> bool:
        """True if groups are left that other pods may have helped."""
        return self._neighbours.is_behind

    def open_for_others(self, cluster: Cluster) -> None:
        """Open groups that fit now because of pods on other nodes; a few at a time."""
        if self._neighbours:
            for key in self._neighbours.helped(cluster):
                self._set_open(self._groups[key])

    def open(self, keys: Iterable[Key]) -> None:
        """Open the groups of these shapes that are parked: they may have a turn now."""
        for key in keys:
            if (group := self._groups.get(key)) is not None and not group.is_open:
                self._set_open(group)

    def limits_changed(self) -> None:
        """A flow reached its limit or dropped below it: open groups may have a turn now."""
        self._offer_more()

    def next_in_turn(self, cluster: Cluster, first: Waiting | None) -> Waiting | None:
        """Return the next request, in turn, that may fit now; None if there is none, if the turn of `first`
        comes before, or if the checks of one call are used up (`is_paused`)."""
        held = self._held_back.first() if self._held_back.has_news else None
        if held is None or (first is not None and self._turns.of(first) < held[0]):
            return self._next_offered(cluster, first)
        found = self._next_offered(cluster, held[1])
        return held[1] if found is None and not self.is_paused else found

    def _next_offered(self, cluster: Cluster, first: Waiting | None) -> Waiting | None:
        self.is_paused, self.fitting = False, None
        before = None if first is None else self._turns.of(first)
        if before is not None and not self._openings.has_news and self._comes_first(before):
            return None
        self._openings.refresh(cluster)
        offered = self._openings.offered | self._open
        cluster.standings.rows_judged += len(self._turns) // LINES_PER_ROW
        checks, most_rows = 0, cluster.rows_judged + WAVE_ROWS
        for line in self._turns.in_turn(offered):
            group, waiting = self._slots[line.slot], line.heap.first()
            if group is None or waiting is None or not offered >> line.slot & 1:
                continue
            if before is not None and before < (turn := self._turns.of(waiting)):
                self._best = turn, self._version()
                return None
            if checks >= WAVE or cluster.rows_judged >= most_rows:
                self.is_paused = True
                self._openings.pause()
                return None
            if line.queue and isinstance(full := self._quota.judge(waiting.request), Full):
                self._block(line, full)
                continue
            if group.is_open or self._fits(group, cluster):
                return waiting
            offered ^= 1 << line.slot
            checks += 1
        self._settle_openings()
        return None

    def _comes_first(self, turn: Turn) -> bool:
        """Return True if this turn is known to come before that of every request that may fit. Only more
        offers and other turns of flows can change that: what leaves or no longer fits leaves later ones."""
        return self._best is not None and self._best[1] == self._version() and turn < self._best[0]

    def _version(self) -> tuple[int, int, int]:
        return self._offers, self._openings.opened, self._fair_share.version

    def _offer_more(self) -> None:
        self._is_settled = False
        self._offers += 1

    def _settle_openings(self) -> None:
        for slot in self._openings.settle():
            if (group := self._slots[slot]) is not None:
                self._set_open(group)
        self._is_settled = not self._openings
        self.is_paused = bool(self._openings)

    def _fits(self, group: Group, cluster: Cluster) -> bool:
        """Return True if the group fits on a node that it is offered, by a closer look."""
        if not group.filters:
            group.filters = compile_filters(group.key[0], cluster.inventory)
        rows = self._openings.rows_for(group.slot)
        fitting, excluded = passing(group.key, group.filters, cluster, rows)
        for row in excluded:
            self._eligible.exclude(group.slot, row)
        if not fitting:
            self._openings.refuse(group.slot)
        elif group.key[0].rules is None and group.key not in cluster.standings:
            self.fitting = fitting
        return bool(fitting)

    # --- groups ------------------------------------------------------------------------------------------

    def _join(self, group: Group, waiting: Waiting) -> Line:
        at = _line_of(waiting)
        line = group.lines.get(at)
        if line is None:
            line = group.lines[at] = self._turns.new_line(group.slot, *at[:3])
        line.heap.push(waiting)
        line.count += 1
        waiting.is_parked = True
        if line.heap.first() is waiting:
            self._turns.refresh(line)
            self._held_back.first_changed(line)
        if line.is_blocked:
            self._fair_share.leaves(line.flow)
        self._size += 1
        return line

    def _leave(self, waiting: Waiting) -> None:
        at = _line_of(waiting)
        group = self._groups[waiting.asked.shape, waiting.policy]
        line = group.lines[at]
        line.heap.remove(waiting)
        line.count -= 1
        waiting.is_parked = False
        if line.is_blocked:
            self._fair_share.joins(line.flow)
        self._size -= 1
        if not self._turns.refresh(line):
            self._held_back.drop(line)
            self._turns.drop(line)
            del group.lines[at]

    def _block(self, line: Line, full: Full) -> None:
        """Let this line wait for room in its queue. What waits for that does not count as waiting: nobody
        else has less because of it."""
        if not line.is_blocked:
            self._turns.block(line)
            self._fair_share.leaves(line.flow, line.count)
        self._held_back.hold(line, full)

    def _unblock(self, line: Line) -> None:
        """Its queue has room: this line waits for a node. If there is room on some models only, it waits for
        more as well."""
        if line.is_blocked:
            self._turns.unblock(line)
            self._fair_share.joins(line.flow, line.count)
            self._held_back.drop(line)
        if line.held is None and (first := line.heap.first()) is not None and first.narrowed:
            self._held_back.hold(line, first.narrowed.shape.models)

    def _sleep(self, group: Group, cluster: Cluster) -> None:
        group.is_open = False
        self._open &= ~(1 << group.slot)
        self._openings.refuse(group.slot)
        self._wakeup.set(group.slot, group.key[0], cluster)
        self._neighbours.set(group.key, cluster)

    def _set_open(self, group: Group) -> None:
        group.is_open = True
        self._open |= 1 << group.slot
        self._openings.refuse(group.slot)
        self._wakeup.clear(group.slot)
        self._neighbours.clear(group.key)
        self._offer_more()

    def _drop(self, group: Group) -> None:
        self._open &= ~(1 << group.slot)
        self._openings.refuse(group.slot)
        self._wakeup.clear(group.slot)
        self._neighbours.clear(group.key)
        del self._groups[group.key]
        self._slots[group.slot] = None
        self._unused.append(group.slot)

    def _new_group(self, key: Key, refusal: Refusal) -> Group:
        if self._unused:
            slot = self._unused.pop()
        else:
            slot = len(self._slots)
            self._slots.append(None)
        group = self._groups[key] = self._slots[slot] = Group(key, refusal, slot)
        return group


def _line_of(waiting: Waiting) -> LineKey:
    asked = waiting.request.shape.models if waiting.narrowed else None
    return waiting.lane, waiting.flow, waiting.request.queue, asked
