"""Filters on what a node is: ready, open, tolerated, with the requested labels and fabric."""

from collections import Counter
from collections.abc import Iterator
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Ints
from gpu_orchestrator.core.filters.base import Filter
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.node import SOFT_EFFECT, Taint
from gpu_orchestrator.core.request import MOST_COMPARED, Expression, Fabric, Shape, Term, Toleration

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


def for_shape(shape: Shape) -> Iterator[Filter]:
    yield Ready()
    yield Schedulable()
    yield Tolerated(shape.tolerations)
    if shape.within:
        yield Within(shape.within)
    if shape.labels:
        yield Labelled(shape.labels)
    if shape.affinity:
        yield Affine(shape.affinity)
    if shape.reach:
        yield Reaching(shape.reach)
    if shape.fabric != Fabric():
        yield Wired(shape.fabric)
    if shape.gpus:
        yield Known()


def openness(shape: Shape) -> Iterator[Filter]:
    """Yield the filter on barred nodes. It comes after all others on facts: a node that can never take the
    request is counted for that, and not for a reason that may pass."""
    if shape.gpus:
        yield Open()


SHOWN = 1024
"""Characters of a selector that a reason shows."""
MOST_GROUPS = 4
"""If nodes lack different labels in more ways than this, the reason names the whole selector."""


class Ready(Filter):
    reason = "not ready"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return cluster.inventory.ready[rows]


class Schedulable(Filter):
    reason = "are cordoned"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return cluster.inventory.schedulable[rows]


class Open(Filter):
    """No reason bars the node's devices; `Node.barred` holds the reason."""

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        passed: Bools = cluster.inventory.barred[rows] == 0
        return passed

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        inventory = cluster.inventory
        return Counter(inventory.names.values[at] for at in inventory.barred[rows])


class Known(Open):
    """The node has devices, or no reason why none is known. Otherwise it would be counted as a node without
    GPUs."""

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        passed: Bools = super().passes(cluster, rows) | (cluster.inventory.gpus[rows] > 0)
        return passed


class Tolerated(Filter):
    """Every NoSchedule and NoExecute taint is tolerated. Checked once per distinct set of taints."""

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        self.tolerations = tolerations

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        taints = cluster.inventory.taints[rows]
        passed = np.ones(len(rows), np.bool_)
        if taints.any():
            for at in np.unique(taints[taints > 0]):
                if self._unbearable(cluster.inventory.names.values[at]):
                    passed[taints == at] = False
        return passed

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        inventory = cluster.inventory
        sets = Counter(inventory.names.values[at] for at in inventory.taints[rows])
        counted: Counter[str] = Counter()
        for taints, count in sets.items():
            counted[f"have the taint {self._unbearable(taints)}"] += count
        return counted

    def _unbearable(self, taints: tuple[Taint, ...]) -> Taint | None:
        hard = (taint for taint in taints if taint.effect != SOFT_EFFECT)
        return next((t for t in hard if not any(tolerates(each, t) for each in self.tolerations)), None)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key != taint.key:
        return not toleration.key and toleration.operator == "Exists"
    return toleration.operator == "Exists" or toleration.value == taint.value


class Within(Filter):
    """The node is in the domain that the other members of the gang are given."""

    def __init__(self, label: tuple[str, str]) -> None:
        self.label = label
        self.reason = f"are in another {label[0]}"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return _has(self.label, cluster.inventory, rows)


class Labelled(Filter):
    """Every label has the requested value. The reason names those that have not."""

    lasting = True

    def __init__(self, labels: tuple[tuple[str, str], ...]) -> None:
        self.labels = labels

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        passed = np.ones(len(rows), np.bool_)
        for label in self.labels:
            passed &= _has(label, cluster.inventory, rows)
        return passed

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        missing = [~_has(label, cluster.inventory, rows) for label in self.labels]
        texts = [f"{key}={value}" for key, value in self.labels]
        counted: Counter[str] = Counter()
        groups = Counter(zip(*(column.tolist() for column in missing), strict=True))
        if len(groups) > MOST_GROUPS:
            groups = Counter({(True,) * len(texts): len(rows)})
        for lacks, count in groups.items():
            text = ",".join(compress(texts, lacks))
            counted[f"do not match the selector {text if len(text) <= SHOWN else f'{text[:SHOWN]}…'}"] += (
                count
            )
        return counted


