"""Whether a gang fits, found by trying every way: slow and simple, for small worlds."""

from collections.abc import Mapping, Sequence
from itertools import product

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import Shape
from tests.support import oracle

Held = Mapping[str, Sequence[Placement]]


def fits(gang: Gang, nodes: list[Node], held: Held) -> bool:
    """Try every way to give members to nodes, and none, if the gang may start without them."""
    choices = [*nodes, None] if gang.least < len(gang.members) else list(nodes)
    values = (
        {dict(node.labels).get(gang.terms.domain) for node in nodes} - {None} if gang.terms.domain else {None}
    )
    return any(
        _is_possible(gang, way, held)
        for value in values
        for way in product(
            [
                n
                for n in choices
                if n is None or not gang.terms.domain or dict(n.labels).get(gang.terms.domain) == value
            ],
            repeat=len(gang.members),
        )
    )


def _is_possible(gang: Gang, way: tuple[Node | None, ...], held: Held) -> bool:
    if sum(node is not None for node in way) < gang.least:
        return False
    on: dict[str, list[Shape]] = {}
    nodes = {node.name: node for node in way if node is not None}
    for member, node in zip(gang.members, way, strict=True):
        if node is not None:
            on.setdefault(node.name, []).append(member.shape)
    return all(_node_takes(nodes[name], shapes, list(held.get(name, ()))) for name, shapes in on.items())


def _node_takes(node: Node, shapes: list[Shape], before: list[Placement]) -> bool:
    def rest_fits(left: list[Shape], held: list[Placement]) -> bool:
        if not left:
            return True
        shape = left[0]
        if not oracle.fits(shape, node, held):
            return False
        sets = oracle.possible_sets(shape, node, held) if shape.gpus else [()]
        taken = (
            Placement(f"t{len(held)}", node.name, devices=each, resources=shape.resources) for each in sets
        )
        return any(rest_fits(left[1:], [*held, each]) for each in taken)

    return rest_fits(sorted(shapes, key=lambda each: -each.gpus), before)
