"""Choose devices that leave the rest most useful: the fullest shared devices, the smallest island that is
enough.

With a bandwidth rule the best weakest link comes first.
"""

from gpu_orchestrator.core.policy import Choice
from gpu_orchestrator.core.topology import first_set


def packed(choice: Choice) -> tuple[int, ...]:
    order = _fullest_first(choice) if choice.room else _smallest_island_first(choice)
    floor = choice.best_gbps if choice.asked_gbps else 0
    return first_set(choice.topology, order, choice.gpus, floor) or order[: choice.gpus]


def _fullest_first(choice: Choice) -> tuple[int, ...]:
    return tuple(sorted(choice.positions, key=lambda at: (*choice.room[at], at)))


def _smallest_island_first(choice: Choice) -> tuple[int, ...]:
    """Order islands: those with enough free devices first, the smallest of them first; then the others, the
    largest first, so as to touch few."""
    islands = choice.topology.islands
    size: dict[int, int] = {}
    for at in choice.positions:
        size[islands[at]] = size.get(islands[at], 0) + 1

    def rank(at: int) -> tuple[bool, int, int, int]:
        free = size[islands[at]]
        small = free < choice.gpus
        return small, -free if small else free, islands[at], at

    return tuple(sorted(choice.positions, key=rank))
