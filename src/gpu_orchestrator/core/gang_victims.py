"""Choose what must go so that a gang fits: the fewest pods, and of equally few sets the one that loses least.

As `node_victims.py` does for one request, but what goes may be on many nodes. Of a few that may go every set
is tried. Of many, members get nodes one after the other, each where the cheapest must go, and what was not
needed in the end stays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import where
from gpu_orchestrator.core.decide import decide, decide_among
from gpu_orchestrator.core.gang import (
    Gang,
    GangRefusal,
    PolicyOf,
    Together,
    confined,
    decide_gang,
    domains,
    hardest_first,
    may_fit,
)
from gpu_orchestrator.core.node_victims import Attempt as NodeAttempt
from gpu_orchestrator.core.node_victims import by_row, in_order
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.standing import FITS, current
from gpu_orchestrator.core.victim_search import cheaper, cheapest
from gpu_orchestrator.core.victims import (
    Budgets,
    Cost,
    Evictable,
    NoVictims,
    Rules,
    Steps,
    allows,
    forbidding,
    result_of,
)

MOST_CHECKS = 5_000
"""How often members are decided, and sets judged by numbers: about a second."""
NODE_CHECKS = 50_000
"""Sets that are tried on single nodes, for all members together."""
FEW = 12
"""Of so many that may go, every set is tried."""
MOST_NODES = 128
"""Nodes that are looked at closely, and two more for each member."""
MOST_DOMAINS = 8
"""Domains of nodes in which room is looked for, those with the least to spare."""
SEARCH_STEPS = 200
"""Nodes that the search for mixed members tries in one check."""

Gone = tuple[Evictable, ...]


@dataclass(frozen=True, slots=True)
class GangVictims:
    """`rooms` is where the members fit once these are gone."""

    rooms: Together
    evictables: Gone


@dataclass(frozen=True, slots=True)
class Asked:
    """The members that must start together, and how they are decided."""

    gang: Gang
    policy_of: PolicyOf
    rng: Rng


def choose(
    asked: Asked, cluster: Cluster, evictables: Sequence[Evictable], budgets: Budgets, rules: Rules
) -> GangVictims | NoVictims:
    """Return the cheapest set without which the gang fits, or why there is none. Changes nothing."""
    return result_of(choosing(asked, cluster, evictables, budgets, rules))


def choosing(
    asked: Asked, cluster: Cluster, evictables: Sequence[Evictable], budgets: Budgets, rules: Rules
) -> Steps[GangVictims | NoVictims]:
    """Do what `choose` does, step by step. The cluster may change meanwhile: the answer is for the state it
    had in the beginning."""
    lower = [each for each in evictables if rules.may_go(each)]
    attempt = _Attempt(asked, cluster.copy(), rules)
    helping = _helping(attempt, lower)
    yield
    if len(helping) <= FEW:
        found = yield from cheapest(attempt, helping, budgets, None)
    else:
        found = yield from _of_many(attempt, helping, budgets)
    if isinstance(found, tuple):
        attempt.fits_without(found)
        return GangVictims(attempt.rooms, found)
    nodes = {place.node for each in lower if found in each.budgets for place in each.placements}
    pods = sum(each.size for each in lower)
    return NoVictims(pods, ((found, len(nodes)),) if found else ())


def rooms_without(asked: Asked, cluster: Cluster, gone: Iterable[Evictable], rules: Rules) -> Together | None:
    """Return where the gang fits once these are gone; None if it does not."""
    attempt = _Attempt(asked, cluster.copy(), rules)
    return attempt.rooms if attempt.fits_without(gone) else None


def _helping(attempt: "_Attempt", lower: Sequence[Evictable]) -> list[Evictable]:
    """Return those that hold something on nodes that a member could use, or all if the queue has no room."""
    if attempt.rules.narrowed((), attempt.gang.members) is None:
        return list(lower)
    rows = set[int]()
    for shape, member in {each.shape: each for each in attempt.gang.members}.items():
        standing = current(shape, attempt.twin, attempt.asked.policy_of(member))
        rows.update(standing.eligible().tolist())
    twin = attempt.twin
    return [
        each
        for each in lower
        if any(place.node in twin and twin.row(place.node) in rows for place in each.placements)
    ]


def _of_many(attempt: "_Attempt", helping: list[Evictable], budgets: Budgets) -> Steps[Gone | str | None]:
    """Return a set none of which could stay; else the budget that forbids all sets, or None."""
    if not attempt.fits_without(helping):
        return None
    yield
    may_go = [each for each in helping if attempt.allows((each,), budgets)]
    best: tuple[Cost, Gone] | None = None
    empty = attempt.twin.copy()
    _release(may_go, empty)
    for gang in _in_domains(attempt.gang, empty):
        start = yield from _Greedy(attempt, gang, may_go, budgets, empty).find()
        if start is None or not attempt.fits_without(start):
            continue
        yield
        enough = yield from _without_needless(attempt, start)
        cost = attempt.rules.cost(enough)
        if best is None or cost < best[0]:
            best = cost, enough
    found = yield from cheaper(attempt, may_go, budgets, best[0] if best else (inf,))
    if found and attempt.checks >= len(found) * (1 + len(attempt.gang.members)):
        return (yield from _without_needless(attempt, found))  # not all sets of a size were tried
    return best[1] if best else forbidding(helping, budgets)


def _without_needless(attempt: "_Attempt", start: Gone) -> Steps[Gone]:
    """Return those of a set that is enough none of which could stay: all go, and are put back one by one, the
    dearest first, as far as the gang still fits."""
    twin, cost, gone = attempt.twin, attempt.rules.cost, list(start)
    _release(gone, twin)
    for each in sorted(start, key=lambda one: cost((one,)), reverse=True):
        yield
        _put_back((each,), twin)
        left = [other for other in gone if other is not each]
        if attempt.fits_now(left):
            gone = left
        else:
            _release((each,), twin)
    _put_back(gone, twin)
    return tuple(gone)


def _in_domains(gang: Gang, empty: Cluster) -> list[Gang]:
    """Return the gang as it is, or once for each domain in which it might fit when all have gone."""
    key = gang.terms.domain
    if not key:
        return [gang]
    values = [gang.among] if gang.among else domains(gang, key, empty)[:MOST_DOMAINS]
    return [
        replace(gang, members=tuple(confined(each, key, value) for each in gang.members)) for value in values
    ]


class _Attempt:
    """Whether the gang fits without some of those that may go. `rooms` is where, by the last check."""

    def __init__(self, asked: Asked, twin: Cluster, rules: Rules) -> None:
        self.asked, self.twin, self.rules = asked, twin, rules
        gang = asked.gang
        self.gang = replace(gang, members=gang.members[: gang.least])
        self.checks = MOST_CHECKS
        self.rooms: Together = ()

    @property
    def is_tired(self) -> bool:
        return self.checks <= 0

    def allows(self, chosen: Gone, budgets: Budgets) -> bool:
        return allows(chosen, budgets) and self.rules.allows(chosen)

    def frees_enough(self, evictables: Iterable[Evictable]) -> bool:
        return True  # `fits_without` begins with the numbers

    def fits_without(self, evictables: Iterable[Evictable]) -> bool:
        evictables = tuple(evictables)
        _release(evictables, self.twin)
        fits = self.fits_now(evictables)
        _put_back(evictables, self.twin)
        return fits

    def fits_now(self, gone: Sequence[Evictable]) -> bool:
        """Return True if the gang fits in the twin as it is, without these."""
        self.checks -= 1
        members = self.rules.narrowed(gone, self.gang.members)
        if members is None:
            return False
        gang = replace(self.gang, members=tuple(members))
        if not may_fit(gang, self.twin, {}):
            return False
        self.checks -= len(members)
        answer = decide_gang(gang, self.twin, self.asked.policy_of, self.asked.rng, [SEARCH_STEPS])
        if isinstance(answer, GangRefusal):
            return False
        self.rooms = answer
        return True


class _Beside:
    """Rules for more of those that may go, beside what goes already. Room in queues is judged in the end."""

    def __init__(self, rules: Rules, gone: list[Evictable]) -> None:
        self._rules, self._gone = rules, gone

    def may_go(self, evictable: Evictable) -> bool:
        return self._rules.may_go(evictable)

    def allows(self, chosen: Iterable[Evictable]) -> bool:
        return self._rules.allows((*self._gone, *chosen))

    def has_room(self, gone: Iterable[Evictable], models: frozenset[str]) -> bool:
        return True

    def narrowed(self, gone: Iterable[Evictable], members: Sequence[Request]) -> Sequence[Request] | None:
        return members

    def cost(self, chosen: Iterable[Evictable]) -> Cost:
        return self._rules.cost(chosen)


class _Greedy:
    """Gives the members nodes, one after the other: where they fit, else where the cheapest must go. `empty`
    is the cluster without all that may go."""

    def __init__(
        self, attempt: _Attempt, gang: Gang, may_go: list[Evictable], budgets: Budgets, empty: Cluster
    ) -> None:
        self._attempt, self._gang, self._may_go, self._empty = attempt, gang, may_go, empty
        self._world = attempt.twin.copy()
        self._gone: list[Evictable] = []
        self._left = Counter(dict(budgets))
        self._rules = _Beside(attempt.rules, self._gone)
        self._checks = [NODE_CHECKS]
        self._nodes: dict[Shape, _Nodes] = {}

    def find(self) -> Steps[Gone | None]:
        """Return a set that is enough, mostly; None if some member got no node."""
        for member in hardest_first(self._gang.members):
            yield
            policy = self._attempt.asked.policy_of(member)
            place = decide(member, self._world, policy, self._attempt.asked.rng)
            if isinstance(place, Placement):
                self._world.place(place)
                self._changed({place.node})
                continue
            found = yield from self._cheapest_for(member)
            if found is None:
                return None
            row, chosen = found
            self._let_go(chosen)
            made = decide_among([row], member, self._world, policy, self._attempt.asked.rng)
            if not isinstance(made, Placement):
                return None
            self._world.place(made)
            self._changed({made.node})
        return self._with_room()

    def _cheapest_for(self, member: Request) -> Steps[tuple[int, Gone] | None]:
        if member.shape not in self._nodes:
            self._nodes[member.shape] = _Nodes(self._on_nodes(member))
        nodes = self._nodes[member.shape]
        while (entry := nodes.pop()) is not None:
            row, chosen = entry
            if chosen is not None and self._may_go_too(chosen):
                return row, chosen
            yield
            found = yield from self._cheapest_on(member, row, nodes.on[row])
            if found is not None:
                nodes.push(row, found, self._rules.cost(found))
        return None

    def _may_go_too(self, chosen: Gone) -> bool:
        return allows(chosen, self._left) and self._rules.allows(chosen)

    def _on_nodes(self, member: Request) -> dict[int, list[Evictable]]:
        """Return nodes that this member could use if all there went, those where the fewest must go, with
        what may go there. On the others one stays, or room is kept for others."""
        standing = current(member.shape, self._empty, self._attempt.asked.policy_of(member))
        gone = {each.key for each in self._gone}
        left = [each for each in self._may_go if each.key not in gone]
        found = by_row(self._world, left, set(where(standing.codes == FITS).tolist()))
        most = MOST_NODES + 2 * len(self._gang.members)
        return dict(in_order(member, self._world, found)[:most])

    def _cheapest_on(self, member: Request, row: int, here: list[Evictable]) -> Steps[Gone | None]:
        gone = {each.key for each in self._gone}
        here = [each for each in here if each.key not in gone]
        if not here or self._checks[0] <= 0:
            return None
        policy = self._attempt.asked.policy_of(member)
        filters = current(member.shape, self._world, policy).filters
        attempt = NodeAttempt(member, filters, self._world, row, self._checks, self._rules)
        found = yield from cheapest(attempt, here, self._left, None)
        return found if isinstance(found, tuple) else None

    def _let_go(self, chosen: Gone) -> None:
        self._gone.extend(chosen)
        for each in chosen:
            self._left.subtract(each.budgets)
        self._changed(_release(chosen, self._world))

    def _changed(self, names: set[str]) -> None:
        """Look again at these nodes, and at those whose choice may not be allowed any longer."""
        rows = {self._world.row(name) for name in names}
        for nodes in self._nodes.values():
            nodes.changed(rows)

    def _with_room(self) -> Gone:
        """Return the same with as many more as the queue needs, the cheapest first."""
        gone, rules = self._gone, self._attempt.rules
        known = {each.key for each in gone}
        others = sorted(
            (each for each in self._may_go if each.key not in known), key=lambda each: rules.cost((each,))
        )
        for each in others:
            if rules.narrowed(gone, self._gang.members) is not None:
                break
            if self._may_go_too((each,)):
                gone.append(each)
                self._left.subtract(each.budgets)
        return tuple(gone)


class _Nodes:
    """The nodes for members of one shape, the one where the cheapest must go first. `on` is what may go
    there. What was found for a node counts until something changes there, or anything goes: budgets and
    queues may allow less then."""

    def __init__(self, on: dict[int, list[Evictable]]) -> None:
        self.on = on
        self._heap: list[tuple[Cost, int, int, Gone | None]] = []
        self._version = dict.fromkeys(on, 0)
        for row in on:
            heappush(self._heap, ((0.0,), row, 0, None))

    def pop(self) -> tuple[int, Gone | None] | None:
        """Return the first node with what must go there, None if that is to be found out; None at the end."""
        while self._heap:
            _, row, version, chosen = heappop(self._heap)
            if version == self._version[row]:
                return row, chosen
        return None

    def push(self, row: int, chosen: Gone, cost: Cost) -> None:
        heappush(self._heap, (cost, row, self._version[row], chosen))

    def changed(self, rows: Iterable[int]) -> None:
        for row in rows:
            if row in self._version:
                self._version[row] += 1
                heappush(self._heap, ((0.0,), row, self._version[row], None))


def _release(gone: Iterable[Evictable], cluster: Cluster) -> set[str]:
    """Return the nodes on which something was released."""
    return {cluster.release(place).node for place in _places(gone, cluster)}


def _put_back(gone: Iterable[Evictable], cluster: Cluster) -> None:
    for place in _places(gone, cluster):
        cluster.account(place)


def _places(gone: Iterable[Evictable], cluster: Cluster) -> Iterator[Placement]:
    return (place for each in gone for place in each.placements if place.node in cluster)
