"""A cache of standings that drops the least recently used. A copy shares them until one side updates one.
Kept by the cluster."""

from typing import TYPE_CHECKING

from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape

if TYPE_CHECKING:
    from gpu_orchestrator.core.standing import Standing

KEEP = 128
"""Shapes cached per cluster value; each costs about 12 bytes per node, and up to 100 KB for states of
nodes that it has seen."""

Key = tuple[Shape, Policy]


class StandingCache:
    def __init__(self) -> None:
        self._kept: dict[Key, Standing] = {}
        self._owner = object()

    def copy(self) -> "StandingCache":
        """Return a copy. After this neither side owns the shared standings, so each copies one before it
        updates it."""
        twin = StandingCache()
        twin._kept = self._kept.copy()
        self._owner = object()
        return twin

    def recall(self, key: Key) -> "Standing | None":
        standing = self._kept.pop(key, None)
        if standing is None:
            return None
        if standing.owner is not self._owner:
            standing = standing.copy()
            standing.owner = self._owner
        self._kept[key] = standing
        return standing

    def keep(self, key: Key, standing: "Standing") -> None:
        standing.owner = self._owner
        self._kept[key] = standing
        if len(self._kept) > KEEP:
            del self._kept[next(iter(self._kept))]

    def forget(self, key: Key) -> None:
        self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        self._kept.clear()
