"""How a node's status shows `gpu.scheduling/milligpu`. Pure.

The node's agent writes it; where no live agent is, the scheduler does. Both use this rule, so that a node
which changes from one to the other is not written to for that.
"""

from gpu_orchestrator.api import names, quantity
from gpu_orchestrator.api.kubernetes import Node
from gpu_orchestrator.api.wire import Json


def status_patch(node: Node, milligpu: int | None) -> Json | None:
    """Return the patch with which the node's status shows this number in `capacity` and in `allocatable`, or
    without it (None); None if it does already."""
    wanted = None if milligpu is None else str(milligpu)
    shown = {"capacity": node.status.capacity, "allocatable": node.status.allocatable}
    changed = {
        field: {names.MILLIGPU: wanted}
        for field, amounts in shown.items()
        if _number(amounts.get(names.MILLIGPU)) != milligpu
    }
    return {"status": changed} if changed else None


def _number(text: str | None) -> int | None:
    """Return the number; -1, which no node has, for text that is not one."""
    try:
        return None if text is None else quantity.whole(text)
    except quantity.BadQuantity:
        return -1
