"""Look for the cheapest set of what may go, by a test whether all fits without it.

Used by `node_victims.py` and `gang_victims.py`, which differ in that test. Every set of a few is tried, in
order of cost; of many, all go and as many as possible are put back.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Protocol

from gpu_orchestrator.core.victims import Budgets, Cost, Evictable, Rules, Steps, forbidding

MOST_SETS = 5_000
"""Sets of one size that are sorted by their cost."""


class Attempt(Protocol):
    """Whether something fits without some of those that may go."""

    rules: Rules

    @property
    def is_tired(self) -> bool:
        """Return True if no more may be tried."""
        ...

    def allows(self, chosen: tuple[Evictable, ...], budgets: Budgets) -> bool: ...

    def frees_enough(self, evictables: Iterable[Evictable]) -> bool:
        """Return False if by the numbers it cannot fit without these alone."""
        ...

    def fits_without(self, evictables: Iterable[Evictable]) -> bool: ...


def cheapest(
    attempt: Attempt, may_end: list[Evictable], budgets: Budgets, best: Cost | None
) -> Steps[tuple[Evictable, ...] | str | None]:
    """Return the cheapest set on this node if it is cheaper than `best`; else the budget that forbids all
    sets, or None."""
    if not attempt.fits_without(may_end):
        return None
    may_go = [each for each in may_end if attempt.allows((each,), budgets)]
    if len(may_go) < len(may_end) and not attempt.fits_without(may_go):
        return forbidding(may_end, budgets)
    enough = irreducible(attempt, may_go)
    is_allowed, cost_of = attempt.allows(enough, budgets), attempt.rules.cost
    limit = cost_of(enough) if is_allowed else cost_of(may_go)
    if best is not None and best <= limit:
        return (yield from cheaper(attempt, may_go, budgets, best))
    found = yield from cheaper(attempt, may_go, budgets, limit if is_allowed else (limit[0] + 1,))
    if found:
        return irreducible(attempt, list(found))  # of many, not all sets were tried
    return enough if is_allowed else forbidding(may_go, budgets)


def irreducible(attempt: Attempt, evictables: list[Evictable]) -> tuple[Evictable, ...]:
    """Return a set none of which could stay: all are taken away, and as many as possible are put back, the
    dearest first."""
    gone = list(evictables)
    for evictable in sorted(evictables, key=lambda each: attempt.rules.cost((each,)), reverse=True):
        without = [each for each in gone if each is not evictable]
        if attempt.fits_without(without):
            gone = without
    return tuple(gone)


def cheaper(
    attempt: Attempt, may_end: list[Evictable], budgets: Budgets, limit: Cost
) -> Steps[tuple[Evictable, ...] | None]:
    """Try sets in order of their size; return the cheapest that costs less than the limit."""
    found: tuple[Evictable, ...] | None = None
    cost_of = attempt.rules.cost
    for size in range(1, len(may_end) + 1):
        sets = sorted(combinations(may_end, size), key=cost_of) if few(len(may_end), size) else []
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
    return ways <= MOST_SETS
