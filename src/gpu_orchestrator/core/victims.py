"""What may go so that others fit: the nouns and the rules.

What ends together, a pod or a whole gang, is an `Evictable`. `Rules` say whom a request may evict: those of
strictly lower priority, or, of a request in a queue with quota, those that `core/reclaim.py` allows.
`core/node_victims.py` chooses them for a single request, `core/gang_victims.py` for a gang.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.request import Request

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


class Rules(Protocol):
    """Whom a request may evict."""

    def may_go(self, evictable: Evictable) -> bool: ...

    def allows(self, chosen: Iterable[Evictable]) -> bool:
        """Return True if all of these may go together; then a part of them may, too."""
        ...

    def has_room(self, gone: Iterable[Evictable], models: frozenset[str]) -> bool:
        """Return True if without these the request's queue has room for it, on one of these models."""
        ...

    def narrowed(self, gone: Iterable[Evictable], members: Sequence[Request]) -> Sequence[Request] | None:
        """Return these as they may start together without those that are gone, each on the models for which
        the queue has room; None if it has no room for all of them."""
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

    def narrowed(self, gone: Iterable[Evictable], members: Sequence[Request]) -> Sequence[Request] | None:
        return members

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


def result_of(steps: Steps[T]) -> T:
    """Do long work in one go, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
