"""Parked requests whose queue has no room for them: find the next one that may start when it has.

A line of parked requests is listed at the queue whose budget is used up, by the amount that one of them
needs. What is let go in a queue costs a look at the first line of each amount there, however many wait. A
line that may start on some models only is not blocked, but is listed too: it may have more to choose from.
Kept by `Unschedulable`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from gpu_orchestrator.core.queues import Full, milli_of
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota, Verdict
from gpu_orchestrator.engine.turns import Line, Turn

MOST_DEAD = 256


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Why a line waits. `verdict` is what was found last."""

    verdict: Full | tuple[str, ...]


Entry = tuple[Turn, int, Line, Held]
"""Listed is what the line was held for then, and the turn that its first request had."""
Found = tuple[Turn, Waiting]


class HeldBack:
    def __init__(self, quota: Quota, turn_of: Callable[[Waiting], Turn]) -> None:
        self._quota, self._turn_of = quota, turn_of
        self._backs: dict[str, int] = {}
        """When a turn last became earlier, as of the last look at what is listed at a queue."""
        self._at: dict[str, dict[int, list[Entry]]] = {}
        self._news: dict[str, None] = {}
        """Queues in which something was let go, and at which a line may still be listed that it helps."""
        self._numbers = count()
        self._dead = self._live = 0

    @property
    def has_news(self) -> bool:
        """True if a line may have room now."""
        queues = self._quota.queues
        return bool(self._at) and bool(self._news or queues.freed or queues.has_changed)

    def hold(self, line: Line, verdict: Full | tuple[str, ...]) -> None:
        """List a line whose requests have no room in their queue, or only on some models."""
        if self._dead > MOST_DEAD + 2 * self._live:
            self._drop_dead()
        self._hold(line, verdict)

    def _hold(self, line: Line, verdict: Full | tuple[str, ...]) -> None:
        self.drop(line)
        line.held = Held(verdict)
        self._live += 1
        self.first_changed(line)

    def first_changed(self, line: Line) -> None:
        """Another request of a listed line comes first now."""
        first, held = line.heap.first(), line.held
        if first is None or held is None:
            return
        entry: Entry = self._turn_of(first), next(self._numbers), line, held
        for name in self._listed_at(first, held.verdict):
            heappush(self._at.setdefault(name, {}).setdefault(milli_of(first.request.shape), []), entry)

    def drop(self, line: Line) -> None:
        """The line is empty, or its requests wait for something else."""
        if line.held is not None:
            line.held = None
            self._live -= 1
            self._dead += 1

    def first(self) -> Found | None:
        """Return the next request that has room now, with its turn; it stays listed."""
        self._hear()
        best: Found | None = None
        for name in list(self._news):
            found = self._first_at(name)
            if found is None:
                del self._news[name]
            elif best is None or found < best:
                best = found
        return best

    def _hear(self) -> None:
        queues = self._quota.queues
        if queues.has_changed:
            queues.has_changed = False
            self._news = dict.fromkeys(self._at)
        if queues.freed:
            self._news.update((name, None) for name in queues.freed if name in self._at)
            queues.freed.clear()

    def _listed_at(self, waiting: Waiting, verdict: Full | tuple[str, ...]) -> list[str]:
        if isinstance(verdict, Full) and not verdict.by_model:
            return [verdict.at]
        node = self._quota.queues.node(waiting.request.queue)
        return [each.name for each in node.path] if node else [waiting.request.queue]

    def _first_at(self, name: str) -> Found | None:
        node, by_need = self._quota.queues.node(name), self._at.get(name, {})
        room = node.cap.total - node.total if node else 0
        best: Found | None = None
        if self._backs.get(name) != (backs := self._quota.queues.backs):
            self._backs[name] = backs
            for heap in by_need.values():
                self._sort_again(heap)
        for need in [each for each in by_need if each <= room]:
            found = self._first_of(name, by_need[need])
            if found is not None and (best is None or found < best):
                best = found
            if not by_need[need]:
                del by_need[need]
        if not by_need:
            self._at.pop(name, None)
            self._backs.pop(name, None)
        return best

    def _sort_again(self, heap: list[Entry]) -> None:
        listed = {line: held for _, _, line, held in heap if line.held is held}
        firsts = [(first, line) for line in listed if (first := line.heap.first()) is not None]
        heap[:] = [(self._turn_of(first), next(self._numbers), line, listed[line]) for first, line in firsts]
        heapify(heap)

    def _first_of(self, name: str, heap: list[Entry]) -> Found | None:
        """Return the first of these that has room now. What another queue holds back is listed there."""
        passed_over: list[Entry] = []
        found: Found | None = None
        while heap and found is None:
            turn, _, line, held = heap[0]
            first = line.heap.first()
            if first is None or line.held is not held or (now := self._turn_of(first)) < turn:
                heappop(heap)  # an earlier entry of the same line is listed, or none is needed
            elif now > turn:
                heapreplace(heap, (now, next(self._numbers), line, held))
            elif has_more(held.verdict, verdict := self._quota.judge(first.request)):
                found = turn, first
            else:
                entry = heappop(heap)
                is_blocked = isinstance(held.verdict, Full) and isinstance(verdict, Full)
                if is_blocked and isinstance(verdict, Full) and not verdict.by_model and verdict.at != name:
                    self._hold(line, verdict)
                else:
                    passed_over.append(entry)
        for entry in passed_over:
            heappush(heap, entry)
        return found

    def _drop_dead(self) -> None:
        self._dead = 0
        for name, by_need in list(self._at.items()):
            for need, heap in list(by_need.items()):
                heap[:] = [each for each in heap if each[2].held is each[3]]
                heapify(heap)
                if not heap:
                    del by_need[need]
            if not by_need:
                del self._at[name]


def has_more(before: Full | tuple[str, ...], now: Verdict) -> bool:
    """Return True if a request may start now, on models on which it could not before."""
    if isinstance(now, Full):
        return False
    return now is None or isinstance(before, Full) or not set(now) <= set(before)
