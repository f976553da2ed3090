"""Sets of slots, as the bits of one integer: as cheap for one slot as a number, and for ten thousand as one
pass over a kilobyte. `Unschedulable` and its parts keep their groups of parked requests by slot."""

import numpy as np

from gpu_orchestrator.core.columns import Bools, where

EVERY = -1


def of(flags: Bools) -> int:
    """Return the set of the positions at which a flag is set."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def flags(slots: int, size: int) -> Bools:
    """Return one flag for each slot below `size`, and at least one more, which is not set."""
    packed = np.frombuffer(slots.to_bytes((size >> 3) + 1, "little"), np.uint8)
    found: Bools = np.unpackbits(packed, bitorder="little").view(np.bool_)
    return found


def members(slots: int) -> list[int]:
    found: list[int] = where(flags(slots, slots.bit_length())).tolist() if slots else []
    return found
