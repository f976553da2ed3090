"""Choose what must go so that a request of higher priority fits: the fewest pods, and of equally few sets the
one that loses least.

Pure, like `decide`: the answer names what to evict, and the caller evicts. What ends together, a pod or a
whole gang, is an `Evictable`. Only those of strictly lower priority are looked at. None goes whose disruption
budget forbids it, and none that would not help.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import current, first_obstacle

MOST_CHECKS = 5_000
"""Sets that are tried before the best one found so far is taken: about a quarter of a second."""
MOST_NODES = 128
"""Nodes that are looked at closely, those where the fewest must go first."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Long work that returns its result in the end; between two steps the caller may let others run."""

Budgets = Mapping[str, int]
"""How many more pods may be evicted under each disruption budget now."""


@dataclass(frozen=True, slots=True)
class Evictable:
    """What ends together. `lost_gpu_s` is the work that is lost if it ends now, in GPU-seconds. `budgets` has
    the names of the disruption budgets of its pods, one for each pod and budget. `pods` is their number, if a
    pod has several placements."""

    key: str
    placements: tuple[Placement, ...]
    priority: int = 0
    lost_gpu_s: float = 0.0
    budgets: tuple[str, ...] = ()
    pods: int = 0

    @property
    def size(self) -> int:
        return self.pods or len(self.placements)


@dataclass(frozen=True, slots=True)
class Victims:
    """`node` is where the request fits once these are gone."""

    node: str
    evictables: tuple[Evictable, ...]

    @property
    def cost(self) -> tuple[int, float]:
        return cost(self.evictables)


@dataclass(frozen=True, slots=True)
class NoVictims:
    """`forbidden` counts by budget the nodes where the request would fit if that budget allowed more."""

    lower: int
    forbidden: tuple[tuple[str, int], ...] = ()

    @property
    def message(self) -> str:
        if self.forbidden:
            budgets = ", ".join(f"{name} on {count}" for name, count in self.forbidden)
            return f"evicting pods of lower priority would help, but disruption budgets forbid it: {budgets}"
        if not self.lower:
            return "no pod of lower priority is in the way"
        return f"evicting all {self.lower} pods of lower priority would not help"


def cost(evictables: Iterable[Evictable]) -> tuple[int, float]:
    """Return what is compared, the smaller the better: pods, then GPU-seconds lost."""
    chosen = tuple(evictables)
    return sum(each.size for each in chosen), sum(each.lost_gpu_s for each in chosen)


def choose(
    request: Request, cluster: Cluster, policy: Policy, evictables: Sequence[Evictable], budgets: Budgets
) -> Victims | NoVictims:
    """Return the cheapest set without which the request fits on a node, or why there is none.
    Changes nothing."""
    steps = choosing(request, cluster, policy, evictables, budgets)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Victims | NoVictims = end.value
            return answer


def choosing(
    request: Request, cluster: Cluster, policy: Policy, evictables: Sequence[Evictable], budgets: Budgets
) -> Steps[Victims | NoVictims]:
    """Do what `choose` does, step by step. The cluster may change meanwhile: the answer is for the state it
    had in the beginning."""
    lower = [each for each in evictables if each.priority < request.priority]
    twin, forbidden = cluster.copy(), Counter[str]()
    best: Victims | None = None
    standing = current(request.shape, twin, policy)
    checks = [MOST_CHECKS]
    for row, on_node in _in_order(request, twin, lower, set(standing.eligible().tolist()))[:MOST_NODES]:
        name = _name(twin, row)
        if best is not None and _least_pods(request, twin, row, on_node) > best.cost[0]:
            break
        attempt = _Attempt(request, standing.filters, twin, row, checks)
        yield
        found = yield from _cheapest_on(attempt, on_node, budgets, best)
        if isinstance(found, tuple):
            best = Victims(name, found)
        elif found:
            forbidden[found] += 1
    if best is not None:
        return best
    pods = sum(each.size for each in lower)
    return NoVictims(pods, tuple(sorted(forbidden.items())))


