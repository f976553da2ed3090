"""Why a node cannot take a request. Each filter checks many nodes at once and can name the reason.

`compile_filters` picks the filters that a shape needs, in the order in which they explain: facts about nodes
first (checked again only when a node is observed again), then free capacity, then pods of other nodes.
"""

from gpu_orchestrator.core.filters import devices, neighbours, nodes, room
from gpu_orchestrator.core.filters.base import Filter
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.request import Shape

__all__ = ["Filter", "compile_filters"]


def compile_filters(shape: Shape, inventory: Inventory) -> tuple[Filter, ...]:
    """Return the filters of a shape: facts first, free capacity after; within each, the plainest reason
    first."""
    facts: list[Filter] = [
        *nodes.for_shape(shape),
        *devices.facts_for(shape, inventory),
        *nodes.openness(shape),
    ]
    free = (*devices.free_for(shape, inventory), *room.for_shape(shape, inventory))
    return (*facts, *free, *neighbours.for_rules(shape.rules))
