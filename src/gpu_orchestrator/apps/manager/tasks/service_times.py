"""How long tasks of each type and model run, as the leader saw them end. Prediction of waits reads it."""

from typing import NamedTuple

NEWEST = 0.2
"""How much the newest measurement counts."""
MOST_KINDS = 1000
UNKNOWN_S = 1.0
"""What a task takes while nothing was measured at all."""


class Kind(NamedTuple):
    task_type: str
    model: str


class ServiceTimes:
    """The kinds that ended longest ago are forgotten beyond `MOST_KINDS`."""

    def __init__(self) -> None:
        self._known: dict[Kind, float] = {}

    def ended(self, kind: Kind, took_s: float) -> None:
        known = self._known.pop(kind, None)
        self._known[kind] = took_s if known is None else known + (took_s - known) * NEWEST
        if len(self._known) > MOST_KINDS:
            del self._known[next(iter(self._known))]

    def of(self, kind: Kind) -> float:
        """Return what a task of this kind takes; the mean of all kinds if none has ended yet."""
        if (known := self._known.get(kind)) is not None:
            return known
        return sum(self._known.values()) / len(self._known) if self._known else UNKNOWN_S

    def kept(self) -> list[tuple[str, str, float]]:
        """Return what the next leader should know."""
        return [(*kind, round(took_s, 3)) for kind, took_s in self._known.items()]

    def restore(self, kept: list[tuple[str, str, float]]) -> None:
        """Take what an earlier leader knew, where nothing was measured since."""
        found = {Kind(task_type, model): took_s for task_type, model, took_s in kept[:MOST_KINDS]}
        self._known = {**found, **self._known}
