"""Gangs that were refused: each rests, and is then looked at whenever something became free.

To look at them costs the others time, also if none fits, so it is rationed: thousands of gangs that never fit
take turns. Kept by `gangs`.
"""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from gpu_orchestrator.engine.gang_members import Members

LOOKS_PER_S = 2_000
"""How many looks there are per second. To count the room for a gang is one for each kind of member."""
MOST_LOOKS = 10_000
"""How many looks are saved up while there is nothing to look at."""


class ParkedGangs:
    def __init__(self) -> None:
        self._gangs: dict[str, Members] = {}
        self._resting: list[tuple[float, int, Members]] = []
        self._rested: OrderedDict[str, Members] = OrderedDict()
        """Those to look at next come first."""
        self._to_look_at = 0
        """How many of these may have been helped since they were looked at."""
        self._news, self._numbers = 0, count()
        self._looks, self._looks_at = float(MOST_LOOKS), 0.0

    def add(self, gang: Members) -> None:
        """Let a gang rest; nothing that was free before can help it."""
        name = gang.terms.name
        self.remove(name)
        self._gangs[name], gang.news = gang, self._news
        heappush(self._resting, (gang.rests_until, next(self._numbers), gang))

    def remove(self, name: str) -> None:
        self._gangs.pop(name, None)
        self._rested.pop(name, None)
        self._to_look_at = min(self._to_look_at, len(self._rested))

    def recheck(self, gang: Members) -> None:
        """Look at this gang again, once it has rested, also if nothing becomes free."""
        gang.news = -1
        if gang.terms.name in self._rested:
            self._look_soon(gang.terms.name)

    def something_freed(self) -> None:
        """All may fit now."""
        self._news += 1
        self._to_look_at = len(self._rested)

    def next_at(self, now: float) -> float | None:
        """Return when `due` may have something to return; None if only an event can change that."""
        times: list[float] = []
        while self._resting and not self._is_resting(self._resting[0]):
            heappop(self._resting)
        if self._resting:
            times.append(self._resting[0][0])
        if self._to_look_at:
            self._refill(now)
            times.append(now if self._looks > 0.0 else now + (1.0 - self._looks) / LOOKS_PER_S)
        return min(times, default=None)

    def due(self, now: float) -> Iterator[Members]:
        """Yield the gangs to look at now."""
        while self._resting and self._resting[0][0] <= now:
            entry = heappop(self._resting)
            if self._is_resting(entry):
                self._wake(entry[2])
        self._refill(now)
        for _ in range(self._to_look_at):
            if self._looks <= 0.0 or not self._to_look_at:
                return
            name, gang = next(iter(self._rested.items()))
            self._rested.move_to_end(name)
            self._to_look_at -= 1
            gang.news = self._news
            self.took(1)
            yield gang

    def took(self, looks: int) -> None:
        """Count looks that were taken. There may be more than there were: the next ones wait longer."""
        self._looks -= looks

    def _is_resting(self, entry: tuple[float, int, Members]) -> bool:
        until, _, gang = entry
        name = gang.terms.name
        is_last = self._gangs.get(name) is gang and gang.rests_until == until
        return is_last and name not in self._rested

    def _wake(self, gang: Members) -> None:
        name = gang.terms.name
        self._rested[name] = gang
        if gang.news != self._news:
            self._look_soon(name)

    def _look_soon(self, name: str) -> None:
        self._rested.move_to_end(name, last=False)
        self._to_look_at = min(self._to_look_at + 1, len(self._rested))

    def _refill(self, now: float) -> None:
        self._looks = min(self._looks + max(now - self._looks_at, 0.0) * LOOKS_PER_S, MOST_LOOKS)
        self._looks_at = max(now, self._looks_at)
