"""Whose lease is over, and whether to believe it.

When more than half of four or more workers fall silent at once without a lost connection, it is more likely that
we could not hear them: then nobody is declared dead for one lease.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_orchestrator.adapters.store.values import Departure, Over

ENOUGH_TO_COMPARE = 4


@dataclass(frozen=True, slots=True)
class Guard:
    """`believes_from_ms` is when silence counts again; 0 when it does."""

    lease_ms: int
    believes_from_ms: int = 0
    pauses: int = 0

    def judge(self, over: Sequence[Over], workers: int, now_ms: int) -> tuple["Guard", list[Departure]]:
        """The guard from now on, and who is to be taken off. A lost connection is always believed."""
        lost = [each for each in over if each.suspect]
        silent = [each for each in over if not each.suspect]
        if not silent:
            return replace(self, believes_from_ms=0), _departures(lost)
        if self.believes_from_ms:
            if now_ms < self.believes_from_ms:
                return self, _departures(lost)
            return self, _departures([*lost, *silent])
        if workers >= ENOUGH_TO_COMPARE and 2 * len(silent) > workers:
            paused = replace(self, believes_from_ms=now_ms + self.lease_ms, pauses=self.pauses + 1)
            return paused, _departures(lost)
        return self, _departures([*lost, *silent])


def _departures(over: Sequence[Over]) -> list[Departure]:
    return [
        Departure(
            each.name,
            each.epoch,
            f"worker {each.name} {'lost its connection' if each.suspect else 'fell silent'}",
        )
        for each in over
    ]
