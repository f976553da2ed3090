"""Which of the fitting nodes a request prefers: those without taints that repel it, then those it asked for.

`decide` calls it for requests that have preferences and in clusters with nodes that repel. The preference
decides first: the strategy chooses among the nodes that are preferred most.
"""

from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, where
from gpu_orchestrator.core.filters.nodes import term_holds, tolerates
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.node import SOFT_EFFECT, Taint
from gpu_orchestrator.core.request import Shape, Toleration

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


def most_preferred(scores: Floats, shape: Shape, cluster: "Cluster") -> Floats:
    """Return the scores of the most preferred among the nodes that fit; all others do not fit any longer."""
    rows = where(np.isfinite(scores))
    if not len(rows):
        return scores
    best = _most(rows, shape, cluster.inventory)
    if best.all():
        return scores
    left = np.full(len(scores), -np.inf)
    left[rows[best]] = scores[rows[best]]
    return left


def _most(rows: Ints, shape: Shape, inventory: Inventory) -> Bools:
    """Fewer repelling taints count before any number of preferred terms."""
    liking = np.zeros(len(rows))
    for weight, term in shape.preferred:
        liking += weight * term_holds(term, inventory, rows)
    liking /= 1 + sum(weight for weight, _ in shape.preferred)
    if inventory.has_soft:
        liking -= _repelling(rows, shape.tolerations, inventory)
    best: Bools = liking == liking.max()
    return best


def _repelling(rows: Ints, tolerations: tuple[Toleration, ...], inventory: Inventory) -> Ints:
    """Count the taints of each node that would rather not have the request. Checked once per distinct set of
    taints."""
    sets, which = np.unique(inventory.taints[rows], return_inverse=True)
    counts = [_intolerable(inventory.names.values[number] or (), tolerations) for number in sets]
    counted: Ints = np.array(counts, np.int64)[which]
    return counted


def _intolerable(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> int:
    soft = (taint for taint in taints if taint.effect == SOFT_EFFECT)
    return sum(not any(tolerates(each, taint) for each in tolerations) for taint in soft)
