"""Filters on the pods of other nodes: required affinity and anti-affinity, also that of others, and spread.

They depend on more than the node itself, so a standing checks them again on all nodes whenever something has
changed: `fact` is None.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, Small
from gpu_orchestrator.core.filters.base import Filter
from gpu_orchestrator.core.filters.nodes import Affine, Labelled, Tolerated
from gpu_orchestrator.core.pod_rules import AllOf, Avoiding, Matcher, PodRules, PodTerm, Spread, Staying

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


def for_rules(rules: PodRules | None) -> Iterator[Filter]:
    if rules is None:
        return
    if rules.together:
        yield Together(rules.together, may_be_first=rules.may_be_first)
    for term in rules.apart:
        yield Apart(term)
    for term in rules.shunned_by:
        yield Welcome(term)
    for each in rules.spread:
        yield Even(each, tuple(other.topology_key for other in rules.spread))


class Neighbourly(Filter):
    fact = None

    def domains(self, cluster: "Cluster", key: str, kind: Matcher) -> tuple[Small, Floats]:
        """Return the domain of each row, 0 for none, and the number of matching pods by domain."""
        domain = cluster.inventory.label(key)
        counts = cluster.neighbours.count(kind, cluster.usage)
        pods = np.bincount(domain, weights=counts[: len(domain)]).astype(np.float64)
        pods[:1] = 0
        return domain, pods


class Together(Neighbourly):
    """Required pod affinity."""

    def __init__(self, terms: tuple[PodTerm, ...], *, may_be_first: bool) -> None:
        self.keys, self.may_be_first = [term.topology_key for term in terms], may_be_first
        self.kind = AllOf(tuple(term.pods for term in terms))
        words = dict.fromkeys(str(term.pods) for term in terms)
        self.reason = f"do not satisfy the pod's affinity to {' and '.join(words)}"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        has_domains = np.ones(len(rows), np.bool_)
        near, anywhere = has_domains.copy(), False
        for key in self.keys:
            domain, pods = self.domains(cluster, key, self.kind)
            has_domains &= domain[rows] > 0
            near &= pods[domain[rows]] > 0
            anywhere = anywhere or bool(pods.any())
        return has_domains if self.may_be_first and not anywhere else has_domains & near


class Apart(Neighbourly):
    """Required pod anti-affinity of the request."""

    def __init__(self, term: PodTerm) -> None:
        self.key, self.kind = term.topology_key, self.kind_of(term)
        self.reason = self.reason_of(term)

    def kind_of(self, term: PodTerm) -> Matcher:
        return term.pods

    def reason_of(self, term: PodTerm) -> str:
        return f"do not satisfy the pod's anti-affinity to {term.pods}"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        domain, pods = self.domains(cluster, self.key, self.kind)
        passed: Bools = pods[domain[rows]] == 0
        return passed


class Welcome(Apart):
    """Required pod anti-affinity of the pods that are there."""

    def kind_of(self, term: PodTerm) -> Matcher:
        return Avoiding(term)

    def reason_of(self, term: PodTerm) -> str:
        return f"do not satisfy other pods' anti-affinity to {term.pods}"


class Even(Neighbourly):
    """Topology spread. Domains are made only of nodes that have the keys of all the request's spreads."""

    def __init__(self, spread: Spread, keys: tuple[str, ...]) -> None:
        self.spread, self.keys, self.kind = spread, keys, Staying(spread.pods)
        self.members: list[Filter] = []
        if spread.labels:
            self.members.append(Labelled(spread.labels))
        if spread.affinity:
            self.members.append(Affine(spread.affinity))
        if spread.tolerations is not None:
            self.members.append(Tolerated(spread.tolerations))
        self.reason = f"would break the pod's spread over {spread.topology_key} (maxSkew {spread.max_skew})"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        domain = cluster.inventory.label(self.spread.topology_key)
        members = self._members(cluster)
        counts = cluster.neighbours.count(self.kind, cluster.usage)[: len(domain)]
        pods = np.bincount(domain[members], weights=counts[members], minlength=len(cluster.inventory.names))
        exists = np.bincount(domain[members], minlength=len(pods)) > 0
        enough = int(exists.sum()) >= self.spread.min_domains
        fewest = pods[exists].min() if enough else 0.0
        skew = pods[domain[rows]] + self.spread.counts_itself - fewest
        passed: Bools = (domain[rows] > 0) & (skew <= self.spread.max_skew)
        return passed

    def _members(self, cluster: "Cluster") -> Ints:
        """Return the rows that make up domains."""
        rows = cluster.inventory.alive.nonzero()[0]
        for key in self.keys:
            rows = rows[cluster.inventory.label_at(key, rows) > 0]
        for each in self.members:
            rows = rows[each.passes(cluster, rows)]
        return rows
