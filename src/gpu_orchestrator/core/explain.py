"""Why nothing fits: nodes counted by reason, the node that lacks least, and whether waiting can help.

Computed from the standing that refused, and kept with it until something changes.
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.answer import Miss, Refusal
from gpu_orchestrator.core.columns import Bools, Floats, Ints, all_in_row, count_in_row, where
from gpu_orchestrator.core.filters import Filter, devices, room
from gpu_orchestrator.core.standing import GONE, Standing
from gpu_orchestrator.core.topology import best_link

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


def refusal(standing: Standing, cluster: "Cluster") -> Refusal:
    if standing.refusal is None:
        standing.refusal = Refusal(
            nodes=len(cluster),
            reasons=_counted(standing, cluster),
            nearest=_nearest(standing, cluster),
            never=_never(standing, cluster),
        )
    return standing.refusal


def _counted(standing: Standing, cluster: "Cluster") -> tuple[tuple[str, int], ...]:
    counted: Counter[str] = Counter()
    for number, each in enumerate(standing.filters, 1):
        rows = where(standing.codes == number)
        if len(rows):
            counted.update(each.reasons(cluster, rows))
    return tuple(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _nearest(standing: Standing, cluster: "Cluster") -> Miss | None:
    """Of the nodes that fail only for lack of room, return the one that lacks least; if there is none, the
    first of those that fail the fewest filters."""
    row = _closest_row(standing, cluster)
    node = None if row is None else cluster.inventory.nodes[row]
    if row is None or node is None:
        return None
    only = np.array([row])
    return Miss(
        node.name, tuple(f.lack(cluster, row) for f in standing.filters if not f.passes(cluster, only)[0])
    )


def _closest_row(standing: Standing, cluster: "Cluster") -> int | None:
    full = where(standing.fact_codes == 0)
    if len(full):
        return int(full[_shortage(standing, cluster, full).argmin()])
    rows = where(standing.codes != GONE)
    if not len(rows):
        return None
    failed = sum(~each.passes(cluster, rows) for each in standing.filters).astype(float)  # type: ignore[union-attr]
    return int(rows[failed.argmin()])


def _shortage(standing: Standing, cluster: "Cluster", rows: Ints) -> Floats:
    """Return what is missing, each kind as a part of what was requested: 0 would fit, 1 has nothing of one
    kind."""
    missing = np.zeros(len(rows))
    for each in standing.filters:
        match each:
            case devices.FreeDevices():
                missing += np.maximum(each.gpus - each.kind.free(cluster, rows).sum(axis=1), 0) / each.gpus
            case room.Enough():
                short = np.maximum(each.amounts - np.maximum(each.free(cluster, rows), 0), 0)
                missing += (short / each.amounts).sum(axis=1)
            case _ if not each.fact:
                missing += ~each.passes(cluster, rows)
    return missing


def _never(standing: Standing, cluster: "Cluster") -> bool:
    """Return True if no node would take the request even if it were empty, ready and healthy. Such facts
    change only when a node is observed again, so the answer is kept until then."""
    if standing.never is None or standing.never[0] != cluster.observed.mark:
        rows = where(standing.codes != GONE)
        for each in standing.filters:
            rows = rows[_passes_when_empty(each, cluster, rows)]
        standing.never = cluster.observed.mark, not len(rows)
    return standing.never[1]


def _passes_when_empty(each: Filter, cluster: "Cluster", rows: Ints) -> Bools:
    inventory = cluster.inventory
    match each:
        case devices.FreeDevices():
            enough: Bools = count_in_row(_fit_for_use(each.kind, cluster, rows)) >= each.gpus
            return enough
        case devices.Linked():
            masks = devices.masks_of(_fit_for_use(each.kind, cluster, rows))
            layouts = [inventory.names.values[at] for at in inventory.topology[rows]]
            links = [best_link(t, mask, each.gpus) for t, mask in zip(layouts, masks, strict=True)]
            return np.array(links, float) >= each.gbps
        case room.Enough():
            return all_in_row(each.capacity(inventory, rows) >= each.amounts)
        case _:
            return each.passes(cluster, rows) if each.lasting else np.ones(len(rows), np.bool_)


def _fit_for_use(kind: devices.Kind, cluster: "Cluster", rows: Ints) -> Bools:
    """Return the devices that could be given together if all were free and healthy."""
    return kind.of_one_vendor(cluster.inventory, rows, kind.matching(cluster.inventory, rows))