def _in_order(
    request: Request, twin: Cluster, lower: Iterable[Evictable], eligible: set[int]
) -> list[tuple[int, list[Evictable]]]:
    """Return the nodes that have any of these, those where the fewest pods must go first."""
    by_row: dict[int, list[Evictable]] = {}
    for evictable in lower:
        for row in {twin.row(each.node) for each in evictable.placements if each.node in twin} & eligible:
            by_row.setdefault(row, []).append(evictable)

    def order(item: tuple[int, list[Evictable]]) -> tuple[int, float, int]:
        row, on_node = item
        cheapest = min(each.lost_gpu_s for each in on_node)
        return _least_pods(request, twin, row, on_node), cheapest, row

    return sorted(by_row.items(), key=order)


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


def _cheapest_on(
    attempt: "_Attempt", on_node: list[Evictable], budgets: Budgets, best: Victims | None
) -> Steps[tuple[Evictable, ...] | str | None]:
    """Return the cheapest set on this node if it is cheaper than `best`; else the budget that forbids all
    sets, or None."""
    if not attempt.fits_without(on_node):
        return None
    may_go = [each for each in on_node if allows((each,), budgets)]
    if len(may_go) < len(on_node) and not attempt.fits_without(may_go):
        return forbidding(on_node, budgets)
    enough = _irreducible(attempt, may_go)
    is_allowed = allows(enough, budgets)
    limit = cost(enough) if is_allowed else cost(may_go)
    if best is not None and best.cost <= limit:
        return (yield from _cheaper(attempt, may_go, budgets, best.cost))
    found = yield from _cheaper(attempt, may_go, budgets, limit if is_allowed else (limit[0] + 1, 0.0))
    return found or (enough if is_allowed else forbidding(may_go, budgets))


def _irreducible(attempt: "_Attempt", evictables: list[Evictable]) -> tuple[Evictable, ...]:
    """Return a set none of which could stay: all are taken away, and as many as possible are put back, the
    dearest first."""
    gone = list(evictables)
    for evictable in sorted(evictables, key=lambda each: cost((each,)), reverse=True):
        without = [each for each in gone if each is not evictable]
        if attempt.fits_without(without):
            gone = without
    return tuple(gone)


def _cheaper(
    attempt: "_Attempt", on_node: list[Evictable], budgets: Budgets, limit: tuple[int, float]
) -> Steps[tuple[Evictable, ...] | None]:
    """Try sets in order of their size; return the cheapest that costs less than the limit."""
    found: tuple[Evictable, ...] | None = None
    for size in range(1, len(on_node) + 1):
        sets = sorted(combinations(on_node, size), key=cost) if few(len(on_node), size) else []
        for chosen in sets:
            if cost(chosen) >= limit:
                break
            if attempt.is_tired:
                return found
            if not (attempt.frees_enough(chosen) and allows(chosen, budgets)):
                continue
            yield
            if attempt.fits_without(chosen):
                found, limit = chosen, cost(chosen)
                break
        if size >= limit[0]:
            break
    return found


def few(count: int, size: int) -> bool:
    """Return True if there are not too many sets of this size to sort them."""
    ways = 1
    for at in range(size):
        ways = ways * (count - at) // (at + 1)
    return ways <= MOST_CHECKS


def allows(chosen: Iterable[Evictable], budgets: Budgets) -> bool:
    """Return True if the budgets allow that all of these are evicted."""
    used = Counter(name for evictable in chosen for name in evictable.budgets)
    return all(budgets.get(name, 0) >= count for name, count in used.items())


def forbidding(on_node: Iterable[Evictable], budgets: Budgets) -> str:
    """Return the budget that allows the fewest of the evictions that were looked at."""
    used = Counter(name for evictable in on_node for name in evictable.budgets)
    return min(used, key=lambda name: (budgets.get(name, 0) - used[name], name))


class _Attempt:
    """Whether the request fits on one node without some of those there. `checks` is how often that may be
    tried."""

    def __init__(
        self, request: Request, filters: tuple[Filter, ...], twin: Cluster, row: int, checks: list[int]
    ) -> None:
        self.filters, self.twin, self.row, self.checks = filters, twin, row, checks
        self.name = _name(twin, row)
        self.missing = request.shape.whole_gpus - int(twin.usage.whole[row])

    @property
    def is_tired(self) -> bool:
        return self.checks[0] <= 0

    def frees_enough(self, evictables: Iterable[Evictable]) -> bool:
        """Return False if these hold too few devices, whatever else they hold."""
        return self.missing <= 0 or sum(_held(each, self.name) for each in evictables) >= self.missing

    def fits_without(self, evictables: Iterable[Evictable]) -> bool:
        self.checks[0] -= 1
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
