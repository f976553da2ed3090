"""What each flow has had, what it holds now, and how much it may hold at once.

Start-time fair queueing: the more a flow was given, the later its next turn, on one scale for all flows.
Starting costs a little and holding costs as time passes, so flows share devices rather than starts. Holding
counts only while other flows wait, because devices that no other flow wants are free. Kept by the engine;
queues ask it which flow is next.
"""

from dataclasses import dataclass

BEGINNING_S = 0.01
"""What starting costs, in seconds of holding. Without it, a flow of very short requests would never pay."""

MOST_AHEAD_S = 86_400.0
"""A flow never owes more than this, in seconds of one device."""

FORGET_ABOVE = 4096


@dataclass(slots=True)
class _Flow:
    """`rate` is the cost per second of everything the flow holds."""

    holds: int = 0
    rate: float = 0.0
    most: int | None = None

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.holds >= self.most


class FairShare:
    """A flow that was away does not save up turns."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._now = 0.0
        self._clock: float | None = None
        self._flows: dict[str, _Flow] = {}
        self._held: dict[str, tuple[str, float]] = {}
        self._full: set[str] = set()
        self._waits: dict[str, int] = {}
        self.version = 0
        """Changes whenever the turn of a flow may have."""

    def start(self, flow: str) -> float:
        return max(self._next.get(flow, 0.0), self._now)

    def is_full(self, flow: str) -> bool:
        """Return True if the flow is at its limit: none of its requests may start."""
        return flow in self._full

    def joins(self, flow: str, count: int = 1) -> None:
        """Count more waiting requests of the flow."""
        self._waits[flow] = self._waits.get(flow, 0) + count
        if not self._waits[flow]:
            del self._waits[flow]

    def leaves(self, flow: str, count: int = 1) -> None:
        self.joins(flow, -count)

    def pass_time(self, now: float) -> None:
        """Charge flows up to now for what they hold while others wait. A clock that goes back charges
        nothing."""
        passed_s = 0.0 if self._clock is None else max(now - self._clock, 0.0)
        self._clock = now
        if not passed_s or not self._waits:
            return
        self.version += 1
        eager, most = self._waits.keys() - self._full, self._now + MOST_AHEAD_S
        for name, flow in self._flows.items():
            if flow.rate and len(eager) > (name in eager):
                self._next[name] = min(self._next.get(name, self._now) + flow.rate * passed_s, most)

    def charge(self, flow: str, cost: float) -> None:
        """Charge the flow for a request that starts."""
        self.version += 1
        self._now = self.start(flow)
        self._next[flow] = self._now + cost * BEGINNING_S
        if len(self._next) > FORGET_ABOVE:
            self._next = {name: at for name, at in self._next.items() if at > self._now}

    def take(self, key: str, flow: str, cost: float) -> bool:
        """Count one more placement of the flow, once per key. Return True if its at-limit state changed."""
        if key in self._held:
            return False
        self._held[key] = (flow, cost)
        of = self._flows.setdefault(flow, _Flow())
        of.holds += 1
        of.rate += cost
        return self._judge(flow)

    def let_go(self, key: str) -> bool:
        """Stop counting the placement of this key. Return True if its flow's at-limit state changed."""
        if (held := self._held.pop(key, None)) is None:
            return False
        flow, cost = held
        of = self._flows[flow]
        of.holds -= 1
        of.rate = of.rate - cost if of.holds else 0.0
        return self._judge(flow)

    def allow(self, flow: str, most: int | None) -> bool:
        """Set how many placements the flow may hold at once; None means no limit. Return True if its at-limit
        state changed."""
        self._flows.setdefault(flow, _Flow()).most = most
        return self._judge(flow)

    def _judge(self, flow: str) -> bool:
        """Return True if the flow's at-limit state changed. Drop flows with no limit and no holdings."""
        of, was = self._flows[flow], flow in self._full
        if of.is_full:
            self._full.add(flow)
        else:
            self._full.discard(flow)
        if not of.holds and of.most is None:
            del self._flows[flow]
        return was != of.is_full
