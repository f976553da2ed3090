"""How every node stands to one shape under one policy: the first filter it fails, or its score.

Computed once per shape and updated from the cluster's journals, so that a decision costs what changed since
the last one like it.
"""

from typing import TYPE_CHECKING, Self

import numpy as np

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.columns import Codes, Floats, Ints, where
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.filters import Filter, compile_filters
from gpu_orchestrator.core.filters.devices import Kind
from gpu_orchestrator.core.offers import Known, Offers
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Shape

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster

FITS, GONE = 0, -1
FEW, SMALL, MOST_SEEN = 4, 64, 256
"""Cached states are used if at most FEW nodes changed in a cluster of at most SMALL nodes; MOST_SEEN states
are kept. Among thousands of nodes hardly one returns to a state that it was in a moment ago."""
RULES_PER_ROW = 8
"""Checking this many rules about other pods on a node costs about as much as judging it for a new shape."""
NOBODY: Ints = np.zeros(0, np.int64)


class Standing:
    """`codes`: 0 fits, n the n-th filter fails, -1 no such node. `scores`: -inf unless it fits."""

    def __init__(self, kind: Kind, policy: Policy, filters: tuple[Filter, ...]) -> None:
        self.kind, self.policy, self.filters = kind, policy, filters
        self.fact_codes = self.codes = np.zeros(0, np.int16)
        self.scores: Floats = np.zeros(0)
        self.observed_mark = self.changed_mark = 0
        self.refusal: Refusal | None = None
        self.known: Known = {}
        self.never: tuple[int, bool] | None = None
        self.owner: object = None
        self.seen: dict[tuple[int, bytes], tuple[int, float]] = {}

    def copy(self) -> Self:
        twin = type(self)(self.kind, self.policy, self.filters)
        twin.fact_codes, twin.codes, twin.scores = (
            self.fact_codes.copy(),
            self.codes.copy(),
            self.scores.copy(),
        )
        twin.observed_mark, twin.changed_mark = self.observed_mark, self.changed_mark
        twin.refusal, twin.never, twin.known = self.refusal, self.never, self.known
        return twin

    def mend(self, cluster: "Cluster") -> None:
        """Check again the nodes that changed since the last time."""
        if self.changed_mark == cluster.changed.mark:
            return
        is_sized = len(self.codes) == cluster.inventory.size
        observed = cluster.observed.since(self.observed_mark) if is_sized else None
        changed = cluster.changed.since(self.changed_mark) if is_sized else None
        if observed is None or changed is None:
            self._start_over(cluster)
        elif not observed and len(changed) <= FEW and self._may_look_up(cluster):
            self._look_again(cluster, changed)
        else:
            if observed:
                self.seen.clear()
            self._look_at(cluster, np.array(observed, np.int64), np.array(changed, np.int64))
        self.observed_mark, self.changed_mark = cluster.observed.mark, cluster.changed.mark
        self.refusal = None

    def _may_look_up(self, cluster: "Cluster") -> bool:
        """Ports and volumes depend also on which placements hold them, so a cached state is not enough."""
        shape = self.kind.shape
        return cluster.inventory.size <= SMALL and not shape.host_ports and not shape.volumes

    def _look_again(self, cluster: "Cluster", changed: list[int]) -> None:
        """Only what is held changed, and only on a few nodes: mostly they have been in that same state
        before."""
        new = []
        for row in changed:
            key = (row, cluster.usage.state(row))
            if (seen := self.seen.get(key)) is None:
                new.append(key)
            else:
                self.codes[row], self.scores[row] = seen
        if not new:
            return
        self._look_at(cluster, NOBODY, np.array([row for row, _ in new], np.int64))
        if len(self.seen) + len(new) > MOST_SEEN:
            self.seen.clear()
        for key in new:
            self.seen[key] = self.codes.item(key[0]), self.scores.item(key[0])

    def _start_over(self, cluster: "Cluster") -> None:
        self.seen.clear()
        size = cluster.inventory.size
        cluster.standings.rows_judged += size
        self.fact_codes, self.codes = np.zeros(size, np.int16), np.zeros(size, np.int16)
        self.scores = np.full(size, -np.inf)
        rows = np.arange(size)
        self._look_at(cluster, rows, rows)

    def _look_at(self, cluster: "Cluster", observed: Ints, changed: Ints) -> None:
        if len(observed):
            codes = np.where(cluster.inventory.alive[observed], FITS, GONE).astype(np.int16)
            self.fact_codes[observed] = first_failing(self.filters, cluster, observed, codes, facts=True)
        codes = first_failing(self.filters, cluster, changed, self.fact_codes[changed], facts=False)
        self.codes[changed] = codes
        self.scores[changed] = -np.inf
        rows = changed[codes == FITS]
        if len(rows):
            self.scores[rows] = scores_of(self.offers(cluster, rows), self.policy)

    def offers(self, cluster: "Cluster", rows: Ints) -> Offers:
        return Offers(cluster, self.kind, self.policy.allocate, rows, self.known)

    def eligible(self) -> Ints:
        """Return the rows of nodes that could take the shape by their facts, whatever is free."""
        return where(self.fact_codes == FITS)


