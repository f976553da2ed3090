"""Sliding windows that count the requests of a key, in sixty slots each.

No window ever exceeds its limit, and a refusal says exactly when there is room again (to a sixtieth of the
window). The counts are in memory, so that a request need not read the store; `rate_limiter.py` exchanges them
with other processes.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpu_orchestrator.api.rates import Rate

SLOTS = 60
SET_BACK = 5
"""A clock that goes back by more slots than this was set; one that goes back by fewer is only imprecise."""


class Window:
    """Requests by slot, of all processes as far as known; `unsent` is the part not yet sent to the others."""

    def __init__(self, rate: Rate) -> None:
        self.rate, self.slot_s = rate, rate.seconds / SLOTS
        self.unsent: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._total = self._slot = 0

    def wait_s(self, now: float, cost: int) -> float:
        """Return 0 if there is room for `cost` requests, else the seconds until there is."""
        self._advance(now)
        free = self.rate.most - self._total
        for slot in sorted(self._counts) if free < cost else ():
            free += self._counts[slot]
            if free >= cost:
                return (slot + SLOTS + 1) * self.slot_s - now
        return 0.0

    def add(self, now: float, cost: int) -> None:
        self._advance(now)
        for counts in (self._counts, self.unsent):
            counts[self._slot] = counts.get(self._slot, 0) + cost
        self._total += cost

    def merge(self, counts: Mapping[int, int]) -> None:
        """Take over the counts of all processes. They include this one's, except for the unsent part."""
        self._counts = dict(counts)
        for slot, count in self.unsent.items():
            self._counts[slot] = self._counts.get(slot, 0) + count
        self._drop_old()

    def forget_sent(self, counts: Sequence[int]) -> None:
        """Subtract what was sent; later requests stay unsent. `counts` alternates slots and counts."""
        for slot, count in zip(counts[::2], counts[1::2], strict=True):
            left = self.unsent.pop(slot, count) - count
            if left:
                self.unsent[slot] = left

    def used(self, now: float) -> int:
        self._advance(now)
        return self._total

    def is_idle(self, now: float) -> bool:
        return not self.used(now) and not self.unsent

    def _advance(self, now: float) -> None:
        """Advance to the slot of `now`. A clock that goes back a little stays in the current slot. If the
        clock was set back, continue from its new time: no count is lost or kept for longer than a window."""
        slot = int(now / self.slot_s)
        if slot < self._slot - SET_BACK:
            self._counts = {slot: self._total} if self._total else {}
            self.unsent = {slot: sum(self.unsent.values())} if self.unsent else {}
            self._slot = slot
        elif slot > self._slot:
            self._slot = slot
            self._drop_old()

    def _drop_old(self) -> None:
        self._counts = {slot: count for slot, count in self._counts.items() if slot >= self._slot - SLOTS}
        self._total = sum(self._counts.values())


class Meter:
    """The windows of one key on one route, or on all routes without their own rates. `last_used` is the time
    of its last request. Refused requests are not counted, so a client that waits as told is admitted."""

    def __init__(self, limits: Iterable[Rate]) -> None:
        self.rates = tuple(limits)
        self.windows = [Window(rate) for rate in self.rates]
        self.last_used = 0.0

    def is_idle(self, now: float) -> bool:
        return all(window.is_idle(now) for window in self.windows)

    def take(self, now: float, cost: int = 1) -> float:
        """Count the request and return 0, or return how many seconds to wait. A cost above a window's limit
        needs the whole window."""
        self.last_used = now
        costs = [min(cost, window.rate.most) for window in self.windows]
        wait_s = max((w.wait_s(now, c) for w, c in zip(self.windows, costs, strict=True)), default=0.0)
        if not wait_s:
            for window, each in zip(self.windows, costs, strict=True):
                window.add(now, each)
        return wait_s
