"""What is declared of a queue, and what can be wrong with that. Amounts are milli-GPUs by model; `*` counts
the GPUs of all models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Literal

from gpu_orchestrator.core.limits import MOST_AMOUNT

ALL = "*"
MOST_WEIGHT = 1_000_000.0
Reclaim = Literal["never", "lower", "any"]
Within = Literal["never", "lower"]


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """`guaranteed` is had whatever others use, `limit` never exceeded. Beyond what is guaranteed a queue
    that is `borrowing` uses what others leave. `reclaim` says whom it may evict of queues that borrow to
    have what it is guaranteed, `within` whom of its own."""

    name: str
    parent: str = ""
    weight: float = 1.0
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)
    limit: Mapping[str, int] = field(default_factory=dict, hash=False)
    borrowing: bool = True
    reclaim: Reclaim = "never"
    within: Within = "never"

    @property
    def problem(self) -> str:
        """What of this makes no sense by itself; empty if nothing."""
        if not (isfinite(self.weight) and 0 < self.weight <= MOST_WEIGHT):
            return f"has the weight {self.weight:g}; give one above 0 and up to {MOST_WEIGHT:g}"
        for what, amounts in (("guaranteed", self.guaranteed), ("limit", self.limit)):
            for model, milli in amounts.items():
                if not 0 <= milli <= MOST_AMOUNT:
                    return f"has {milli} milli-GPUs of {model} as {what}; give 0 to {MOST_AMOUNT}"
        return ""


@dataclass(frozen=True, slots=True)
class Budget:
    """`total` of all models together, `by` some models, and `rest` of each other one."""

    total: float = inf
    by: Mapping[str, float] = field(default_factory=dict, hash=False)
    rest: float = inf

    def of(self, model: str) -> float:
        return self.by.get(model, self.rest)

    @property
    def has_models(self) -> bool:
        return bool(self.by) or self.rest < self.total


def limit(amounts: Mapping[str, int]) -> Budget:
    """What is not named is not limited."""
    return Budget(amounts.get(ALL, inf), {name: each for name, each in amounts.items() if name != ALL})


def guarantee(amounts: Mapping[str, int]) -> Budget:
    """Of `*`, each model is guaranteed that is not named itself; without it, those named and no others."""
    by = {name: float(each) for name, each in amounts.items() if name != ALL}
    rest = float(amounts.get(ALL, 0))
    return Budget(float(amounts.get(ALL, sum(by.values()))), by, rest)


def least(one: Budget, other: Budget) -> Budget:
    """What is within both."""
    by = {name: min(one.of(name), other.of(name)) for name in {*one.by, *other.by}}
    return Budget(min(one.total, other.total), by, min(one.rest, other.rest))


def most(one: Budget, other: Budget) -> Budget:
    """What is within at least one of both."""
    by = {name: max(one.of(name), other.of(name)) for name in {*one.by, *other.by}}
    return Budget(max(one.total, other.total), by, max(one.rest, other.rest))


def together(one: Budget, other: Budget) -> Budget:
    """What two queues have together."""
    by = {name: one.of(name) + other.of(name) for name in {*one.by, *other.by}}
    return Budget(one.total + other.total, by, one.rest + other.rest)
