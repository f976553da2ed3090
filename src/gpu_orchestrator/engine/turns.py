"""The account of flows: what each has had, what it holds now, and how much it may hold at once.

Start-time fair queueing: a flow's next turn comes later the more it was given, on one scale for all.
Beginning counts a little and holding counts as time passes, so flows share devices and not beginnings. Kept
by the engine; lines ask it whose turn is next.
"""

from dataclasses import dataclass

BEGINNING_S = 0.01
"""What beginning costs, as seconds of holding: flows take turns also among things that end at once."""

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


class Turns:
    """A flow that was away does not save up turns."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._now = 0.0
        self._clock: float | None = None
        self._flows: dict[str, _Flow] = {}
        self._held: dict[str, tuple[str, float]] = {}
        self._full: set[str] = set()

    def start(self, flow: str) -> float:
        return max(self._next.get(flow, 0.0), self._now)

    def is_full(self, flow: str) -> bool:
        """It holds the most it may: nothing of it is to be begun."""
        return flow in self._full

    def pass_time(self, now: float) -> None:
        """What flows hold is counted up to now. A clock that goes back counts nothing."""
        passed_s = 0.0 if self._clock is None else max(now - self._clock, 0.0)
        self._clock = now
        if passed_s:
            for name, flow in self._flows.items():
                if flow.rate:
                    self._next[name] = self._next.get(name, self._now) + flow.rate * passed_s

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
        changed = self._judge(flow)
        if not of.holds and of.most is None:
            del self._flows[flow]
        return changed

    def allow(self, flow: str, most: int | None) -> bool:
        """It may hold at most so many things at once, None for any number; whether that made it full, or let
        it go on."""
        self._flows.setdefault(flow, _Flow()).most = most
        return self._judge(flow)

    def _judge(self, flow: str) -> bool:
        """Whether it became full just now, or ceased to be."""
        was, now = flow in self._full, self._flows[flow].is_full
        if now:
            self._full.add(flow)
        else:
            self._full.discard(flow)
        return was != now
