"""Simulated devices, like real ones where it matters: processes hold memory, and it is freed when they end.

A folder is the hardware. Each allocation is a file there that names its process, so any process can take
memory, every process sees it, and the memory of a killed process is free at once:

    <folder>/devices.json                     the devices
    <folder>/<uuid>/lock                      locked while memory is counted and taken
    <folder>/<uuid>/<pid>-<start>-<number>    MiB of one allocation
    <folder>/<uuid>/trouble.json              what is wrong with it: temperature_c, problem, ecc_errors, xid
"""

import fcntl
import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from gpu_orchestrator.adapters.gpus import described
from gpu_orchestrator.adapters.gpus.described import BadDescription as BadDescription
from gpu_orchestrator.adapters.gpus.described import Described
from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Link, OutOfMemory, Process, Reading
from gpu_orchestrator.adapters.process_rights import User

FOLDER_VARIABLE = "GPU_ORCHESTRATOR_SIMULATED_GPUS"
VISIBLE_VARIABLE = "GPU_ORCHESTRATOR_VISIBLE_GPUS"

_numbers = itertools.count()
TROUBLE = "trouble.json"
NO_MEMORY = {"lock", TROUBLE}
IDLE: dict[str, Any] = {
    "utilization_percent": 0.0,
    "temperature_c": 30.0,
    "power_w": 70.0,
    "sm_clock_mhz": 345,
}
BUSY: dict[str, Any] = {
    "utilization_percent": 100.0,
    "temperature_c": 60.0,
    "power_w": 350.0,
    "sm_clock_mhz": 1980,
}


class Simulated:
    """Devices described in one line: `4`, or `4xL4:24GiB,2xH200:141GiB`; or by `described.from_file`."""

    def __init__(self, folder: Path, description: str | Described, user: User | None = None) -> None:
        self._folder = folder.absolute()
        if isinstance(description, str):
            description = described.from_words(description)
        self._described = described.identified(description, f"{gethostname()}{self._folder}")
        for device in self.devices():
            (self._folder / device.uuid).mkdir(parents=True, exist_ok=True)
            if user is not None:
                os.chown(self._folder / device.uuid, user.uid, user.gid)
        _publish(self._folder, self.devices())

    def devices(self) -> tuple[Device, ...]:
        return self._described.devices

    def readings(self) -> tuple[Reading, ...]:
        return tuple(_read(self._folder, device) for device in self.devices())

    def withheld(self) -> Mapping[str, str]:
        return {}

    def links(self) -> tuple[Link, ...]:
        return self._described.links

    def fabric(self) -> Fabric:
        return self._described.fabric

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        return {FOLDER_VARIABLE: str(self._folder), VISIBLE_VARIABLE: ",".join(uuids)}

    def notes(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        """Keep the folder: it is the hardware."""


def count(description: str) -> int:
    """Return how many devices a description names, or raise `BadDescription`. Nothing is written."""
    return len(described.from_words(description).devices)


@dataclass(frozen=True, slots=True)
class Allocation:
    path: Path

    def free(self) -> None:
        self.path.unlink(missing_ok=True)


def allocate(folder: Path, uuid: str, mib: int) -> Allocation:
    """Take memory for the calling process; `free` or the end of the process gives it back."""
    device = next((device for device in _published(folder) if device.uuid == uuid), None)
    if device is None:
        raise LookupError(f"no simulated device '{uuid}' in {folder}")
    with _locked(folder, uuid):
        free = _read(folder, device).free_mib
        if mib > free:
            raise OutOfMemory(f"{mib} MiB requested on {uuid}, {free} of {device.memory_mib} MiB are free")
        pid = os.getpid()
        path = folder / uuid / f"{pid}-{_start_of(pid)}-{next(_numbers)}"
        path.write_text(str(mib))
    return Allocation(path)


def _publish(folder: Path, devices: tuple[Device, ...]) -> None:
    new = folder / f"devices.json.{os.getpid()}"
    new.write_bytes(msgspec.json.encode(devices))
    new.replace(folder / "devices.json")


def _published(folder: Path) -> list[Device]:
    return msgspec.json.decode((folder / "devices.json").read_bytes(), type=list[Device])


@contextmanager
def _locked(folder: Path, uuid: str) -> Iterator[None]:
    with (folder / uuid / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(folder: Path, device: Device) -> Reading:
    held: Counter[int] = Counter()
    for path in (folder / device.uuid).iterdir():
        if path.name not in NO_MEMORY:
            pid, mib = _holder(path)
            held[pid] += mib
    used = held.total()
    reading = Reading(
        uuid=device.uuid,
        used_mib=used,
        free_mib=max(device.memory_mib - used, 0),
        processes=tuple(Process(pid, mib) for pid, mib in sorted(held.items()) if mib),
        ecc_errors=0,
        ecc_corrected=0,
        memory_utilization_percent=0.0,
        memory_clock_mhz=2619,
        pcie_replays=0,
    )
    return replace(reading, **{**(BUSY if held else IDLE), **_trouble(folder / device.uuid / TROUBLE)})


def _trouble(path: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    return {}


def _holder(path: Path) -> tuple[int, int]:
    """Return process and MiB of one allocation; remove that of a dead process and return 0 MiB."""
    pid, start, _ = path.name.split("-")
    if _start_of(int(pid)) != start:
        path.unlink(missing_ok=True)
        return int(pid), 0
    with suppress(FileNotFoundError, ValueError):
        return int(pid), int(path.read_text())
    return int(pid), 0


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks; with its number this identifies the process for good. Empty if
    the process has ended, even if it is not yet reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
