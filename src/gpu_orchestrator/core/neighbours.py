"""How many pods of each kind are on each node. Kept by the cluster for filters on other pods.

A kind is counted when a filter first asks for it, and then with every placement. Where no request has rules
about other pods, nothing is counted. A copy of a cluster counts again by itself.
"""

from dataclasses import dataclass

import numpy as np

from gpu_orchestrator.core.columns import Ints
from gpu_orchestrator.core.pod_rules import Matcher, Neighbour, PodRules, matchers
from gpu_orchestrator.core.usage import Usage

MOST_KINDS = 256


@dataclass(slots=True)
class Count:
    """Matching pods by row; `version` changes with them."""

    rows: Ints
    version: int


class Neighbours:
    def __init__(self) -> None:
        self.version = 0
        self._counts: dict[Matcher, Count] = {}

    def count(self, kind: Matcher, usage: Usage) -> Ints:
        """Return the number of matching pods on each node, by row."""
        found = self._counts.pop(kind, None)
        if found is None:
            found = self._count_all(kind, usage)
            if len(self._counts) >= MOST_KINDS:  # the least recently used can be counted again
                del self._counts[next(iter(self._counts))]
        elif len(found.rows) < usage.size:
            found.rows = np.concatenate([found.rows, np.zeros(usage.size - len(found.rows), np.int64)])
        self._counts[kind] = found
        return found.rows

    def add(self, row: int, pod: Neighbour | None, by: int = 1) -> None:
        """Count a pod that came to a node, or (`by=-1`) left it."""
        if pod is None or not self._counts:
            return
        for kind, count in self._counts.items():
            if kind.matches(pod):
                if row >= len(count.rows):
                    more = max(row + 1, 2 * len(count.rows)) - len(count.rows)
                    count.rows = np.concatenate([count.rows, np.zeros(more, np.int64)])
                count.rows[row] += by
                self.version = count.version = self.version + 1

    def drop(self, row: int) -> None:
        """Forget the pods of a node that left."""
        for count in self._counts.values():
            if row < len(count.rows) and count.rows[row]:
                count.rows[row] = 0
                self.version = count.version = self.version + 1

    def stamp(self, rules: PodRules) -> tuple[int, ...]:
        """Return a value that changes when the answer to these rules may change; empty if not all of it is
        counted."""
        counts = [self._counts.get(kind) for kind in matchers(rules)]
        return tuple(each.version for each in counts if each) if all(counts) else ()

    def _count_all(self, kind: Matcher, usage: Usage) -> Count:
        rows = np.zeros(usage.size, np.int64)
        for row, held in enumerate(usage.held):
            for placement in held.values():
                if placement.neighbour is not None and kind.matches(placement.neighbour):
                    rows[row] += 1
        self.version += 1
        return Count(rows, self.version)
