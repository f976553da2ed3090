"""How many pods of each kind are on each node. Kept by the cluster for filters on other pods.

A kind is counted when a filter first asks for it, and then with every placement. Where no request has rules
about other pods, nothing is counted. A copy of a cluster counts again by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.columns import Ints
from gpu_orchestrator.core.pod_rules import Avoiding, Matcher, Neighbour, PodRules, matchers, namespaces_of
from gpu_orchestrator.core.usage import Usage

MOST_KINDS = 256

Where = tuple[int, Neighbour]
"""The row of a pod's node, and the pod."""


@dataclass(slots=True)
class Count:
    """Matching pods by row; `version` changes with them."""

    rows: Ints
    version: int


class Neighbours:
    """`version` changes with every pod that comes or goes, also if no kind that is counted now matches it. To
    count a kind again does not change it."""

    def __init__(self) -> None:
        self.version = 0
        self._numbers = count(1)
        self._counts: dict[Matcher, Count] = {}
        self._by_namespace: dict[str, dict[str, Where]] = {}
        self._avoiding: dict[str, Where] = {}

    def count(self, kind: Matcher, usage: Usage) -> Ints:
        """Return the number of matching pods on each node, by row."""
        if not self._counts:
            self._list_all(usage)
        found = self._counts.pop(kind, None)
        if found is None:
            found = self._count_all(kind, usage.size)
            if len(self._counts) >= MOST_KINDS:  # the least recently used can be counted again
                del self._counts[next(iter(self._counts))]
        self._counts[kind] = found
        _make_room(found, usage.size)
        return found.rows

    def add(self, row: int, placement: Placement) -> None:
        """Count a pod that came to a node."""
        if self._counts and placement.neighbour is not None:
            self._list(row, placement.key, placement.neighbour)
            self._change(row, placement.neighbour, 1)

    def remove(self, row: int, placement: Placement) -> None:
        """Count a pod no longer that left its node."""
        if self._counts and (pod := placement.neighbour) is not None:
            self._by_namespace[pod.namespace].pop(placement.key, None)
            self._avoiding.pop(placement.key, None)
            self._change(row, pod, -1)

    def stamp(self, rules: PodRules) -> tuple[int, ...]:
        """Return a value that changes when the answer to these rules may change; empty if not all of it is
        counted."""
        counts = [self._counts.get(kind) for kind in matchers(rules)]
        return tuple(each.version for each in counts if each) if all(counts) else ()

    def _change(self, row: int, pod: Neighbour, by: int) -> None:
        self.version += 1
        for kind, found in self._counts.items():
            if kind.matches(pod):
                _make_room(found, row + 1)
                found.rows[row] += by
                found.version = next(self._numbers)

    def _list_all(self, usage: Usage) -> None:
        """List the pods, from now on with every placement: somebody has a rule about them."""
        self._by_namespace, self._avoiding = {}, {}
        for row, held in enumerate(usage.held):
            for key, placement in held.items():
                if placement.neighbour is not None:
                    self._list(row, key, placement.neighbour)

    def _list(self, row: int, key: str, pod: Neighbour) -> None:
        self._by_namespace.setdefault(pod.namespace, {})[key] = row, pod
        if pod.avoids:
            self._avoiding[key] = row, pod

    def _count_all(self, kind: Matcher, size: int) -> Count:
        rows = np.zeros(size, np.int64)
        for row, pod in self._candidates(kind):
            if kind.matches(pod):
                rows[row] += 1
        return Count(rows, next(self._numbers))

    def _candidates(self, kind: Matcher) -> Iterable[Where]:
        """Return the pods that may match, as few as can be told without looking at their labels."""
        if isinstance(kind, Avoiding):
            return self._avoiding.values()
        names = namespaces_of(kind)
        among = self._by_namespace if names is None else names
        return chain.from_iterable(self._by_namespace.get(name, {}).values() for name in among)


def _make_room(count: Count, size: int) -> None:
    if (short := size - len(count.rows)) > 0:
        count.rows = np.concatenate([count.rows, np.zeros(short, np.int64)])
