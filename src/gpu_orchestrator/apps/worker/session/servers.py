"""The servers that a worker knows: which one to try next, and after what pause. Called by the agent.

All of them use one store, so a session that one server began is resumed at any other.
"""

from dataclasses import dataclass, field

from gpu_orchestrator.engine import backoff

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


@dataclass(slots=True)
class Servers:
    """Tries servers in turn, in the order given. The pause grows with each round without success."""

    urls: tuple[str, ...]
    _index: int = 0
    _failed: int = 0
    _refusals: dict[str, str] = field(default_factory=dict)

    @property
    def current(self) -> str:
        return self.urls[self._index]

    def joined(self) -> None:
        """Note that the current server was joined: the next pause is short again."""
        self._failed = 0
        self._refusals.clear()

    def next(self) -> float:
        """Go on to the next server; return how long to wait before trying it."""
        wait_s = backoff.delay_s(self._failed // len(self.urls), base_s=SHORTEST_WAIT_S, cap_s=LONGEST_WAIT_S)
        self._failed += 1
        self._index = (self._index + 1) % len(self.urls)
        return wait_s

    def refused(self, why: str) -> bool:
        """Note that the current server does not want this worker; return whether none of them does."""
        self._refusals[self.current] = why
        return len(self._refusals) == len(self.urls)
