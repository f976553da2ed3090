"""Bound the writes of a node: a few at once, then one every few seconds, whatever its devices do. Pure."""

SHORTEST_S = 0.01
"""A rest from rounding may be less than the clock can measure; the caller would wait without end."""


class Pace:
    """Up to `burst` at once; one more every `every_s`."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst, self._every_s = burst, every_s
        self._left, self._at = float(burst), 0.0

    def wait_s(self, now: float) -> float:
        """Return how long to wait before the next; 0: not at all, and it is counted."""
        gained = max(now - self._at, 0.0) / self._every_s
        self._left, self._at = min(self._left + gained, float(self._burst)), now
        if self._left < 1.0:
            return max((1.0 - self._left) * self._every_s, SHORTEST_S)
        self._left -= 1.0
        return 0.0
