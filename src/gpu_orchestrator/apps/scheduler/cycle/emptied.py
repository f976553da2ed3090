"""Tell gangs that would not fit if all went that may, by the numbers alone: thousands of them cost little.
Used by `controllers/preemption`, one for each look."""

from collections.abc import Callable, Iterable, Sequence
from math import inf

from gpu_orchestrator.apps.scheduler.cycle.preemptors import Preemptor
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import may_fit
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.victims import Evictable


class Emptied:
    """`cluster` returns a copy without all that ends anyway, as it is now."""

    def __init__(self, cluster: Callable[[], Cluster], evictables: Sequence[Evictable]) -> None:
        self._cluster, self._evictables = cluster, evictables
        self._known: dict[float, tuple[Cluster, dict[Shape, int]]] = {}

    def may_hold(self, preemptor: Preemptor) -> bool:
        """Return False if there is not enough for this gang even if all of lower priority go, or all, if its
        queue may have what others borrow."""
        if preemptor.gang is None:
            return True
        below = inf if preemptor.queue else preemptor.priority
        if below not in self._known:
            self._known[below] = self._without(each for each in self._evictables if each.priority < below), {}
        cluster, rooms = self._known[below]
        return may_fit(preemptor.gang, cluster, rooms)

    def _without(self, evictables: Iterable[Evictable]) -> Cluster:
        twin = self._cluster()
        for each in evictables:
            release(each.placements, twin)
        return twin


def release(placements: Iterable[Placement], cluster: Cluster) -> None:
    for each in placements:
        if each.node in cluster and each.key in cluster.held_on(each.node):
            cluster.release(each)
