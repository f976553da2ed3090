"""Parked requests whose queue has no room for them: find the next one that may start when it has.

Lines of one queue that ask for as much, of the same models, are alike: what may start of one may start of
all. So they are judged once, and listed together, at the budgets that are used up. What is let go of a budget
costs a look at those listed there that it has room for, however many wait, and however different they are. A
line that may start on some models only is not blocked, but is listed too: it may have more to choose from.
Kept by `Unschedulable`.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import NamedTuple

from gpu_orchestrator.core.queue_terms import ALL
from gpu_orchestrator.core.queues import At, Full, milli_of
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota, Verdict
from gpu_orchestrator.engine.turns import Line, Turn

MOST_DEAD = 256

Found = tuple[Turn, Waiting]


class Kind(NamedTuple):
    """What lines have in common that are alike. `only` are the models on which they may start, if any."""

    queue: str
    flow: str
    lane: int
    need: int
    models: tuple[str, ...]
    only: tuple[str, ...] | None


class Alike:
    """Lines that get the same answer, the first in turn first. `at` are the budgets at which they are listed,
    and `listing` changes when these do. An entry may be of a request that left its line: then a later one
    comes first there."""

    __slots__ = ("_entries", "_live", "_numbers", "at", "kind", "listing", "verdict")

    def __init__(self, kind: Kind, verdict: Full | tuple[str, ...]) -> None:
        self.kind, self.verdict = kind, verdict
        self.at: tuple[At, ...] = ()
        self.listing = 0
        self._entries: list[tuple[tuple[float, ...], int, int, Line]] = []
        self._live, self._numbers = 0, count()

    def __bool__(self) -> bool:
        return self._live > 0

    def add(self, line: Line, first: Waiting) -> None:
        line.held = self
        self._live += 1
        self.push(line, first)

    def push(self, line: Line, first: Waiting) -> None:
        """Another request of a line comes first now."""
        if len(self._entries) > MOST_DEAD + 2 * self._live:
            firsts = {line: line.heap.first() for *_, line in self._entries if line.held is self}
            self._entries = [self._entry(line, each) for line, each in firsts.items() if each]
            heapify(self._entries)
        heappush(self._entries, self._entry(line, first))

    def drop(self, line: Line) -> None:
        line.held = None
        self._live -= 1

    def first(self) -> Waiting | None:
        """Return the first request of all lines; None if no line is left."""
        while self._entries:
            rank, number, _, line = self._entries[0]
            first = line.heap.first() if line.held is self else None
            if first is None or (first.rank, first.number) < (rank, number):
                heappop(self._entries)  # no line any longer, or an earlier entry of it was there
            elif first.number != number:
                heapreplace(self._entries, self._entry(line, first))
            else:
                return first
        return None

    def _entry(self, line: Line, first: Waiting) -> tuple[tuple[float, ...], int, int, Line]:
        return first.rank, first.number, next(self._numbers), line


Entry = tuple[Turn, int, Alike, int]
"""The turn that the first request had when it was listed, and the listing that this belongs to."""


class Listed:
    """Lines that need as much of one budget, by turn. `backs` says when a turn last became earlier, as of the
    last look at these."""

    __slots__ = ("backs", "entries")

    def __init__(self, backs: int) -> None:
        self.entries: list[Entry] = []
        self.backs = backs


class HeldBack:
    def __init__(self, quota: Quota, turn_of: Callable[[Waiting], Turn]) -> None:
        self._quota, self._turn_of = quota, turn_of
        self._alike: dict[Kind, Alike] = {}
        self._at: dict[At, dict[int, Listed]] = {}
        self._news: dict[At, None] = {}
        """Budgets of which something was let go, and at which a line may still be listed that it helps."""
        self._numbers = count()
        self._dead = 0

    @property
    def has_news(self) -> bool:
        """True if a line may have room now."""
        queues = self._quota.queues
        return bool(self._alike) and bool(self._news or queues.freed or queues.has_changed)

    def hold(self, line: Line, verdict: Full | tuple[str, ...]) -> None:
        """List a line whose requests have no room in their queue, or only on some models."""
        self.drop(line)
        if (first := line.heap.first()) is None:
            return
        shape, only = first.request.shape, None if isinstance(verdict, Full) else verdict
        kind = Kind(line.queue, line.flow, line.lane, milli_of(shape), shape.models, only)
        alike = self._alike.get(kind)
        if alike is None:
            alike = self._alike[kind] = Alike(kind, verdict)
        alike.verdict = verdict
        alike.add(line, first)
        self._list(alike, first, self._quota.full_at(first.request))

    def first_changed(self, line: Line) -> None:
        """Another request of a listed line comes first now."""
        first, alike = line.heap.first(), line.held
        if first is not None and alike is not None:
            alike.push(line, first)
            if alike.first() is first:
                self._push(alike, first)
                self._forgot(len(alike.at))

    def drop(self, line: Line) -> None:
        """The line is empty, or its requests wait for something else."""
        if (alike := line.held) is not None:
            alike.drop(line)
            if not alike:
                self._unlist(alike)
                del self._alike[alike.kind]

    def blocked(self) -> Iterator[Waiting]:
        """Yield the first of those that are alike and have no room."""
        for alike in self._alike.values():
            if alike.kind.only is None and (first := alike.first()) is not None:
                yield first

    def first(self) -> Found | None:
        """Return the next request that has room now, with its turn; it stays listed."""
        self._hear()
        best: Found | None = None
        for at in list(self._news):
            found = self._first_at(at)
            if found is None:
                del self._news[at]
            elif best is None or found < best:
                best = found
        return best

    # --- where it is listed ------------------------------------------------------------------------------

    def _list(self, alike: Alike, first: Waiting, at: tuple[At, ...]) -> None:
        """List it at these budgets."""
        if at != alike.at:
            self._unlist(alike)
            alike.at = at
            self._push(alike, first)
        elif alike.first() is first:
            self._push(alike, first)
            self._forgot(len(at))

    def _push(self, alike: Alike, first: Waiting) -> None:
        entry: Entry = self._turn_of(first), next(self._numbers), alike, alike.listing
        for at in alike.at:
            by_need = self._at.setdefault(at, {})
            listed = by_need.get(alike.kind.need)
            if listed is None:
                listed = by_need[alike.kind.need] = Listed(self._quota.queues.backs)
            heappush(listed.entries, entry)

    def _unlist(self, alike: Alike) -> None:
        forgotten = len(alike.at)
        alike.at = ()
        alike.listing += 1
        self._forgot(forgotten)

    def _forgot(self, entries: int) -> None:
        """Drop entries that are of no use any longer, once there are many."""
        self._dead += entries
        if self._dead > MOST_DEAD + 2 * len(self._alike):
            self._drop_dead()

    def _drop_dead(self) -> None:
        self._dead = 0
        for at, by_need in list(self._at.items()):
            for need, listed in list(by_need.items()):
                self._sort_again(listed)
                if not listed.entries:
                    del by_need[need]
            if not by_need:
                del self._at[at]

    # --- what has room -----------------------------------------------------------------------------------

    def _hear(self) -> None:
        queues = self._quota.queues
        if queues.has_changed:
            queues.has_changed = False
            for alike in self._alike.values():
                self._look_again(alike)
            self._news = dict.fromkeys(self._at)
        if queues.freed:
            self._news.update((at, None) for at in queues.freed if at in self._at)
            queues.freed.clear()

    def _look_again(self, alike: Alike) -> None:
        """Other budgets may be in the way now, or none: then list it where it has room."""
        if (first := alike.first()) is None:
            return
        at = self._quota.full_at(first.request)
        if has_more(alike.verdict, self._quota.judge(first.request)):
            at = (*at, (alike.kind.queue, ALL))
        self._list(alike, first, at)

    def _first_at(self, at: At) -> Found | None:
        """Return the first listed here that has room now. What other budgets hold back is listed there."""
        by_need, room = self._at.get(at, {}), self._quota.queues.room(at)
        left, latest = room - self._quota.queues.kept(at), self._quota.latest()
        tops: list[tuple[Turn, int, int]] = []
        for need in [each for each in by_need if each <= room]:
            self._push_top(by_need, need, tops)
        found: Found | None = None
        elsewhere: list[Alike] = []
        while tops and found is None:
            turn, _, need = heappop(tops)
            if need > left and latest is not None and turn > latest:
                continue  # what is left is kept for others, and all of this need come after them
            alike = by_need[need].entries[0][2]
            first = alike.first()
            if first is not None and has_more(alike.verdict, self._quota.judge(first.request)):
                found = turn, first
            else:
                heappop(by_need[need].entries)
                elsewhere.append(alike)
                self._push_top(by_need, need, tops)
        for alike in elsewhere:
            self._unlist(alike)
            if (first := alike.first()) is not None:
                self._list(alike, first, self._quota.full_at(first.request))
        if not self._at.get(at, by_need):  # it may be another one by now
            self._at.pop(at, None)
        return found

    def _push_top(self, by_need: dict[int, Listed], need: int, tops: list[tuple[Turn, int, int]]) -> None:
        listed = by_need[need]
        if (entry := self._top(listed)) is None:
            del by_need[need]
        else:
            heappush(tops, (entry[0], entry[1], need))

    def _top(self, listed: Listed) -> Entry | None:
        """Return the first entry whose turn is the one that it has now."""
        if listed.backs != (backs := self._quota.queues.backs):
            listed.backs = backs
            self._sort_again(listed)
        entries = listed.entries
        while entries:
            turn, number, alike, listing = entries[0]
            first = alike.first() if alike.listing == listing else None
            if first is None or (now := self._turn_of(first)) < turn:
                heappop(entries)  # an earlier entry is listed, or none is needed
            elif now > turn:
                heapreplace(entries, (now, number, alike, listing))
            else:
                return entries[0]
        return None

    def _sort_again(self, listed: Listed) -> None:
        alike = {each: None for _, _, each, listing in listed.entries if each.listing == listing}
        firsts = [(first, each) for each in alike if (first := each.first()) is not None]
        listed.entries = [
            (self._turn_of(first), next(self._numbers), each, each.listing) for first, each in firsts
        ]
        heapify(listed.entries)


def has_more(before: Full | tuple[str, ...], now: Verdict) -> bool:
    """Return True if a request may start now, on models on which it could not before."""
    if isinstance(now, Full):
        return False
    return now is None or isinstance(before, Full) or not set(now) <= set(before)
