"""What the nodes are, in columns: facts that change only when a node is observed again.

Kept by the cluster, read by filters and opinions. Free capacity is in `usage`, not here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gpu_orchestrator.core.columns import Bools, Floats, Ints, Names, Small, Table
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import SOFT_EFFECT, Node

MOST_LABELS = 256
FEW = 4
"""Up to this many rows are looked up in the nodes themselves, without a column for all nodes."""


class Inventory(Table):
    """`gpus` counts all devices, `whole` those that are not slices; `board_milli` is what the devices are of
    whole GPUs, in sum. `usable` devices are whole and healthy, `slices` are healthy slices."""

    alive: Bools
    ready: Bools
    schedulable: Bools
    barred: Small
    taints: Small
    models: Small
    topology: Small
    gpus: Small
    whole: Small
    board_milli: Small
    healthy: Small
    rdma_ports: Small
    cufile: Bools
    mixed: Bools
    soft: Bools
    usable: Bools
    slices: Bools
    profile: Small
    model: Small
    vendor: Small
    memory_mib: Small
    open_mib: Small
    capacity: Ints
    rows: ClassVar[dict[str, type]] = {
        "alive": np.bool_,
        "ready": np.bool_,
        "schedulable": np.bool_,
        "barred": np.int32,
        "taints": np.int32,
        "models": np.int32,
        "topology": np.int32,
        "gpus": np.int32,
        "whole": np.int32,
        "board_milli": np.int32,
        "healthy": np.int32,
        "rdma_ports": np.int32,
        "cufile": np.bool_,
        "mixed": np.bool_,
        "soft": np.bool_,
    }
    grids: ClassVar[dict[str, type]] = {
        "usable": np.bool_,
        "slices": np.bool_,
        "profile": np.int32,
        "model": np.int32,
        "vendor": np.int32,
        "memory_mib": np.int32,
        "open_mib": np.int32,
    }
    amounts: ClassVar[dict[str, type]] = {"capacity": np.int64}

    def __init__(self) -> None:
        super().__init__()
        self.names, self.kinds_of = Names(), Names()
        self.nodes: list[Node | None] = []
        self.row_of: dict[str, int] = {}
        self.left: list[int] = []
        self.has_mixed = self.has_soft = self.has_slices = False
        self.labels: dict[str, Small] = {}
        self.numbers: dict[str, Floats] = {}
        self.nodes_with: Counter[str] = Counter()
        """How many nodes have a label, by its key."""
        self.rows_read = 0
        """How many rows were looked at to make columns of labels."""

    def copy(self) -> "Inventory":
        twin = Inventory.__new__(Inventory)
        twin.copy_columns_of(self)
        twin.names, twin.kinds_of = self.names, self.kinds_of
        twin.nodes, twin.row_of, twin.left = self.nodes.copy(), self.row_of.copy(), self.left.copy()
        twin.has_mixed, twin.has_soft, twin.has_slices = self.has_mixed, self.has_soft, self.has_slices
        twin.labels = {key: column.copy() for key, column in self.labels.items()}
        twin.numbers = {key: column.copy() for key, column in self.numbers.items()}
        twin.nodes_with, twin.rows_read = self.nodes_with.copy(), self.rows_read
        return twin

    def put(self, node: Node) -> int:
        """Write a node's facts into its row, or into a new one; the columns may grow."""
        for name, _ in node.resources:
            self.kinds_of.number(name)
        row = self.row_of.get(node.name)
        if row is None:
            row = self._new_row(node.name)
        self.resize(0, len(node.devices), len(self.kinds_of))
        self._count_labels(self.nodes[row], node)
        self.nodes[row] = node
        self._write(row, node)
        return row

    def drop(self, name: str) -> int:
        row = self.row_of.pop(name)
        self._count_labels(self.nodes[row], None)
        self.nodes[row] = None
        self.left.append(row)
        self.alive[row] = self.mixed[row] = self.soft[row] = False
        self.has_mixed = self.has_mixed and bool(self.mixed.any())
        self.has_soft = self.has_soft and bool(self.soft.any())
        return row

    def kind(self, resource: str) -> int:
        """Return the column of a resource; 0, which stays empty, if no node offers it. A lookup adds no
        column, or requests for always new resources would fill the memory."""
        return self.kinds_of.numbers.get(resource, 0)

    def label(self, key: str) -> Small:
        """Return each node's value of one label, as a number; 0 where it has none. Computed on first use."""
        column = self.labels.get(key)
        if column is None:
            return self._make_label(key)
        if len(self.labels) >= MOST_LABELS:
            self.labels[key] = self.labels.pop(key)  # the first one is dropped next
        return column

    def label_at(self, key: str, rows: Ints) -> Small:
        """Return what `label` does, for some rows only."""
        if key not in self.labels and len(rows) <= FEW < len(self.row_of):
            nodes = (self.nodes[row] for row in rows.tolist())
            return np.array([self._label_number(node, key) for node in nodes], np.int32)
        return self.label(key)[rows]

    def number_at(self, key: str, rows: Ints) -> Floats:
        """Return the value of one label as a number, for some rows; NaN where it is missing or not a
        number."""
        if len(rows) <= FEW or key not in self.nodes_with:
            return self._as_numbers(self.label_at(key, rows))
        column = self.label(key)
        if key not in self.numbers:
            self.rows_read += len(self.row_of)
            self.numbers[key] = self._as_numbers(column)
        return self.numbers[key][rows]

    def node(self, name: str) -> Node:
        node = self.nodes[self.row_of[name]]
        assert node is not None  # noqa: S101 - rows with a name have a node
        return node

    def _make_label(self, key: str) -> Small:
        """A column is made and kept only if a node has the label. Otherwise requests for labels that somebody
        made up would push out those that are used."""
        column = np.zeros(self.size, np.int32)
        if key in self.nodes_with:
            self.rows_read += len(self.row_of)
            for row in self.row_of.values():
                column[row] = self._label_number(self.nodes[row], key)
            self._forget_a_label()
            self.labels[key] = column
        return column

    def _forget_a_label(self) -> None:
        """Drop the label column that was not used for longest; it can be computed again. Otherwise requests
        for always new labels would fill the memory."""
        if len(self.labels) >= MOST_LABELS:
            oldest = next(iter(self.labels))
            del self.labels[oldest]
            self.numbers.pop(oldest, None)

    def _new_row(self, name: str) -> int:
        if self.left:
            row = self.left.pop()
        else:
            row = len(self.nodes)
            self.nodes.append(None)
            if row >= self.size:
                self._make_room(max(16, 2 * self.size))
        self.row_of[name] = row
        return row

    def _make_room(self, size: int) -> None:
        self.resize(size, self.width, self.kinds)
        for key, column in self.labels.items():
            self.labels[key] = np.concatenate([column, np.zeros(size - len(column), np.int32)])
        self.numbers.clear()

    def _write(self, row: int, node: Node) -> None:
        number = self.names.number
        self.alive[row], self.ready[row], self.schedulable[row] = True, node.ready, node.schedulable
        self.barred[row] = number(node.barred) if node.barred else 0
        self.taints[row] = number(node.taints) if node.taints else 0
        self._write_soft(row, any(taint.effect == SOFT_EFFECT for taint in node.taints))
        self.topology[row] = number(node.topology)
        self.rdma_ports[row], self.cufile[row] = node.rdma_ports, node.cufile
        self.capacity[row] = 0
        for name, amount in node.resources:
            self.capacity[row, self.kind(name)] = amount
        for key, column in self.labels.items():
            column[row] = self._label_number(node, key)
        for key, numbers in self.numbers.items():
            numbers[row] = _as_number(self.names.values[self.labels[key][row]])
        self._write_devices(row, node)

    def _write_soft(self, row: int, is_soft: bool) -> None:
        if is_soft or self.soft.item(row):
            self.soft[row] = is_soft
            self.has_soft = bool(self.soft.any())

    def _write_devices(self, row: int, node: Node) -> None:
        number, devices, count = self.names.number, node.devices, len(node.devices)
        for column in (
            self.usable,
            self.slices,
            self.profile,
            self.model,
            self.vendor,
            self.memory_mib,
            self.open_mib,
        ):
            column[row] = 0
        self.whole[row] = sum(not device.profile for device in devices)
        self.board_milli[row] = sum(device.milli for device in devices)
        self.gpus[row], self.healthy[row] = count, sum(device.healthy for device in devices)
        self.models[row] = number("/".join(sorted({device.model for device in devices if device.model})))
        was_mixed = self.mixed.item(row)
        self.mixed[row] = len({device.vendor for device in devices}) > 1
        if was_mixed or self.mixed[row]:
            self.has_mixed = bool(self.mixed.any())
        if count:
            self.usable[row, :count] = [device.healthy and not device.profile for device in devices]
            if self.whole[row] < count:
                self._write_slices(row, devices)
            self.model[row, :count] = [number(device.model) for device in devices]
            self.vendor[row, :count] = [number(device.vendor) for device in devices]
            self.memory_mib[row, :count] = [device.memory_mib for device in devices]
            self.open_mib[row, :count] = [device.memory_mib - device.taken_mib for device in devices]

    def _write_slices(self, row: int, devices: Sequence[Device]) -> None:
        self.has_slices = True
        names, count = [device.profile for device in devices], len(devices)
        self.profile[row, :count] = [self.names.number(name) if name else 0 for name in names]
        self.slices[row, :count] = [device.healthy and bool(device.profile) for device in devices]

    def _label_number(self, node: Node | None, key: str) -> int:
        value = None if node is None else node.label(key)
        return 0 if value is None else self.names.number(value)

    def _as_numbers(self, values: Small) -> Floats:
        return np.array([_as_number(self.names.values[at]) for at in values.tolist()], np.float64)

    def _count_labels(self, old: Node | None, new: Node | None) -> None:
        """A node's labels change from those of `old` to those of `new`."""
        before, after = old.labels if old else (), new.labels if new else ()
        if before == after:
            return
        self.nodes_with.update(key for key, _ in after)
        for key, _ in before:
            self.nodes_with[key] -= 1
            if not self.nodes_with[key]:
                del self.nodes_with[key]


def _as_number(value: object) -> float:
    try:
        return float(value) if isinstance(value, str) else float("nan")
    except ValueError:
        return float("nan")
