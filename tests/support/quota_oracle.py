"""The budgets of queues once more, plainly: every figure is worked out from the start, for one model at a
time."""

from collections.abc import Iterable, Mapping
from math import inf

from gpu_orchestrator.core.queue_terms import ALL, QueueTerms

Declared = Mapping[str, QueueTerms]


def guaranteed(name: str, model: str, declared: Declared) -> float:
    terms = declared[name]
    own = terms.guaranteed
    mine = own.get(ALL, sum(own.values())) if model == ALL else own.get(model, own.get(ALL, 0))
    below = sum(guaranteed(each.name, model, declared) for each in declared.values() if each.parent == name)
    return min(max(mine, below), terms.limit.get(model, inf))


def most(name: str, model: str, declared: Declared) -> float:
    """Return what a queue may use at most."""
    terms = declared[name]
    limit = terms.limit.get(model, inf)
    return limit if terms.borrowing else min(limit, guaranteed(name, model, declared))


def path(name: str, declared: Declared) -> list[str] | None:
    """Return the queue and all above it; None if one of them does not exist."""
    found: list[str] = []
    while name:
        if name not in declared or name in found:
            return None
        found.append(name)
        name = declared[name].parent
    return found


def exceeded(
    queue: str, models: Iterable[str], used: Mapping[str, Mapping[str, int]], declared: Declared
) -> str:
    """Return which queue above this one, or itself, uses more than it may of these models or of all; empty if
    none. `used` is by the queue of each placement, and by model."""
    above = path(queue, declared)
    if above is None:
        return f"{queue} is not declared as it must be"
    for name in above:
        total: dict[str, int] = {ALL: 0}
        for each, amounts in used.items():
            if name in (path(each, declared) or ()):
                for model, milli in amounts.items():
                    total[model] = total.get(model, 0) + milli
                    total[ALL] += milli
        for model in (ALL, *models):
            milli = total.get(model, 0)
            if milli > most(name, model, declared):
                return f"{name} uses {milli} of {most(name, model, declared)} {model}"
    return ""
