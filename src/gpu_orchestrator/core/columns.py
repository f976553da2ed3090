"""Columns of numbers, one row per node, that grow and are copied together; and names as numbers.

A table lists its columns by kind: one value per node (`rows`), per device (`grids`) or per kind of resource
(`amounts`). Rows of removed nodes are reused.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", bound=np.generic)
Ints = NDArray[np.int64]
Small = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Codes = NDArray[np.int16]


class Table:
    """All columns lie in one block of memory, so that copying a table is one memcpy. (One block per column
    would be simpler here, but the allocator returns such blocks to the system and faults them in again every
    time.)"""

    rows: ClassVar[dict[str, type]] = {}
    grids: ClassVar[dict[str, type]] = {}
    amounts: ClassVar[dict[str, type]] = {}

    def __init__(self) -> None:
        self.size, self.width, self.kinds = 0, 1, 1
        self._bind(np.zeros(0, np.uint8))

    def resize(self, size: int, width: int, kinds: int) -> None:
        """Make room for this many nodes, devices per node and kinds of resources; never shrinks."""
        wanted = (max(size, self.size), max(width, self.width), max(kinds, self.kinds))
        if wanted == (self.size, self.width, self.kinds):
            return
        old = {name: getattr(self, name) for name, _, _ in self._layout()}
        self.size, self.width, self.kinds = wanted
        self._bind(np.zeros(sum(_bytes(shape, dtype) for _, shape, dtype in self._layout()), np.uint8))
        for name, column in old.items():
            getattr(self, name)[tuple(slice(length) for length in column.shape)] = column

    def copy_columns_of(self, other: "Table") -> None:
        self.size, self.width, self.kinds = other.size, other.width, other.kinds
        self._bind(other._block.copy())

    def _bind(self, block: NDArray[np.uint8]) -> None:
        """Point every column at its part of the block."""
        self._block = block
        offset = 0
        for name, shape, dtype in self._layout():
            setattr(self, name, np.ndarray(shape, dtype, buffer=block, offset=offset))
            offset += _bytes(shape, dtype)

    def _layout(self) -> Iterator[tuple[str, tuple[int, ...], type]]:
        for name, dtype in self.rows.items():
            yield name, (self.size,), dtype
        for name, dtype in self.grids.items():
            yield name, (self.size, self.width), dtype
        for name, dtype in self.amounts.items():
            yield name, (self.size, self.kinds), dtype


def _bytes(shape: tuple[int, ...], dtype: type) -> int:
    """Return the size of a column, rounded up so that the next one is aligned."""
    return -(-prod(shape) * np.dtype(dtype).itemsize // 64) * 64


# Decisions look at a handful of rows at a time, where a numpy call costs more than its work. These are the
# cheapest spellings of what is done most.


def some(grid: NDArray[N], rows: Ints) -> NDArray[N]:
    """Return some rows of a column or grid; several times faster than indexing a grid."""
    return grid.take(rows, axis=0)


def where(flags: Bools) -> Ints:
    """Return the positions at which a flag is set."""
    return flags.nonzero()[0]


def count_in_row(grid: Bools) -> Ints:
    """Return how many devices are set in each row of a grid."""
    counted: Ints = np.add.reduce(grid, axis=1)
    return counted


def any_in_row(grid: Bools) -> Bools:
    found: Bools = np.logical_or.reduce(grid, axis=1)
    return found


def all_in_row(grid: Bools) -> Bools:
    found: Bools = np.logical_and.reduce(grid, axis=1)
    return found


class Names:
    """Number every distinct value, from 1 up; 0 stands for "none". Shared by a cluster and its copies: it
    only grows, and no answer depends on the numbers."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.values: list[Any] = [None]

    def number(self, value: Any) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def find(self, value: Any) -> int:
        """Return the number of a value, -1 if it has none. For what requests ask for: `number` would keep
        their texts forever."""
        return self.numbers.get(value, -1)

    def __len__(self) -> int:
        return len(self.values)
