"""Whose lease is over, and whether to believe it.

When more than half of four or more workers fall silent within one lease without a lost connection, it is more
likely that we could not hear them: then nobody is declared dead for one lease.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_orchestrator.adapters.store.records import Departure, Over

ENOUGH_TO_COMPARE = 4


@dataclass(frozen=True, slots=True)
class Reaper:
    """`believes_from_ms` is when silence counts again, 0 when it does; `taken_ms` are the times at which
    silent workers were taken off within the last lease."""

    lease_ms: int
    believes_from_ms: int = 0
    taken_ms: tuple[int, ...] = ()
    pauses: int = 0

    def judge(self, over: Sequence[Over], workers: int, now_ms: int) -> tuple["Reaper", list[Departure]]:
        """The guard from now on, and who is to be taken off. A lost connection is always believed."""
        lost = [each for each in over if each.suspect]
        silent = [each for each in over if not each.suspect]
        recent = tuple(at for at in self.taken_ms if at > now_ms - self.lease_ms)
        if not silent:
            return replace(self, believes_from_ms=0, taken_ms=recent), _departures(lost)
        if self._suspects_itself(len(silent) + len(recent), workers + len(recent)):
            paused = replace(self, believes_from_ms=now_ms + self.lease_ms, pauses=self.pauses + 1)
            return paused, _departures(lost)
        if now_ms < self.believes_from_ms:
            return self, _departures(lost)
        return replace(self, taken_ms=(*recent, *[now_ms] * len(silent))), _departures([*lost, *silent])

    def _suspects_itself(self, silent: int, workers: int) -> bool:
        """Once, until somebody is heard again."""
        return not self.believes_from_ms and workers >= ENOUGH_TO_COMPARE and 2 * silent > workers


def _departures(over: Sequence[Over]) -> list[Departure]:
    return [Departure(each.name, each.epoch, f"worker {each.name} {_how(each)}") for each in over]


def _how(over: Over) -> str:
    return "lost its connection" if over.suspect else "fell silent"
