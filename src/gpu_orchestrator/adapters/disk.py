"""How much room is left on the disk of the data directory, and what to tell people when little is.

Below `low` the manager takes no new tasks, so that results of accepted ones can still be stored. Below
`full` the embedded store is not started: it would end at its first write.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from gpu_orchestrator.api.units import MIB

LOW_BYTES, LOW_PART = 64 * MIB, 20
"""Little is left below 64 MiB, or below a twentieth of a smaller disk."""
FULL_PART = 4
FRESH_S = 0.2


@dataclass(frozen=True, slots=True)
class Left:
    """Bytes left on the disk of a folder, and how many bytes that disk has."""

    folder: Path
    free: int
    total: int

    @property
    def low(self) -> int:
        return min(LOW_BYTES, self.total // LOW_PART)

    @property
    def is_low(self) -> bool:
        return self.free < self.low

    @property
    def is_full(self) -> bool:
        return self.free < self.low // FULL_PART

    def __str__(self) -> str:
        """Return one line for the screen, the log and `/health`; empty if there is room."""
        if not self.is_low:
            return ""
        how = "full" if self.is_full else "nearly full"
        return f"the disk of {self.folder} is {how}: {self.free:,} bytes left; free some space there"


def left(folder: Path) -> Left:
    """Measure the disk of a folder, or that of its nearest parent if the folder does not exist yet."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    usage = shutil.disk_usage(existing)
    return Left(folder, usage.free, usage.total)


class Disk:
    """The disk of one folder, measured at most every `FRESH_S`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._measured_at = float("-inf")
        self._left = Left(folder, 0, 0)
        self._told: tuple[Left, str] = (self._left, "")

    def left(self) -> Left:
        if monotonic() - self._measured_at > FRESH_S:
            self._left, self._measured_at = left(self._folder), monotonic()
        return self._left

    def shortage(self) -> str:
        """Return what to tell people, as `Left` says it; empty if there is room."""
        left = self.left()
        if self._told[0] is not left:
            self._told = left, str(left)
        return self._told[1]
