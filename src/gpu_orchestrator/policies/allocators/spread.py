"""Choose devices far from each other: as many islands and NUMA nodes as possible, the emptiest first.

A bandwidth rule comes first.
"""

from collections import Counter

from gpu_orchestrator.core.policy import Choice
from gpu_orchestrator.core.topology import first_set


def spread(choice: Choice) -> tuple[int, ...]:
    order = _farthest_first(choice)
    return first_set(choice.topology, order, choice.gpus, choice.floor_gbps) or order[: choice.gpus]


def _farthest_first(choice: Choice) -> tuple[int, ...]:
    """Order devices: each next one from where the fewest were taken so far, then the emptiest, then the
    lowest."""
    islands, numa = choice.topology.islands, choice.topology.numa
    taken: Counter[tuple[str, int]] = Counter()
    order: list[int] = []
    rest = list(choice.positions)

    def rank(at: int) -> tuple[int, tuple[int, int], int]:
        return taken["island", islands[at]] + taken["numa", numa[at]], _used(choice, at), at

    while rest:
        order.append(min(rest, key=rank))
        rest.remove(order[-1])
        taken.update([("island", islands[order[-1]]), ("numa", numa[order[-1]])])
    return tuple(order)


def _used(choice: Choice, position: int) -> tuple[int, int]:
    milli, mib = choice.room[position] if choice.room else (0, 0)
    return -milli, -mib