def _has(label: tuple[str, str], inventory: Inventory, rows: Ints) -> Bools:
    key, value = label
    has: Bools = inventory.label_at(key, rows) == inventory.names.find(value)
    return has


class Affine(Filter):
    """Required node affinity: any one term, all conditions of it."""

    lasting = True
    reason = "do not match the node affinity"

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self.terms = terms

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        passed = np.zeros(len(rows), np.bool_)
        for term in self.terms:
            if term.labels or term.fields:
                passed |= term_holds(term, cluster.inventory, rows)
        return passed


class Reaching(Filter):
    """The node reaches every volume. Each has terms of its own: together they would multiply."""

    lasting = True
    reason = "cannot reach the pod's volumes"

    def __init__(self, reach: tuple[tuple[Term, ...], ...]) -> None:
        self.volumes = tuple(map(Affine, reach))

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        passed = np.ones(len(rows), np.bool_)
        for each in self.volumes:
            passed &= each.passes(cluster, rows)
        return passed


def term_holds(term: Term, inventory: Inventory, rows: Ints) -> Bools:
    """Return for each row whether all conditions of the term hold."""
    passed = np.ones(len(rows), np.bool_)
    for expression in term.labels:
        passed &= _label_holds(expression, inventory, rows)
    for expression in term.fields:
        passed &= _name_holds(expression, inventory, rows)
    return passed


def _label_holds(expression: Expression, inventory: Inventory, rows: Ints) -> Bools:
    values = inventory.label_at(expression.key, rows)
    match expression.operator:
        case "Exists":
            held: Bools = values > 0
        case "DoesNotExist":
            held = values == 0
        case "In" | "NotIn":
            wanted = [inventory.names.find(value) for value in expression.values]
            held = np.isin(values, wanted, invert=expression.operator == "NotIn")
        case "Gt" | "Lt":
            held = _compared(expression, inventory, rows)
    return held


def _compared(expression: Expression, inventory: Inventory, rows: Ints) -> Bools:
    """Compare 64-bit integers only, as Kubernetes does; any other value does not match."""
    try:
        bound = int(expression.values[0])
    except (IndexError, ValueError):
        return np.zeros(len(rows), np.bool_)
    if abs(bound) > MOST_COMPARED:
        return np.zeros(len(rows), np.bool_)
    numbers = inventory.number_at(expression.key, rows)
    compared = numbers > bound if expression.operator == "Gt" else numbers < bound
    held: Bools = compared & (numbers == np.floor(numbers))
    return held


def _name_holds(expression: Expression, inventory: Inventory, rows: Ints) -> Bools:
    """`metadata.name` is the only field; any other matches nothing."""
    named = np.zeros(inventory.size, np.bool_)
    if expression.key == "metadata.name":
        named[[inventory.row_of[name] for name in expression.values if name in inventory.row_of]] = True
    held: Bools = named[rows]
    return ~held if expression.operator == "NotIn" and expression.key == "metadata.name" else held


class Wired(Filter):
    lasting = True

    def __init__(self, fabric: Fabric) -> None:
        self.ports = max(fabric.min_ports, 1 if fabric.rdma else 0)
        self.cufile = fabric.cufile

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        passed: Bools = cluster.inventory.rdma_ports[rows] >= self.ports
        return passed & cluster.inventory.cufile[rows] if self.cufile else passed

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        few = cluster.inventory.rdma_ports[rows] < self.ports
        port = "have no RDMA port" if self.ports == 1 else f"have fewer than {self.ports} RDMA ports"
        counted = {port: int(few.sum()), "have no cuFile storage": int((~few).sum())}
        return {text: count for text, count in counted.items() if count}
