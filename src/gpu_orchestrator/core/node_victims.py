"""Choose what must go so that one request fits: the fewest pods, and of equally few sets the one that loses
least.

Pure, like `decide`: the answer names what to evict, and the caller evicts. None goes whose disruption budget
forbids it, and none that would not help.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import where
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import FITS, current, first_obstacle
from gpu_orchestrator.core.victim_search import cheapest
from gpu_orchestrator.core.victims import (
    Budgets,
    ByPriority,
    Cost,
    Evictable,
    NoVictims,
    Rules,
    Steps,
    allows,
    result_of,
)

MOST_CHECKS = 5_000
"""Sets that are tried before the best one found so far is taken: about a quarter of a second."""
MOST_NODES = 128
"""Nodes that are looked at closely, those where the fewest must go first."""

MOST_ELSEWHERE = 32
"""Of those that only make room in a queue, on other nodes than the request's, the cheapest are looked at."""
MOST_FITTING = 8
"""Nodes on which the request fits already, and that are looked at because its queue has no room."""


@dataclass(frozen=True, slots=True)
class Victims:
    """`node` is where the request fits once these are gone."""

    node: str
    evictables: tuple[Evictable, ...]

    @property
    def pods(self) -> int:
        return sum(each.size for each in self.evictables)


def choose(
    request: Request,
    cluster: Cluster,
    policy: Policy,
    evictables: Sequence[Evictable],
    budgets: Budgets,
    rules: Rules | None = None,
) -> Victims | NoVictims:
    """Return the cheapest set without which the request fits on a node, or why there is none.
    Changes nothing."""
    return result_of(choosing(request, cluster, policy, evictables, budgets, rules))


def choosing(
    request: Request,
    cluster: Cluster,
    policy: Policy,
    evictables: Sequence[Evictable],
    budgets: Budgets,
    rules: Rules | None = None,
) -> Steps[Victims | NoVictims]:
    """Do what `choose` does, step by step. The cluster may change meanwhile: the answer is for the state it
    had in the beginning."""
    rules = rules or ByPriority(request.priority)
    lower = [each for each in evictables if rules.may_go(each)]
    twin, forbidden = cluster.copy(), Counter[str]()
    best: tuple[Cost, Victims] | None = None
    standing = current(request.shape, twin, policy)
    checks = [MOST_CHECKS]
    on_rows = by_row(twin, lower, set(standing.eligible().tolist()))
    if lower and not rules.has_room((), _models(twin, None)):
        on_rows = _with_others(on_rows, lower, where(standing.codes == FITS).tolist(), rules)
    looked = 0
    for row, on_node in in_order(request, twin, on_rows):
        name = _name(twin, row)
        if (
            looked >= MOST_NODES
            or checks[0] <= 0
            or (best and _least_pods(request, twin, row, on_node) > best[0][0])
        ):
            break
        attempt = Attempt(request, standing.filters, twin, row, checks, rules)
        yield
        if not (attempt.frees_enough(on_node) and attempt.fits_without(on_node)):
            continue  # room is kept there for others, or one stays
        looked += 1
        found = yield from cheapest(attempt, on_node, budgets, best[0] if best else None)
        if isinstance(found, tuple):
            best = rules.cost(found), Victims(name, found)
        elif found:
            forbidden[found] += 1
    if best is not None:
        return best[1]
    pods = sum(each.size for each in lower)
    return NoVictims(pods, tuple(sorted(forbidden.items())))


ByRow = dict[int, list[Evictable]]


def by_row(twin: Cluster, lower: Iterable[Evictable], eligible: set[int]) -> ByRow:
    """Return the nodes that have any of these."""
    found: ByRow = {}
    for evictable in lower:
        for row in {twin.row(each.node) for each in evictable.placements if each.node in twin} & eligible:
            found.setdefault(row, []).append(evictable)
    return found


