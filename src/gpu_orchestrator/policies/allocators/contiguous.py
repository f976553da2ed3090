"""Choose devices with the fastest links to each other: best weakest link first, then adjacent ids, then low
ids."""

from math import inf

from gpu_orchestrator.core.policy import Choice
from gpu_orchestrator.core.topology import first_set


def contiguous(choice: Choice) -> tuple[int, ...]:
    free, count = choice.positions, choice.gpus
    for start, end in _narrowest_first(choice):
        if found := first_set(choice.topology, free[start:end], count, choice.best_gbps):
            return found
    return free[:count]


def _narrowest_first(choice: Choice) -> list[tuple[int, int]]:
    """Return stretches of the free devices that hold enough, those with the closest ids first."""
    ids, gpus = [choice.topology.ids[at] for at in choice.positions], choice.gpus
    longest = len(ids) if 0 < choice.best_gbps < inf else gpus  # where any will do, the shortest are enough
    stretches = [(a, a + n) for n in range(gpus, longest + 1) for a in range(len(ids) - n + 1)]
    return sorted(stretches, key=lambda each: (ids[each[1] - 1] - ids[each[0]], each))
