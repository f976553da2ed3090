"""Which loaded models to move from workers with too much to workers with room. Pure: a picture of the workers
in, moves with their reasons out.

A move pays by how much it evens out two workers: the squares of what weighs on both, before and after.
Between a full worker and an empty twin that is positive; between two that are alike, full or not, it is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

Strategy = Literal["memory_optimized", "load", "models"]
MOST_MOVES = 10
MUCH_MEMORY = 0.8
OVER_AVERAGE = 0.2
"""A worker with more than this part of its memory held by models and tasks, or with a load this much
above the average, has too much."""
WEIGHTS: dict[Strategy, tuple[float, float, float]] = {
    "memory_optimized": (0.8, 0.1, 0.1),
    "load": (0.1, 0.8, 0.1),
    "models": (0.1, 0.1, 0.8),
}
"""How much memory, load and number of models weigh."""
LOOKED_AT = 50
"""Workers with too much that are looked at for one move: of ten thousand, many are alike."""
LEAST_BENEFIT = 0.01
"""A move that evens out less is not worth a load."""


@dataclass(frozen=True, slots=True)
class LoadedCopy:
    """A copy on a worker: `mib` on each of its `devices`. `uses` counts its tasks, older ones less."""

    model: str
    handler: str
    mib: int
    devices: tuple[int, ...]
    load_s: float = 0.0
    uses: float = 0.0
    busy: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker. `free_mib` is what each device can still take, `total_mib` what all can. `load` is the part
    of its tasks that it has. `handlers` are the types of models that it can load, at most `most_models`."""

    name: str
    total_mib: int
    free_mib: tuple[int, ...]
    load: float = 0.0
    copies: tuple[LoadedCopy, ...] = ()
    handlers: frozenset[str] = frozenset()
    most_models: int = 5
    pool: str = ""
    takes_tasks: bool = True

    @property
    def memory(self) -> float:
        return 1 - sum(self.free_mib) / self.total_mib if self.total_mib else 0.0

    def weight(self, strategy: Strategy) -> float:
        of_memory, of_load, of_models = WEIGHTS[strategy]
        models = len(self.copies) / max(self.most_models, 1)
        return of_memory * self.memory + of_load * self.load + of_models * models


@dataclass(frozen=True, slots=True)
class Move:
    copy: LoadedCopy
    source: str
    target: str
    benefit: float
    reason: str


def plan(holders: Sequence[Holder], strategy: Strategy, *, force: bool = False) -> list[Move]:
    """Return the moves, the one that pays most first; at most `MOST_MOVES`. Without `force` copies that a
    task uses, or that are pinned, stay."""
    now = {each.name: each for each in holders}
    moves: list[Move] = []
    while len(moves) < MOST_MOVES and (best := _best(list(now.values()), strategy, moves, force=force)):
        moves.append(best)
        now[best.source] = _without(now[best.source], best.copy)
        now[best.target] = _with(now[best.target], best.copy, now[best.source])
    return moves


def _best(holders: list[Holder], strategy: Strategy, done: list[Move], *, force: bool) -> Move | None:
    average = sum(each.load for each in holders) / len(holders) if holders else 0.0
    mean = sum(len(each.copies) for each in holders) / len(holders) if holders else 0.0
    over = {each.name: why for each in holders if (why := too_much(each, average, mean, strategy))}
    under = sorted(
        (each for each in holders if each.name not in over and each.takes_tasks),
        key=lambda each: each.weight(strategy),
    )
    heaviest = sorted(
        (each for each in holders if each.name in over), key=lambda each: -each.weight(strategy)
    )
    moved = {(each.copy.model, each.target) for each in done}
    found = [
        _move(source, target, copy, strategy, over[source.name])
        for source in heaviest[:LOOKED_AT]
        for copy in source.copies
        if (force or not (copy.busy or copy.pinned)) and (copy.model, source.name) not in moved
        for target in islice((each for each in under if has_room(each, source, copy)), 1)  # it pays most
    ]
    return min((each for each in found if each.benefit > LEAST_BENEFIT), key=_rank, default=None)


def _rank(move: Move) -> tuple[float, float, str, str]:
    """Of moves that pay alike, take the one whose load is shortest."""
    return -round(move.benefit, 6), move.copy.load_s, move.copy.model, move.target


def too_much(worker: Holder, average: float, mean: float, strategy: Strategy) -> str:
    """Return why a worker has too much; empty if it has not. `average` is the load of all, `mean` how many
    models they have."""
    if worker.memory > MUCH_MEMORY:
        return f"{worker.memory:.0%} of its memory is held, more than {MUCH_MEMORY:.0%}"
    if worker.load > average + OVER_AVERAGE:
        return f"its load is {worker.load:.2f}, the average {average:.2f}"
    if strategy == "models" and len(worker.copies) > mean + 1:
        return f"it has {len(worker.copies)} models, the average is {mean:.1f}"
    return ""


def has_room(target: Holder, source: Holder, copy: LoadedCopy) -> bool:
    """Return whether a copy could be loaded there beside what is there, without evicting anything."""
    return (
        copy.handler in target.handlers
        and target.pool == source.pool
        and len(target.copies) < target.most_models
        and all(each.model != copy.model for each in target.copies)
        and sum(free >= copy.mib for free in target.free_mib) >= len(copy.devices)
    )


def _move(source: Holder, target: Holder, copy: LoadedCopy, strategy: Strategy, why: str) -> Move:
    less, more = _without(source, copy), _with(target, copy, source)
    before = source.weight(strategy) ** 2 + target.weight(strategy) ** 2
    after = less.weight(strategy) ** 2 + more.weight(strategy) ** 2
    return Move(
        copy,
        source.name,
        target.name,
        before - after,
        f"{source.name}: {why}; {target.name} has {target.memory:.0%} of its memory held, a load of "
        f"{target.load:.2f} and {len(target.copies)} models",
    )


def _part_of_load(worker: Holder, copy: LoadedCopy) -> float:
    """Return how much of a worker's load goes with a copy: its part of the uses of all."""
    uses = sum(each.uses for each in worker.copies)
    return worker.load * copy.uses / uses if uses else 0.0


def _without(worker: Holder, copy: LoadedCopy) -> Holder:
    free = tuple(mib + copy.mib * (at in copy.devices) for at, mib in enumerate(worker.free_mib))
    load = worker.load - _part_of_load(worker, copy)
    return replace(
        worker, free_mib=free, load=load, copies=tuple(each for each in worker.copies if each != copy)
    )


def _with(worker: Holder, copy: LoadedCopy, source: Holder) -> Holder:
    """Return the worker with a copy on those of its devices that have most room."""
    order = sorted(range(len(worker.free_mib)), key=lambda at: -worker.free_mib[at])
    chosen = tuple(sorted(order[: len(copy.devices)]))
    free = tuple(mib - copy.mib * (at in chosen) for at, mib in enumerate(worker.free_mib))
    load = min(worker.load + (_part_of_load(source, copy) if copy in source.copies else 0.0), 1.0)
    return replace(worker, free_mib=free, load=load, copies=(*worker.copies, replace(copy, devices=chosen)))
