"""Decides which workers with an expired lease are dead.

If more than half of four or more workers go silent within one lease without a lost connection, the fault is
more likely on our side. Then no silent worker is declared dead for one lease.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_orchestrator.adapters.store.records import Departure, ExpiredLease

ENOUGH_TO_COMPARE = 4


@dataclass(frozen=True, slots=True)
class Reaper:
    """`paused_until_ms` is when silent workers expire again, 0 without a pause; `removed_ms` are the
    times at which silent workers were removed within the last lease."""

    lease_ms: int
    paused_until_ms: int = 0
    removed_ms: tuple[int, ...] = ()
    pauses: int = 0

    def judge(
        self, expired: Sequence[ExpiredLease], workers: int, now_ms: int
    ) -> tuple["Reaper", list[Departure]]:
        """Return the next reaper and the workers to remove. A worker that lost its connection is always
        removed."""
        lost = [each for each in expired if each.suspect]
        silent = [each for each in expired if not each.suspect]
        recent = tuple(at for at in self.removed_ms if at > now_ms - self.lease_ms)
        if not silent:
            return replace(self, paused_until_ms=0, removed_ms=recent), _departures(lost)
        if self._should_pause(len(silent) + len(recent), workers + len(recent)):
            paused = replace(self, paused_until_ms=now_ms + self.lease_ms, pauses=self.pauses + 1)
            return paused, _departures(lost)
        if now_ms < self.paused_until_ms:
            return self, _departures(lost)
        return replace(self, removed_ms=(*recent, *[now_ms] * len(silent))), _departures([*lost, *silent])

    def _should_pause(self, silent: int, workers: int) -> bool:
        """Return True if too many workers are silent. Pauses only once until a round without silent
        workers."""
        return not self.paused_until_ms and workers >= ENOUGH_TO_COMPARE and 2 * silent > workers


def _departures(expired: Sequence[ExpiredLease]) -> list[Departure]:
    return [Departure(each.name, each.epoch, f"worker {each.name} {_how(each)}") for each in expired]


def _how(expired: ExpiredLease) -> str:
    return "lost its connection" if expired.suspect else "fell silent"
