"""Until when this worker may run its attempts. The agent renews it and kills all runners when it expires.

The manager counts a lease from when it received a renewal, the worker from when it sent it. The worker also
stops earlier, by a margin that is long enough to kill all runners. So no runner here ever works on an attempt
that the manager has assigned to another worker.
"""

from dataclasses import dataclass, field

LARGEST_MARGIN_S = 1.5


@dataclass(slots=True)
class Lease:
    """Times are by `clock.elapsed_s()`. Before the first grant the lease is over."""

    length_s: float = 0.0
    until: float = float("-inf")
    _granted_at: float = float("-inf")
    _sent: dict[int, float] = field(default_factory=dict)
    _number: int = 0

    def begin(self, length_s: float, sent_at: float) -> None:
        """Start the lease of a new connection, whose `Hello` was sent at `sent_at`."""
        self.length_s, self._granted_at = length_s, sent_at
        self._sent.clear()
        self.until = sent_at + length_s - self.margin_s

    @property
    def margin_s(self) -> float:
        return min(LARGEST_MARGIN_S, self.length_s * 0.15)

    def renewal_sent(self, now: float) -> int:
        """Record that a renewal is sent now, and return its number."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def renewal_granted(self, number: int) -> bool:
        """Extend the lease and return True. Ignore a grant for a renewal of an older connection."""
        sent_at = self._sent.get(number)
        if sent_at is None:
            return False
        self._sent = {later: at for later, at in self._sent.items() if later > number}
        self._granted_at = max(self._granted_at, sent_at)
        self.until = max(self.until, sent_at + self.length_s - self.margin_s)
        return True

    def hold(self, length_s: float) -> None:
        """Extend the lease because the server ends as planned: it lasts `length_s` from the last renewal that
        was granted. However late that message comes, the manager counts from a later moment."""
        self.until = max(self.until, self._granted_at + length_s - self.margin_s)

    def unanswered_s(self, now: float) -> float:
        """Return how long the oldest renewal has waited for its grant."""
        return now - min(self._sent.values(), default=now)

    def is_over(self, now: float) -> bool:
        return now >= self.until