class NeighbourStanding(Standing):
    """The standing of a shape with rules about other pods. A pod on one node decides about all nodes of its
    domain, so these rules are checked last, and again on all nodes that pass the other filters."""

    def __init__(self, kind: Kind, policy: Policy, filters: tuple[Filter, ...]) -> None:
        super().__init__(kind, policy, filters)
        self.near_codes, self.near_scores = self.codes, self.scores
        self.rules = sum(each.fact is None for each in filters)

    def copy(self) -> Self:
        twin = super().copy()
        twin.near_codes, twin.near_scores = self.near_codes.copy(), self.near_scores.copy()
        return twin

    def mend(self, cluster: "Cluster") -> None:
        if self.changed_mark == cluster.changed.mark:
            return
        self.codes, self.scores = self.near_codes, self.near_scores
        super().mend(cluster)
        self.near_codes, self.near_scores = self.codes, self.scores
        self.codes, self.scores = self.codes.copy(), self.scores.copy()
        rows = where(self.codes == FITS)
        cluster.standings.rows_judged += len(rows) * self.rules // RULES_PER_ROW
        self.codes[rows] = first_failing(self.filters, cluster, rows, self.codes[rows], facts=None)
        self.scores[self.codes != FITS] = -np.inf


def current(shape: Shape, cluster: "Cluster", policy: Policy) -> Standing:
    """Return the standing of all nodes now, from the cache if possible."""
    key = (shape, policy)
    standing = cluster.standings.recall(key)
    if standing is None:
        filters = compile_filters(shape, cluster.inventory)
        make = Standing if shape.rules is None else NeighbourStanding
        standing = make(Kind(shape, cluster.inventory), policy, filters)
        cluster.standings.keep(key, standing)
    try:
        standing.mend(cluster)
    except Exception:  # an opinion raised: the half-updated standing must not be used again
        cluster.standings.forget(key)
        raise
    return standing


def first_failing(
    filters: tuple[Filter, ...],
    cluster: "Cluster",
    rows: Ints,
    codes: Codes,
    *,
    facts: bool | None,
) -> Codes:
    """Return for each row the number of the first filter it fails, where `codes` has none yet."""
    left = where(codes == FITS)
    for number, each in enumerate(filters, 1):
        if each.fact is facts and len(left):
            passed = each.passes(cluster, rows[left])
            if not passed.all():
                codes[left[~passed]] = number
                left = left[passed]
    return codes


def first_obstacle(filters: tuple[Filter, ...], cluster: "Cluster", row: int) -> Filter | None:
    """Return the first filter that this node fails; None if it fits. A rule about other pods looks at all
    nodes even for one, which counts as judged rows."""
    only = np.array([row])
    for each in filters:
        if each.fact is None:
            cluster.standings.rows_judged += cluster.inventory.size // RULES_PER_ROW
        if not each.passes(cluster, only)[0]:
            return each
    return None


def passing(
    key: tuple[Shape, Policy], filters: tuple[Filter, ...], cluster: "Cluster", rows: list[int]
) -> tuple[list[int], list[int]]:
    """Return which of these rows pass all filters of the shape, and which cannot pass until their node
    changes. Rules about other pods count as judged rows, as in `first_obstacle`."""
    if (standing := _nearly_current(key, cluster)) is not None:
        fitting = [row for row in rows if standing.codes.item(row) == FITS]
        return fitting, [row for row in rows if standing.fact_codes.item(row) != FITS]
    left, excluded = np.array(rows, np.int64), list[int]()
    for each in filters:
        if not len(left):
            break
        if each.fact is None:
            cluster.standings.rows_judged += cluster.inventory.size // RULES_PER_ROW
        passed = each.passes(cluster, left)
        if each.fact and not passed.all():
            excluded += left[~passed].tolist()
        left = left[passed]
    return left.tolist(), excluded


def _nearly_current(key: tuple[Shape, Policy], cluster: "Cluster") -> Standing | None:
    """Return the standing if it is cached and so few nodes changed since that it is cheap to update: the
    decision that follows does that anyway. None if it is not, or if the policy breaks."""
    standing = cluster.standings.recall(key)
    if standing is None or key[0].rules is not None or len(standing.codes) != cluster.inventory.size:
        return None
    if cluster.changed.mark - standing.changed_mark > SMALL:
        return None
    try:
        return current(key[0], cluster, key[1])
    except Exception:  # a policy that breaks refuses its requests when it decides them
        return None


def scores_of(offers: Offers, policy: Policy) -> Floats:
    total = np.zeros(len(offers))
    for weight, opinion in policy.strategy.opinions:
        total += weight * opinion(offers)
    if not np.isfinite(total).all():
        raise InvalidRequest(f"strategy {policy.strategy.name} gave a score that is not a finite number")
    return total
