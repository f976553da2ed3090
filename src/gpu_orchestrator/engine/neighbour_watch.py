"""Parked requests with rules about other pods: find those that such pods may have helped.

A pod that comes or goes on one node can open all other nodes of its domain, which the wakeup index does not
see. Each group is looked at again when the counts that it depends on, or the nodes, have changed. A call
looks at a few groups only, so that many of them do not hold up the engine; `is_behind` says that some are
left. Kept by `Unschedulable`.
"""

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.standing import FITS, current

FEW = 16
FEW_ROWS = 20_000
"""How many groups are looked at in one call, and how many rows may be judged for that."""

Key = tuple[Shape, Policy]
Stamp = tuple[int, ...]


class NeighbourWatch:
    def __init__(self) -> None:
        self._stamps: dict[Key, Stamp] = {}
        self._due: list[Key] = []
        self._seen: Stamp = ()

    def __bool__(self) -> bool:
        return bool(self._stamps)

    @property
    def is_behind(self) -> bool:
        return bool(self._due)

    def set(self, key: Key, cluster: Cluster) -> None:
        """Watch a shape that was refused just now."""
        if key[0].rules is not None:
            self._stamps[key] = _stamp(key, cluster)

    def clear(self, key: Key) -> None:
        self._stamps.pop(key, None)

    def helped(self, cluster: Cluster) -> list[Key]:
        """Return the shapes that fit now because of other pods or other nodes."""
        seen = (cluster.neighbours.version, cluster.observed.mark)
        if seen != self._seen:
            left = [key for key in self._due if key in self._stamps]  # first: none waits forever
            self._seen, self._due = seen, list(dict.fromkeys([*left, *self._stamps]))
        few, most, found = self._due[:FEW], cluster.rows_judged + FEW_ROWS, list[Key]()
        for key in few:
            del self._due[0]
            if key in self._stamps and self._fits_now(key, cluster):
                found.append(key)
            if cluster.rows_judged >= most:
                break
        return found

    def _fits_now(self, key: Key, cluster: Cluster) -> bool:
        before = self._stamps[key]
        if len(before) > 1 and before == _stamp(key, cluster):
            return False
        try:
            fits = bool((current(key[0], cluster, key[1]).codes == FITS).any())
        except Exception:  # a policy that breaks refuses its requests when it decides them
            fits = True
        self._stamps[key] = _stamp(key, cluster)
        return fits


def _stamp(key: Key, cluster: Cluster) -> Stamp:
    """Return a value that changes with what the shape's rules depend on. It is short if some of that is not
    counted any more."""
    rules = key[0].rules
    return (cluster.observed.mark, *(cluster.neighbours.stamp(rules) if rules is not None else ()))
