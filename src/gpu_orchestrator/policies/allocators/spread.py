"""Devices far from each other: from as many islands and NUMA nodes as possible, the emptiest devices first.

With a bandwidth rule, as far as the rule can be kept.
"""

from gpu_orchestrator.core.policy import Choice
from gpu_orchestrator.core.topology import first_set


def spread(choice: Choice) -> tuple[int, ...]:
    order = _one_of_each_in_turn(choice)
    return first_set(choice.topology, order, choice.gpus, choice.floor_gbps) or order[: choice.gpus]


def _one_of_each_in_turn(choice: Choice) -> tuple[int, ...]:
    """Positions such that each prefix touches as many places as it can."""
    places: dict[tuple[int, int], int] = {}
    turns = []
    for position in sorted(choice.positions, key=lambda at: (_used(choice, at), at)):
        place = (choice.topology.islands[position], choice.topology.numa[position])
        places[place] = places.get(place, 0) + 1
        turns.append((places[place], _used(choice, position), position))
    return tuple(position for _, _, position in sorted(turns))


def _used(choice: Choice, position: int) -> tuple[int, int]:
    milli, mib = choice.room[position] if choice.room else (0, 0)
    return -milli, -mib
