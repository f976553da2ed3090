"""NVIDIA's GPUs, read from the driver through NVML; CUDA is not used.

It survives a driver that is not installed, or is unloaded and loaded again, and one device that is lost while
the others go on. After any error that may mean a changed driver, the next call opens the library again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.gpus import fabric, nvml_device, nvml_links, nvml_reading
from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Link, Reading, unread
from gpu_orchestrator.adapters.gpus.numbers import Numbers
from gpu_orchestrator.adapters.gpus.nvml_calls import NONSENSE, call_or, text
from gpu_orchestrator.adapters.gpus.xids import Xids

_OF_LIBRARY = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""Errors after which the library must be opened again before it answers at all."""
_OF_DEVICE = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNKNOWN,
)
"""Errors of one device, which it keeps until the library is opened again, also after a reset."""
REOPEN_EVERY_S = 30.0
"""For a device that stays lost: opening the library can take a second, and the others are in use."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the driver lists: `boards` are the UUIDs of the GPUs that answered, `withheld` those of them that
    give no device."""

    devices: tuple[Device, ...] = ()
    boards: frozenset[str] = frozenset()
    withheld: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Nvml:
    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._known: tuple[Device, ...] = ()
        self._numbers = Numbers()
        self._withheld: Mapping[str, str] = {}
        self._notes: tuple[str, ...] = ()
        self._is_open = False
        self._is_stale = False
        self._reopen_at = 0.0
        self._xids = Xids()

    def devices(self) -> tuple[Device, ...]:
        """Also look for devices that appeared since the last call; a device stays listed once it was seen,
        unless its GPU answers and no longer has it."""
        if not self._open():
            return self._known
        found = self._find()
        silent = [device for device in self._known if device.board not in found.boards]
        self._known = tuple(sorted([*silent, *found.devices], key=lambda device: device.index))
        self._withheld, self._notes = found.withheld, found.notes
        self._xids.listen({device.board for device in self._known})
        return self._known

    def readings(self) -> tuple[Reading, ...]:
        trouble = "" if self._open() else "NVIDIA driver not loaded"
        return tuple(self._reading(device, trouble) for device in self._known)

    def withheld(self) -> Mapping[str, str]:
        return self._withheld

    def links(self) -> tuple[Link, ...]:
        if not self._open():
            return ()
        try:
            return nvml_links.read([device for device in self._known if device.mig is None])
        except pynvml.NVMLError as error:
            self._reopen_after(error)
            return ()

    def fabric(self) -> Fabric:
        return fabric.read(self._root)

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        """Return the environment. An empty `CUDA_VISIBLE_DEVICES` hides all devices, so that a task without a
        GPU cannot take one by accident."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._xids.close()
            call_or(pynvml.nvmlShutdown, None)

    def _open(self) -> bool:
        if self._is_stale:
            self.close()
        if not self._is_open:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                self._notes = (f"NVIDIA: no driver answers through NVML (libnvidia-ml.so.1): {error}",)
                return False
            self._is_open, self._is_stale = True, False
            self._xids.listen({device.board for device in self._known})
        return True

    def _find(self) -> Found:
        driver = text(call_or(pynvml.nvmlSystemGetDriverVersion, ""))
        count = call_or(pynvml.nvmlDeviceGetCount, 0)
        if not count:
            return Found(notes=(f"NVIDIA: the driver {driver} lists no GPU",))
        each = [self._board(index, driver, count) for index in range(count)]
        return Found(
            tuple(device for found in each for device in found.devices),
            frozenset().union(*(found.boards for found in each)),
            {uuid: why for found in each for uuid, why in found.withheld.items()},
            tuple(note for found in each for note in found.notes),
        )

    def _board(self, index: int, driver: str, count: int) -> Found:
        """Return what one GPU gives: itself, or its instances, numbered behind the last GPU."""
        known = {device.uuid: device for device in self._known}
        try:
            uuid, listed = nvml_device.read(index, driver, known, self._root)
        except pynvml.NVMLError as error:
            self._reopen_after(error)
            return Found(notes=(f"NVIDIA: GPU {index} does not answer: {error}",))
        except NONSENSE as error:
            return Found(notes=(f"NVIDIA: GPU {index} answers with nonsense: {error}",))
        if not listed:
            note = nvml_device.without_instances(f"NVIDIA: GPU {index}")
            return Found((), frozenset({uuid}), {uuid: nvml_device.without_instances("the GPU")}, (note,))
        wanted = count if listed[0].mig else index
        devices = [replace(each, index=self._numbers.of(each.uuid, wanted)) for each in listed]
        return Found(tuple(devices), frozenset({uuid}))

    def _reading(self, device: Device, trouble: str) -> Reading:
        if trouble:
            return unread(device, trouble)
        return self._xids.marked(self._read(device), device.board)

    def _read(self, device: Device) -> Reading:
        try:
            return nvml_reading.read(device)
        except pynvml.NVMLError as error:
            self._reopen_after(error)
            return unread(device, str(error))
        except NONSENSE as error:
            said = f"the driver answers with nonsense: {error}"
            return unread(device, said)

    def _reopen_after(self, error: pynvml.NVMLError) -> None:
        """Reopen the library at the next call if the error demands it; first the other devices are read."""
        now = elapsed_s()
        if error.value in _OF_DEVICE and now >= self._reopen_at:
            self._is_stale, self._reopen_at = True, now + REOPEN_EVERY_S
        self._is_stale = self._is_stale or error.value in _OF_LIBRARY
