"""Columns of numbers, one row per node, that grow together and are copied together; and names as numbers.

A table lists its columns by kind: one value per node (`rows`), one per device (`grids`) or one per kind of
resource (`amounts`). Rows of nodes that left are used again.
"""

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
    rows: ClassVar[dict[str, type]] = {}
    grids: ClassVar[dict[str, type]] = {}
    amounts: ClassVar[dict[str, type]] = {}

    def __init__(self) -> None:
        self.size, self.width, self.kinds = 0, 1, 1
        self._reshape()

    def resize(self, size: int, width: int, kinds: int) -> None:
        """Make room for so many nodes, devices on each, and kinds of resources; never shrinks."""
        wanted = (max(size, self.size), max(width, self.width), max(kinds, self.kinds))
        if wanted != (self.size, self.width, self.kinds):
            self.size, self.width, self.kinds = wanted
            self._reshape()

    def copy_columns_of(self, other: "Table") -> None:
        self.size, self.width, self.kinds = other.size, other.width, other.kinds
        for name in (*self.rows, *self.grids, *self.amounts):
            setattr(self, name, getattr(other, name).copy())

    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in (*self.rows, *self.grids, *self.amounts))

    def _reshape(self) -> None:
        for name, dtype in self.rows.items():
            self._grow(name, (self.size,), dtype)
        for name, dtype in self.grids.items():
            self._grow(name, (self.size, self.width), dtype)
        for name, dtype in self.amounts.items():
            self._grow(name, (self.size, self.kinds), dtype)

    def _grow(self, name: str, shape: tuple[int, ...], dtype: type) -> None:
        new: NDArray[Any] = np.zeros(shape, dtype)
        old = getattr(self, name, None)
        if old is not None:
            new[tuple(slice(length) for length in old.shape)] = old
        setattr(self, name, new)


# Decisions look at a handful of rows at a time, where a numpy call costs more than its work. These are the
# cheapest spellings of what is done most.


def some(grid: NDArray[N], rows: Ints) -> NDArray[N]:
    """Some rows of a column or grid; several times faster than indexing a grid."""
    return grid.take(rows, axis=0)


def where(flags: Bools) -> Ints:
    """The places at which a flag is set."""
    return flags.nonzero()[0]


def count_in_row(grid: Bools) -> Ints:
    """For each row of a grid how many devices are meant."""
    counted: Ints = np.add.reduce(grid, axis=1)
    return counted


def any_in_row(grid: Bools) -> Bools:
    found: Bools = np.logical_or.reduce(grid, axis=1)
    return found


def all_in_row(grid: Bools) -> Bools:
    found: Bools = np.logical_and.reduce(grid, axis=1)
    return found


class Names:
    """Gives every distinct value a number, from 1 on, for ever; 0 stands for "none". Shared by a cluster
    and its copies: it only grows, and no answer depends on which numbers were given."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.values: list[Any] = [None]

    def number(self, value: Any) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)
