"""How long to wait before a retry: a delay that doubles up to a cap, and jitter.

Pure: chance comes in as an argument. Each caller keeps its own base, cap and jitter.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the worker's agent imports this, and must not load numpy
    from gpu_orchestrator.core.policy import Rng

MOST_DOUBLINGS = 64


def delay_s(doublings: int, *, base_s: float, cap_s: float) -> float:
    """Double `base_s` this many times, up to `cap_s`. A negative number of doublings counts as 0."""
    return min(base_s * float(2 ** min(max(doublings, 0), MOST_DOUBLINGS)), cap_s)


def jittered(wait_s: float, part: float, rng: "Rng") -> float:
    """Take up to `part` of the wait away at random, so that callers that failed together retry apart."""
    return wait_s * (1.0 - part + part * rng.random())


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays of one engine, without jitter."""

    first_s: float = 1.0
    most_s: float = 10.0

    def delay(self, attempt: int) -> float:
        """`attempt` is 0 after the first failure."""
        return delay_s(attempt, base_s=self.first_s, cap_s=self.most_s)
