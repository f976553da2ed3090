"""Choose the requested ids, in that order; for those that are not free, the lowest other ids."""

from gpu_orchestrator.core.policy import Choice
from gpu_orchestrator.core.topology import first_set


def prefer_ids(choice: Choice) -> tuple[int, ...]:
    position = choice.topology.position
    wanted = [position[i] for i in dict.fromkeys(choice.prefer_ids) if i in position]
    wanted = [at for at in wanted if choice.free >> at & 1]
    order = (*wanted, *(at for at in choice.positions if at not in wanted))
    return first_set(choice.topology, order, choice.gpus, choice.floor_gbps) or order[: choice.gpus]
