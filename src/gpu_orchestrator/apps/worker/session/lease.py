"""Until when what runs here is ours.

The server counts a lease from when it heard a renewal, we from when we sent it, and we stop earlier by a
margin that is enough to kill. So no runner of ours ever works on what the server has given to another.
"""

from dataclasses import dataclass, field

LARGEST_MARGIN_S = 1.5


@dataclass(slots=True)
class Lease:
    """Times are by `clock.elapsed_s()`. Before the first grant nothing is ours."""

    length_s: float = 0.0
    until: float = float("-inf")
    _sent: dict[int, float] = field(default_factory=dict)
    _number: int = 0

    def begin(self, length_s: float, sent_at: float) -> None:
        """A new connection was welcomed; its `Hello` went out at `sent_at`."""
        self.length_s = length_s
        self._sent.clear()
        self.until = sent_at + length_s - self.margin_s

    @property
    def margin_s(self) -> float:
        return min(LARGEST_MARGIN_S, self.length_s * 0.15)

    def asked(self, now: float) -> int:
        """Number of the renewal that goes out now."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def granted(self, number: int) -> bool:
        """Whether this answer prolongs the lease; one for a renewal of an older connection does not."""
        sent_at = self._sent.get(number)
        if sent_at is None:
            return False
        self._sent = {later: at for later, at in self._sent.items() if later > number}
        self.until = max(self.until, sent_at + self.length_s - self.margin_s)
        return True

    def unanswered_s(self, now: float) -> float:
        """How long the oldest renewal has waited for its answer."""
        return now - min(self._sent.values(), default=now)

    def is_over(self, now: float) -> bool:
        return now >= self.until
