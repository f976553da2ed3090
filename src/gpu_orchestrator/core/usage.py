"""What is taken of each node and by which key, in columns. A placement is added and removed exactly.

`held` keeps the placements of each row by key; a row's dict is replaced and never changed, so that copies can
share it. Stand-ins for GPUs whose ids are not known are chosen again with every change of their row, so what
is free depends on the holders, not on the order in which they were observed.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.columns import Floats, Ints, Small, Table, where
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.errors import Oversold
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_MIB, within


class Usage(Table):
    """`whole` counts healthy free GPUs; `spare_milli` sums what is free of the healthy ones, `slice_milli`
    what the healthy free slices are of whole GPUs; `gpu_load` is the part of the node's GPUs that is not
    free."""

    whole: Small
    spare_milli: Small
    slice_milli: Small
    gpu_load: Floats
    free_milli: Small
    free_mib: Small
    holders: Small
    free: Ints
    rows: ClassVar[dict[str, type]] = {
        "whole": np.int32,
        "spare_milli": np.int32,
        "slice_milli": np.int32,
        "gpu_load": np.float64,
    }
    grids: ClassVar[dict[str, type]] = {"free_milli": np.int32, "free_mib": np.int32, "holders": np.int32}
    amounts: ClassVar[dict[str, type]] = {"free": np.int64}

    def __init__(self) -> None:
        super().__init__()
        self.held: list[dict[str, Placement]] = []
        self._with_unnamed = set[int]()
        """Rows on which somebody holds GPUs whose ids are not known."""

    def copy(self) -> "Usage":
        twin = Usage.__new__(Usage)
        twin.copy_columns_of(self)
        twin.held, twin._with_unnamed = self.held.copy(), self._with_unnamed.copy()
        return twin

    def state(self, row: int) -> bytes:
        """Everything about a row that is in columns: if it is equal, equally much of everything is free."""
        grids = self.free_milli[row], self.free_mib[row], self.holders[row], self.free[row]
        return b"".join(column.tobytes() for column in grids)

    def follow(self, inventory: Inventory, row: int) -> None:
        """Count a row again after its node changed; what is held stays held."""
        self.resize(inventory.size, inventory.width, inventory.kinds)
        self.held.extend({} for _ in range(len(inventory.nodes) - len(self.held)))
        self.free_milli[row] = np.where(np.arange(self.width) < inventory.gpus[row], WHOLE, 0)
        self.free_mib[row] = inventory.open_mib[row]
        self.free[row] = 0
        self.free[row, : inventory.kinds] = inventory.capacity[row]
        self.holders[row] = 0
        self._sum(inventory, row)
        self._count_held(inventory, row)

    def drop(self, row: int) -> None:
        self.held[row] = {}
        self._with_unnamed.discard(row)

    def add(self, inventory: Inventory, row: int, placement: Placement) -> None:
        held = self._without_stand_ins(inventory, row)
        held[placement.key] = placement
        if placement.unnamed:
            self._with_unnamed.add(row)
        else:
            self._take(inventory, row, placement, 1)
        self._stand_in(inventory, row, held)

    def remove(self, inventory: Inventory, row: int, key: str) -> Placement:
        held = self._without_stand_ins(inventory, row)
        placement = held.pop(key)
        if not placement.unnamed:
            self._take(inventory, row, placement, -1)
        self._stand_in(inventory, row, held)
        return placement

    def check(self, inventory: Inventory, row: int, placement: Placement) -> None:
        """Raise unless the placement fits beside what is held."""
        position = _topology_positions(inventory, row)
        for device in placement.devices:
            if device not in position:
                raise Oversold(
                    f"{placement.key} was given device {device} of {placement.node}, which has no such device"
                )
            if not self._has_room(row, position[device], placement):
                raise Oversold(
                    f"{placement.key} was given device {device} of {placement.node}, which is taken"
                )
        for name, amount in placement.resources:
            if (free := self._free_of(row, inventory.kind(name))) < amount:
                raise Oversold(
                    f"{placement.key} takes {amount} {name} of {placement.node}, which has {free} free"
                )

    def _free_of(self, row: int, kind: int) -> int:
        """A copy may know resources for which this table has no column yet."""
        return self.free.item(row, kind) if kind < self.kinds else 0

    def _count_held(self, inventory: Inventory, row: int) -> None:
        """A node may report its devices only after pods that use them run there."""
        for placement in self.held[row].values():
            if not placement.unnamed:
                self._take(inventory, row, placement, 1)
        self._stand_in(inventory, row, self.held[row].copy())

    def _without_stand_ins(self, inventory: Inventory, row: int) -> dict[str, Placement]:
        """Return a copy of what is held, and reset the columns as if only placements with named devices held
        any."""
        held = self.held[row].copy()
        if row in self._with_unnamed:
            for placement in held.values():
                if placement.unnamed:
                    self._take(inventory, row, placement, -1)
        return held

    def _has_room(self, row: int, position: int, placement: Placement) -> bool:
        if placement.exclusive:
            return bool(self.holders[row, position] == 0)
        milli = not placement.milli or self.free_milli[row, position] >= placement.milli
        memory = not placement.memory_mib or self.free_mib[row, position] >= placement.memory_mib
        return bool(milli and memory)

    def _take(self, inventory: Inventory, row: int, placement: Placement, sign: int) -> None:
        position, spare, whole = _topology_positions(inventory, row), 0, 0
        milli = sign * (WHOLE if placement.exclusive else within(placement.milli, WHOLE))
        shared_mib = within(placement.memory_mib, MOST_MIB)
        for device in placement.devices:
            if (at := position.get(device)) is None:
                continue  # the node no longer reports the device; its holder counts again when it does
            mib = inventory.memory_mib.item(row, at) if placement.exclusive else shared_mib
            before, holders = self.free_milli.item(row, at), self.holders.item(row, at)
            self.free_milli[row, at] = before - milli
            self.free_mib[row, at] -= sign * mib
            self.holders[row, at] = holders + sign
            if inventory.usable.item(row, at):
                spare += max(before - milli, 0) - max(before, 0)
                whole += (holders + sign == 0) - (holders == 0)
            elif inventory.slices.item(row, at):
                freed = (holders + sign == 0) - (holders == 0)
                self.slice_milli[row] += freed * _slice_milli(inventory, row, at)
        for name, amount in placement.resources:
            # What no node offers has no column, or pods with invented resources would fill the memory.
            if 0 < (kind := inventory.kind(name)) < self.kinds:
                self.free[row, kind] -= sign * within(amount, MOST_AMOUNT)
        if placement.devices:
            self._set_sums(inventory, row, self.whole.item(row) + whole, self.spare_milli.item(row) + spare)

    def _sum(self, inventory: Inventory, row: int) -> None:
        """Count what is free of a row from its devices."""
        usable = inventory.usable[row]
        free = self.holders[row] == 0
        whole, slices = int(np.count_nonzero(usable & free)), where(inventory.slices[row] & free)
        self.slice_milli[row] = sum(_slice_milli(inventory, row, at) for at in slices.tolist())
        self._set_sums(inventory, row, whole, int(np.maximum(self.free_milli[row], 0) @ usable))

    def _set_sums(self, inventory: Inventory, row: int, whole: int, spare: int) -> None:
        milli = inventory.board_milli.item(row)
        self.whole[row], self.spare_milli[row] = whole, spare
        self.gpu_load[row] = 1.0 - (spare + self.slice_milli.item(row)) / milli if milli else 0.0

    def _stand_in(self, inventory: Inventory, row: int, held: dict[str, Placement]) -> None:
        """Record what is held, with stand-ins among the remaining devices for placements without named
        ones."""
        self.held[row] = held
        if row not in self._with_unnamed:
            return
        unnamed = sorted(key for key, placement in held.items() if placement.unnamed)
        for key in unnamed:
            held[key] = self._with_stand_ins(inventory, row, held[key])
            self._take(inventory, row, held[key], 1)
        if not unnamed:
            self._with_unnamed.discard(row)

    def _with_stand_ins(self, inventory: Inventory, row: int, placement: Placement) -> Placement:
        """Pick free devices first, healthy ones before all: a device plugin gives out no others. Then, if the
        node is oversold in reality, the least used."""

        def worst_last(item: tuple[int, int]) -> tuple[int, bool]:
            return self.holders.item(row, item[1]), not inventory.usable.item(row, item[1])

        ids = sorted(_topology_positions(inventory, row).items(), key=worst_last)
        return replace(placement, devices=tuple(device for device, _ in ids[: placement.unnamed]))


def _slice_milli(inventory: Inventory, row: int, position: int) -> int:
    node = inventory.nodes[row]
    return node.devices[position].milli if node else 0


def _topology_positions(inventory: Inventory, row: int) -> dict[int, int]:
    node = inventory.nodes[row]
    return node.topology.position if node else {}
