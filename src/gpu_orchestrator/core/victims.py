"""Choose what must go so that a request fits: the fewest pods, and of equally few sets the one that loses
least.

Pure, like `decide`: the answer names what to evict, and the caller evicts. What ends together, a pod or a
whole gang, is an `Evictable`. Its `Rules` say whom a request may evict: those of strictly lower priority, or,
of a request in a queue with quota, those that `core/reclaim.py` allows. None goes whose disruption budget
forbids it, and none that would not help.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol, TypeVar

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import where
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import FITS, current, first_obstacle

MOST_CHECKS = 5_000
"""Sets that are tried before the best one found so far is taken: about a quarter of a second."""
MOST_NODES = 128
"""Nodes that are looked at closely, those where the fewest must go first."""

MOST_ELSEWHERE = 32
"""Of those that only make room in a queue, on other nodes than the request's, the cheapest are looked at."""
MOST_FITTING = 8
"""Nodes on which the request fits already, and that are looked at because its queue has no room."""

T = TypeVar("T")
Cost = tuple[float, ...]
"""What is compared, the smaller the better; first the number of pods."""
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
    def pods(self) -> int:
        return sum(each.size for each in self.evictables)


class Rules(Protocol):
    """Whom a request may evict."""

    def may_go(self, evictable: Evictable) -> bool: ...

    def allows(self, chosen: Iterable[Evictable]) -> bool:
        """Return True if all of these may go together; then a part of them may, too."""
        ...

    def has_room(self, gone: Iterable[Evictable], models: frozenset[str]) -> bool:
        """Return True if without these the request's queue has room for it, on one of these models."""
        ...

    def cost(self, chosen: Iterable[Evictable]) -> Cost: ...


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Those of strictly lower priority may go, whatever their queue."""

    priority: int

    def may_go(self, evictable: Evictable) -> bool:
        return evictable.priority < self.priority

    def allows(self, chosen: Iterable[Evictable]) -> bool:
        return True

    def has_room(self, gone: Iterable[Evictable], models: frozenset[str]) -> bool:
        return True

    def cost(self, chosen: Iterable[Evictable]) -> Cost:
        return cost(chosen)


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
    request: Request,
    cluster: Cluster,
    policy: Policy,
    evictables: Sequence[Evictable],
    budgets: Budgets,
    rules: Rules | None = None,
) -> Victims | NoVictims:
    """Return the cheapest set without which the request fits on a node, or why there is none.
    Changes nothing."""
    steps = choosing(request, cluster, policy, evictables, budgets, rules)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: Victims | NoVictims = end.value
            return answer


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
    by_row = _by_row(twin, lower, set(standing.eligible().tolist()))
    if lower and not rules.has_room((), _models(twin, None)):
        by_row = _with_others(by_row, lower, where(standing.codes == FITS).tolist(), rules)
    for row, on_node in _in_order(request, twin, by_row)[:MOST_NODES]:
        name = _name(twin, row)
        if best is not None and _least_pods(request, twin, row, on_node) > best[0][0]:
            break
        attempt = _Attempt(request, standing.filters, twin, row, checks, rules)
        yield
        found = yield from _cheapest_on(attempt, on_node, budgets, best[0] if best else None)
        if isinstance(found, tuple):
            best = rules.cost(found), Victims(name, found)
        elif found:
            forbidden[found] += 1
    if best is not None:
        return best[1]
    pods = sum(each.size for each in lower)
    return NoVictims(pods, tuple(sorted(forbidden.items())))


ByRow = dict[int, list[Evictable]]


def _by_row(twin: Cluster, lower: Iterable[Evictable], eligible: set[int]) -> ByRow:
    """Return the nodes that have any of these."""
    by_row: ByRow = {}
    for evictable in lower:
        for row in {twin.row(each.node) for each in evictable.placements if each.node in twin} & eligible:
            by_row.setdefault(row, []).append(evictable)
    return by_row


def _with_others(by_row: ByRow, lower: list[Evictable], fitting: list[int], rules: Rules) -> ByRow:
    """Return the same for a request whose queue has no room: those on other nodes help as well, and so may
    nodes on which it fits."""
    others = sorted(lower, key=lambda each: rules.cost((each,)))[:MOST_ELSEWHERE]
    rows = dict.fromkeys([*fitting[:MOST_FITTING], *by_row])
    found: ByRow = {}
    for row in rows:
        here = by_row.get(row, [])
        known = {each.key for each in here}
        found[row] = [*here, *(each for each in others if each.key not in known)]
    return found


def _in_order(request: Request, twin: Cluster, by_row: ByRow) -> list[tuple[int, list[Evictable]]]:
    """Return the nodes, those where the fewest pods must go first."""

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
    attempt: "_Attempt", on_node: list[Evictable], budgets: Budgets, best: Cost | None
) -> Steps[tuple[Evictable, ...] | str | None]:
    """Return the cheapest set on this node if it is cheaper than `best`; else the budget that forbids all
    sets, or None."""
    if not attempt.fits_without(on_node):
        return None
    may_go = [each for each in on_node if attempt.allows((each,), budgets)]
    if len(may_go) < len(on_node) and not attempt.fits_without(may_go):
        return forbidding(on_node, budgets)
    enough = _irreducible(attempt, may_go)
    is_allowed, cost_of = attempt.allows(enough, budgets), attempt.rules.cost
    limit = cost_of(enough) if is_allowed else cost_of(may_go)
    if best is not None and best <= limit:
        return (yield from _cheaper(attempt, may_go, budgets, best))
    found = yield from _cheaper(attempt, may_go, budgets, limit if is_allowed else (limit[0] + 1,))
    return found or (enough if is_allowed else forbidding(may_go, budgets))


def _irreducible(attempt: "_Attempt", evictables: list[Evictable]) -> tuple[Evictable, ...]:
    """Return a set none of which could stay: all are taken away, and as many as possible are put back, the
    dearest first."""
    gone = list(evictables)
    for evictable in sorted(evictables, key=lambda each: attempt.rules.cost((each,)), reverse=True):
        without = [each for each in gone if each is not evictable]
        if attempt.fits_without(without):
            gone = without
    return tuple(gone)


def _cheaper(
    attempt: "_Attempt", on_node: list[Evictable], budgets: Budgets, limit: Cost
) -> Steps[tuple[Evictable, ...] | None]:
    """Try sets in order of their size; return the cheapest that costs less than the limit."""
    found: tuple[Evictable, ...] | None = None
    cost_of = attempt.rules.cost
    for size in range(1, len(on_node) + 1):
        sets = sorted(combinations(on_node, size), key=cost_of) if few(len(on_node), size) else []
        for chosen in sets:
            if cost_of(chosen) >= limit:
                break
            if attempt.is_tired:
                return found
            if not (attempt.frees_enough(chosen) and attempt.allows(chosen, budgets)):
                continue
            yield
            if attempt.fits_without(chosen):
                found, limit = chosen, cost_of(chosen)
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
    """Return the budget that allows the fewest of the evictions that were looked at; empty if no budget is in
    the way, but the rules are."""
    used = Counter(name for evictable in on_node for name in evictable.budgets)
    short = [name for name, count in used.items() if budgets.get(name, 0) < count]
    return min(short, key=lambda name: (budgets.get(name, 0) - used[name], name), default="")


class _Attempt:
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
