"""Decide whether to send a request again and how long to wait first. `Client` calls it and does the waiting.

error                carried out?   sent again
Throttled            no             always, not before Retry-After (BlockedByBudget is left to the caller)
Unreachable          no             always
Unavailable          perhaps        idempotent requests
LostAnswer           perhaps        idempotent requests
"""

import random
from dataclasses import dataclass, field

from gpu_orchestrator.adapters.kube.errors import BlockedByBudget, LostAnswer, Temporary, Unavailable
from gpu_orchestrator.engine import backoff

FULL = 1.0
BRIEFLY_S = 1.0
"""The patience of those who work off a queue: enough for a lost answer. The queue waits out the rest, so that
none of its workers does."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that callers that failed together do not retry together."""

    base_s: float = 0.1
    cap_s: float = 5.0
    rng: random.Random = field(default_factory=random.Random)

    def delay_s(self, attempt: int, at_least_s: float = 0.0) -> float:
        longest_s = backoff.delay_s(attempt, base_s=self.base_s, cap_s=self.cap_s)
        return at_least_s + backoff.jittered(longest_s, FULL, self.rng)


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy. `patience_s` is how long a request may take with all its tries; 0 means one try."""

    patience_s: float = 60.0
    backoff: Backoff = field(default_factory=Backoff)

    def delay_s(self, error: Exception, *, attempt: int, spent_s: float, idempotent: bool) -> float | None:
        """Return the seconds to wait before the next try, or None to give up."""
        if not isinstance(error, Temporary) or isinstance(error, BlockedByBudget):
            return None
        if isinstance(error, (LostAnswer, Unavailable)) and not idempotent:
            return None
        delay = self.backoff.delay_s(attempt, error.delay_s)
        return delay if spent_s + delay <= self.patience_s else None