def _with_others(on_rows: ByRow, lower: list[Evictable], fitting: list[int], rules: Rules) -> ByRow:
    """Return the same for a request whose queue has no room: those on other nodes help as well, and so may
    nodes on which it fits."""
    others = sorted(lower, key=lambda each: rules.cost((each,)))[:MOST_ELSEWHERE]
    rows = dict.fromkeys([*fitting[:MOST_FITTING], *on_rows])
    found: ByRow = {}
    for row in rows:
        here = on_rows.get(row, [])
        known = {each.key for each in here}
        found[row] = [*here, *(each for each in others if each.key not in known)]
    return found


def in_order(request: Request, twin: Cluster, on_rows: ByRow) -> list[tuple[int, list[Evictable]]]:
    """Return the nodes, those where the fewest pods must go first."""

    def order(item: tuple[int, list[Evictable]]) -> tuple[int, float, int]:
        row, on_node = item
        cheapest = min(each.lost_gpu_s for each in on_node)
        return _least_pods(request, twin, row, on_node), cheapest, row

    return sorted(on_rows.items(), key=order)


def _least_pods(request: Request, twin: Cluster, row: int, on_node: list[Evictable]) -> int:
    """Return how many pods must go at least, by the number of devices that must become free."""
    missing = request.shape.whole_gpus - int(twin.usage.whole[row])
    if missing <= 0:
        return 1
    name, pods = _name(twin, row), 0
    held = sorted((_held(each, name), each.size) for each in on_node)
    for devices, size in reversed(held):
        if missing <= 0:
            break
        missing, pods = missing - devices, pods + min(size, 1)
    return max(pods, 1)


def _held(evictable: Evictable, node: str) -> int:
    return sum(len(each.devices) for each in evictable.placements if each.node == node)


def _name(twin: Cluster, row: int) -> str:
    node = twin.inventory.nodes[row]
    return node.name if node else ""


class Attempt:
    """Whether the request fits on one node without some of those there. `checks` is how often that may be
    tried."""

    def __init__(
        self,
        request: Request,
        filters: tuple[Filter, ...],
        twin: Cluster,
        row: int,
        checks: list[int],
        rules: Rules,
    ) -> None:
        self.filters, self.twin, self.row, self.checks = filters, twin, row, checks
        self.rules, self.models = rules, _models(twin, row)
        self.name = _name(twin, row)
        self.missing = request.shape.whole_gpus - int(twin.usage.whole[row])

    def allows(self, chosen: tuple[Evictable, ...], budgets: Budgets) -> bool:
        return allows(chosen, budgets) and self.rules.allows(chosen)

    @property
    def is_tired(self) -> bool:
        return self.checks[0] <= 0

    def frees_enough(self, evictables: Iterable[Evictable]) -> bool:
        """Return False if these hold too few devices, whatever else they hold."""
        return self.missing <= 0 or sum(_held(each, self.name) for each in evictables) >= self.missing

    def fits_without(self, evictables: Iterable[Evictable]) -> bool:
        self.checks[0] -= 1
        evictables = tuple(evictables)
        if not self.rules.has_room(evictables, self.models):
            return False
        gone = [
            self.twin.release(placement)
            for evictable in evictables
            for placement in evictable.placements
            if placement.node == self.name
        ]
        fits = first_obstacle(self.filters, self.twin, self.row) is None
        for placement in gone:
            self.twin.account(placement)
        return fits


def _models(twin: Cluster, row: int | None) -> frozenset[str]:
    """Return the models of a node's GPUs, or of all nodes'."""
    inventory = twin.inventory
    numbers = (
        inventory.model[where(inventory.alive[: inventory.size])] if row is None else inventory.model[row]
    )
    return frozenset(name for each in set(numbers.ravel().tolist()) if (name := inventory.names.values[each]))


def models_on(cluster: Cluster, node: str) -> frozenset[str]:
    """Return the models of a node's GPUs."""
    return _models(cluster, cluster.row(node))
