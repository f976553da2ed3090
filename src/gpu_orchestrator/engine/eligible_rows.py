"""Which nodes could take each parked shape by their facts, whatever is free on them: one bit per row and
slot.

A node that is observed again could take every shape until one is checked and found otherwise. So an event on
one node costs one line of bits, however many shapes are parked.
"""

import numpy as np
from numpy.typing import NDArray

from gpu_orchestrator.core.columns import Ints
from gpu_orchestrator.engine import slot_sets

ALL = 0xFF


class EligibleRows:
    """Slots are those of the wakeup index. A row that was never set could take every shape."""

    def __init__(self) -> None:
        self._bits: NDArray[np.uint8] = np.full((16, 2), ALL, np.uint8)

    def set(self, slot: int, rows: Ints, size: int) -> None:
        """Set the rows that could take the shape in this slot; `size` is how many rows there are."""
        self._make_room(size, slot + 1)
        column, bit = self._bits[:size, slot >> 3], np.uint8(1 << (slot & 7))
        column &= ~bit
        column[rows] |= bit

    def set_all(self, slot: int, size: int) -> None:
        """Any node could take the shape in this slot: it was not looked at closely."""
        self._make_room(size, slot + 1)
        self._bits[:, slot >> 3] |= np.uint8(1 << (slot & 7))

    def exclude(self, slot: int, row: int) -> None:
        """This node cannot take the shape until the node itself changes."""
        self._bits[row, slot >> 3] &= ~np.uint8(1 << (slot & 7))

    def notice(self, row: int) -> None:
        """The node changed: it may have become one that can take any of the shapes."""
        self._make_room(row + 1, 0)
        self._bits[row] = ALL

    def slots(self, row: int) -> int:
        """Return the set of slots whose shape the node could take."""
        if row >= len(self._bits):
            return slot_sets.EVERY
        return int.from_bytes(self._bits[row].tobytes(), "little")

    def _make_room(self, rows: int, slots: int) -> None:
        old, width = self._bits, (slots + 7) >> 3
        if rows <= old.shape[0] and width <= old.shape[1]:
            return
        height = old.shape[0] if rows <= old.shape[0] else max(rows, 2 * old.shape[0])
        width = old.shape[1] if width <= old.shape[1] else max(width, 2 * old.shape[1])
        self._bits = np.full((height, width), ALL, np.uint8)
        self._bits[: old.shape[0], : old.shape[1]] = old
