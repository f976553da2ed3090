"""How long to rest after a failure: doubling from `first_s`, never more than `most_s`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    first_s: float = 1.0
    most_s: float = 10.0

    def delay(self, attempt: int) -> float:
        """After the first failure `attempt` is 0; what is below counts as 0."""
        doublings = min(max(attempt, 0), 64)
        return min(self.first_s * float(2**doublings), self.most_s)
