"""The interface of every source of GPUs: devices that stay, readings that change.

A worker and the node agent each have one `Gpus`. Calls block for milliseconds at most and never raise for a
faulty device: its reading describes the problem.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Device:
    """`index` is the number of the device on this machine; `uuid` never changes."""

    index: int
    uuid: str
    vendor: str
    model: str
    memory_mib: int
    driver_version: str = ""
    numa: int = -1


@dataclass(frozen=True, slots=True)
class Process:
    """A process with memory on a device; `used_mib` is None where the driver does not report it."""

    pid: int
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One device now. A value that the driver does not report is None; `problem` is empty when all is well.
    `xid` is the driver's number of a fault that made the device unusable, 0 for none."""

    uuid: str
    used_mib: int
    free_mib: int
    utilization_percent: float | None = None
    temperature_c: float | None = None
    processes: tuple[Process, ...] = ()
    problem: str = ""
    ecc_errors: int | None = None
    xid: int = 0

    def held_by(self, pids: Collection[int]) -> int:
        """Return the MiB that these processes hold; memory without a known process is counted as others'."""
        return sum(process.used_mib or 0 for process in self.processes if process.pid in pids)


class Gpus(Protocol):
    def devices(self) -> tuple[Device, ...]:
        """Return all devices in order of index; empty without a driver."""

    def readings(self) -> tuple[Reading, ...]:
        """Return one reading for each device that `devices` ever listed, in the same order."""

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        """Return the environment that lets a process see these devices and no others."""

    def close(self) -> None: ...


class OutOfMemory(Exception):
    """A device has less free memory than was requested."""
