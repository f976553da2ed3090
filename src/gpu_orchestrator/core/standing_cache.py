"""A cache of standings that drops the least recently used. A copy shares them until one side updates one.
Kept by the cluster.

Standings of shapes that fit nowhere are kept apart and dropped first: thousands of waiting shapes, each
judged now and then, must not push out those of the shapes that are placed all the time."""

from typing import TYPE_CHECKING

from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape

if TYPE_CHECKING:
    from gpu_orchestrator.core.standing import Standing

KEEP = 128
"""Shapes cached per cluster value; each costs about 12 bytes per node, and up to 100 KB for states of
nodes that it has seen."""
KEEP_REFUSED = KEEP // 4
"""Of these, at least this many may be of shapes that fit nowhere."""

Key = tuple[Shape, Policy]


class StandingCache:
    def __init__(self) -> None:
        self.rows_judged = 0
        """How many rows were looked at for standings that had to be computed from the start."""
        self._kept: dict[Key, Standing] = {}
        self._refused: dict[Key, Standing] = {}
        self._owner = object()

    def copy(self) -> "StandingCache":
        """Return a copy. After this neither side owns the shared standings, so each copies one before it
        updates it."""
        twin = StandingCache()
        twin._kept, twin._refused = self._kept.copy(), self._refused.copy()
        self._owner = object()
        return twin

    def recall(self, key: Key) -> "Standing | None":
        part = self._kept
        standing = part.pop(key, None)
        if standing is None:
            part = self._refused
            standing = part.pop(key, None)
            if standing is None:
                return None
        if standing.owner is not self._owner:
            standing = standing.copy()
            standing.owner = self._owner
        part[key] = standing
        return standing

    def keep(self, key: Key, standing: "Standing") -> None:
        """Keep a new standing, among those of shapes that fit nowhere until `set_fitting` is called."""
        standing.owner = self._owner
        self._refused[key] = standing
        if len(self) > KEEP:
            oldest = self._refused if len(self._refused) > KEEP_REFUSED else self._kept
            del oldest[next(iter(oldest))]

    def set_fitting(self, key: Key, *, fits: bool) -> None:
        """Note whether the shape was just found to fit somewhere."""
        here, there = (self._refused, self._kept) if fits else (self._kept, self._refused)
        if (standing := here.pop(key, None)) is not None:
            there[key] = standing

    def forget(self, key: Key) -> None:
        self._kept.pop(key, None)
        self._refused.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept or key in self._refused

    def __len__(self) -> int:
        return len(self._kept) + len(self._refused)

    def clear(self) -> None:
        self._kept.clear()
        self._refused.clear()
