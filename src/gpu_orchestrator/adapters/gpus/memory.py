"""Allocate and free real memory of the devices that this process can see.

For processes that work on devices (a runner's `vram` handler, `hold.py`); the agent never imports it. The
environment, as made by `Gpus.environment`, decides which devices are visible.
"""

import os
from pathlib import Path
from typing import Protocol

from gpu_orchestrator.adapters.gpus import simulated


class Block(Protocol):
    """Memory on one device. A word is four bytes."""

    def fill(self, word: int) -> None: ...

    def holds(self, word: int) -> bool:
        """Return True if every word that is checked still has this value."""

    def free(self) -> None: ...


class Memory(Protocol):
    def count(self) -> int:
        """Return how many devices are visible."""

    def allocate(self, device: int, mib: int) -> Block:
        """Allocate memory; raise `OutOfMemory`. `device` counts the visible ones from 0."""


def visible() -> Memory:
    if folder := os.environ.get(simulated.FOLDER_VARIABLE):
        uuids = os.environ.get(simulated.VISIBLE_VARIABLE, "").split(",")
        return SimulatedMemory(Path(folder), [uuid for uuid in uuids if uuid])
    from gpu_orchestrator.adapters.gpus.cuda import CudaMemory

    return CudaMemory()


class SimulatedMemory:
    def __init__(self, folder: Path, uuids: list[str]) -> None:
        self._folder, self._uuids = folder, uuids

    def count(self) -> int:
        return len(self._uuids)

    def allocate(self, device: int, mib: int) -> Block:
        return SimulatedBlock(simulated.allocate(self._folder, self._uuids[device], mib))


class SimulatedBlock:
    """Has no real memory: one word stands for all of them."""

    def __init__(self, allocation: simulated.Allocation) -> None:
        self._allocation, self._word = allocation, 0

    def fill(self, word: int) -> None:
        self._word = word

    def holds(self, word: int) -> bool:
        return self._word == word and self._allocation.path.exists()

    def free(self) -> None:
        self._allocation.free()
