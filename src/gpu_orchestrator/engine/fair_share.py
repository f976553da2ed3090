"""The account of flows: what each has had, what it holds now, and how much it may hold at once.

Start-time fair queueing: a flow's next turn comes later the more it was given, on one scale for all.
Beginning counts a little and holding counts as time passes, so flows share devices and not beginnings; but
only while others wait, for what nobody else wants is free. Kept by the engine; lines ask it whose turn is
next.
"""

from dataclasses import dataclass

BEGINNING_S = 0.01
"""What beginning costs, as seconds of holding: flows take turns also among things that end at once."""

MOST_AHEAD_S = 86_400.0
"""No flow is held to more than this, in seconds of one device."""

FORGET_ABOVE = 4096


@dataclass(slots=True)
class _Flow:
    """`rate` is the cost of all it holds, per second."""

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

    def start(self, flow: str) -> float:
        return max(self._next.get(flow, 0.0), self._now)

    def is_full(self, flow: str) -> bool:
        """It holds the most it may: nothing of it is to be begun."""
        return flow in self._full

    def joins(self, flow: str) -> None:
        """One more of it waits."""
        self._waits[flow] = self._waits.get(flow, 0) + 1

    def leaves(self, flow: str) -> None:
        self._waits[flow] -= 1
        if not self._waits[flow]:
            del self._waits[flow]

    def pass_time(self, now: float) -> None:
        """What flows hold while others wait is counted up to now. A clock that goes back counts nothing."""
        passed_s = 0.0 if self._clock is None else max(now - self._clock, 0.0)
        self._clock = now
        if not passed_s or not self._waits:
            return
        eager, most = self._waits.keys() - self._full, self._now + MOST_AHEAD_S
        for name, flow in self._flows.items():
            if flow.rate and len(eager) > (name in eager):
                self._next[name] = min(self._next.get(name, self._now) + flow.rate * passed_s, most)

    def charge(self, flow: str, cost: float) -> None:
        """Something of it begins."""
        self._now = self.start(flow)
        self._next[flow] = self._now + cost * BEGINNING_S
        if len(self._next) > FORGET_ABOVE:
            self._next = {name: at for name, at in self._next.items() if at > self._now}

    def take(self, key: str, flow: str, cost: float) -> bool:
        """It holds one more thing; whether it is full by that. Counted once, however often it is said."""
        if key in self._held:
            return False
        self._held[key] = (flow, cost)
        of = self._flows.setdefault(flow, _Flow())
        of.holds += 1
        of.rate += cost
        return self._judge(flow)

    def let_go(self, key: str) -> bool:
        """Whatever holds this holds it no longer; whether its flow was full until now."""
        if (held := self._held.pop(key, None)) is None:
            return False
        flow, cost = held
        of = self._flows[flow]
        of.holds -= 1
        of.rate = of.rate - cost if of.holds else 0.0
        return self._judge(flow)

    def allow(self, flow: str, most: int | None) -> bool:
        """It may hold at most so many things at once, None for any number; whether that made it full, or let
        it go on."""
        self._flows.setdefault(flow, _Flow()).most = most
        return self._judge(flow)

    def _judge(self, flow: str) -> bool:
        """Whether it became full just now, or ceased to be. Who has nothing and may anything is forgotten."""
        of, was = self._flows[flow], flow in self._full
        if of.is_full:
            self._full.add(flow)
        else:
            self._full.discard(flow)
        if not of.holds and of.most is None:
            del self._flows[flow]
        return was != of.is_full
