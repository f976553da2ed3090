"""The interface of every source of GPUs: devices that stay, links between them, readings that change.

A worker and the node agent each have one `Gpus`. Calls block for milliseconds at most and never raise for a
faulty device: its reading describes the problem.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.api.topology import Link as Link


@dataclass(frozen=True, slots=True)
class Slice:
    """Which part of a GPU a MIG instance is: its profile (`1g.10gb`), and the UUID of that GPU."""

    profile: str
    parent: str


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or an instance of a GPU in MIG mode, which is then not listed itself. `index` is the number of
    the device on this machine; `uuid` never changes. `minor` is the number of NVIDIA's device file. It and
    `numa` are -1 and `pci_bus_id` empty where unknown."""

    index: int
    uuid: str
    vendor: str
    model: str
    memory_mib: int
    driver_version: str = ""
    numa: int = -1
    pci_bus_id: str = ""
    mig: Slice | None = None
    minor: int = -1

    @property
    def board(self) -> str:
        """The UUID of the GPU: its own, or of the one that it is an instance of."""
        return self.mig.parent if self.mig else self.uuid


@dataclass(frozen=True, slots=True)
class Process:
    """A process with memory on a device; `used_mib` is None where the driver does not report it."""

    pid: int
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """One device now. A value that the driver does not report is None; `problem` is empty when all is well.
    `xid` is the driver's number of a fault that made the device unusable, 0 for none. `ecc_errors` could not
    be corrected. Errors and `energy_j` are counted since the driver was loaded. `all_processes` is False if
    the driver could not tell all of them now: there may be more."""

    uuid: str
    used_mib: int
    free_mib: int
    utilization_percent: float | None = None
    temperature_c: float | None = None
    processes: tuple[Process, ...] = ()
    problem: str = ""
    ecc_errors: int | None = None
    xid: int = 0
    ecc_corrected: int | None = None
    memory_utilization_percent: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pcie_replays: int | None = None
    all_processes: bool = True

    def held_by(self, pids: Collection[int]) -> int:
        """Return the MiB that these processes hold; memory without a known process is counted as others'."""
        return sum(process.used_mib or 0 for process in self.processes if process.pid in pids)


def unread(device: Device, problem: str) -> Reading:
    """Return the reading of a device that does not answer."""
    return Reading(device.uuid, used_mib=0, free_mib=0, problem=problem, all_processes=False)


class Gpus(Protocol):
    def devices(self) -> tuple[Device, ...]:
        """Return all devices in order of index; empty without a driver. A device that stops answering stays
        listed; an instance that was removed, or a GPU that was put into MIG mode, does not."""

    def readings(self) -> tuple[Reading, ...]:
        """Return one reading for each device that `devices` listed last, in the same order."""

    def withheld(self) -> Mapping[str, str]:
        """Return the GPUs, by UUID, that the driver lists and `devices` does not list nor parts of them, each
        with the reason."""

    def links(self) -> tuple[Link, ...]:
        """Return how pairs of devices are connected, where that is known; at most one link for a pair. MIG
        instances have none."""

    def fabric(self) -> Fabric:
        """Return what the machine's network and storage can do for GPUs."""

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        """Return the environment that lets a process see these devices and no others."""

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know beyond the devices, a sentence each: what was looked for and not
        found, or a GPU that cannot be listed."""

    def close(self) -> None: ...


class OutOfMemory(Exception):
    """A device has less free memory than was requested."""
