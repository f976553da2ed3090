"""How often a key may ask: windows that slide, counted in sixty slots each.

Never more than the limit in any window, and a refusal says truly when there is room again (to a sixtieth of
the window). Kept in this process, so that a request asks no store; `tally.py` tells other processes.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpu_orchestrator.api.rates import Rate

SLOTS = 60
SET_BACK = 5


class Window:
    """`counts` are by slot, of all processes as far as it is known; `unsent` of them nobody else knows."""

    def __init__(self, rate: Rate) -> None:
        self.rate, self.slot_s = rate, rate.seconds / SLOTS
        self.unsent: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._total = self._slot = 0

    def wait_s(self, now: float, cost: int) -> float:
        """0 if there is room for so many, else in how many seconds there will be."""
        self._move_on(now)
        free = self.rate.most - self._total
        for slot in sorted(self._counts) if free < cost else ():
            free += self._counts[slot]
            if free >= cost:
                return (slot + SLOTS + 1) * self.slot_s - now
        return 0.0

    def add(self, now: float, cost: int) -> None:
        self._move_on(now)
        for counts in (self._counts, self.unsent):
            counts[self._slot] = counts.get(self._slot, 0) + cost
        self._total += cost

    def merge(self, counts: Mapping[int, int]) -> None:
        """What all processes have counted, this one too but for what it has not sent."""
        self._counts = dict(counts)
        for slot, count in self.unsent.items():
            self._counts[slot] = self._counts.get(slot, 0) + count
        self._drop_old()

    def forget_sent(self, counts: Sequence[int]) -> None:
        """`counts` are slots and counts in turn; what came since is still to be sent."""
        for slot, count in zip(counts[::2], counts[1::2], strict=True):
            left = self.unsent.pop(slot, count) - count
            if left:
                self.unsent[slot] = left

    def used(self, now: float) -> int:
        self._move_on(now)
        return self._total

    def is_idle(self, now: float) -> bool:
        return not self.used(now) and not self.unsent

    def _move_on(self, now: float) -> None:
        """A clock that goes back a little stays in the present slot; one that was set goes on from where it
        is now, and nothing is forgotten or kept for longer than a window."""
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
    """One key on one route, or on all that have no rates of their own; `asked` is when it was last. What is
    refused is not counted, so that who waits as told gets in."""

    def __init__(self, limits: Iterable[Rate]) -> None:
        self.rates = tuple(limits)
        self.windows = [Window(rate) for rate in self.rates]
        self.asked = 0.0

    def is_idle(self, now: float) -> bool:
        return all(window.is_idle(now) for window in self.windows)

    def take(self, now: float, cost: int = 1) -> float:
        """0 if it may, and is counted; else how many seconds to wait. What costs more than a window ever
        holds must have it whole."""
        self.asked = now
        costs = [min(cost, window.rate.most) for window in self.windows]
        wait_s = max((w.wait_s(now, c) for w, c in zip(self.windows, costs, strict=True)), default=0.0)
        if not wait_s:
            for window, each in zip(self.windows, costs, strict=True):
                window.add(now, each)
        return wait_s
