"""NVIDIA's GPUs, read from the driver through NVML; CUDA is not used.

It survives a driver that is not installed, or is unloaded and loaded again, and one device that is lost while
the others go on. After any error that may mean a changed driver, the next call opens the library again.
"""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.gpus.gpu import Device, Link, Process, Reading
from gpu_orchestrator.adapters.gpus.xids import Xids
from gpu_orchestrator.api.units import MIB

T = TypeVar("T")

_REOPEN = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_UNKNOWN,
)
_ECC = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)


class Nvml:
    def __init__(self) -> None:
        self._known: tuple[Device, ...] = ()
        self._is_open = False
        self._is_stale = False
        self._xids = Xids()

    def devices(self) -> tuple[Device, ...]:
        """Also look for devices that appeared since the last call; a device stays listed once it was seen."""
        if not self._open():
            return self._known
        found = {device.uuid: device for device in self._known} | {d.uuid: d for d in self._found()}
        self._known = tuple(sorted(found.values(), key=lambda device: device.index))
        self._xids.listen([device.uuid for device in self._known])
        return self._known

    def readings(self) -> tuple[Reading, ...]:
        trouble = "" if self._open() else "NVIDIA driver not loaded"
        return tuple(self._reading(device, trouble) for device in self._known)

    def links(self) -> tuple[Link, ...]:
        return ()

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        """Return the environment. An empty `CUDA_VISIBLE_DEVICES` hides all devices, so that a task without a
        GPU cannot take one by accident."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._xids.close()
            _call_or(pynvml.nvmlShutdown, None)

    def _open(self) -> bool:
        if self._is_stale:
            self.close()
        if not self._is_open:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:
                return False
            self._is_open, self._is_stale = True, False
        return True

    def _found(self) -> list[Device]:
        driver = _text(_call_or(pynvml.nvmlSystemGetDriverVersion, ""))
        count = _call_or(pynvml.nvmlDeviceGetCount, 0)
        found = [self._device(index, driver) for index in range(count)]
        return [device for device in found if device is not None]

    def _device(self, index: int, driver: str) -> Device | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return Device(
                index=index,
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                vendor="nvidia",
                model=_text(pynvml.nvmlDeviceGetName(handle)),
                memory_mib=_memory(handle).total // MIB,
                driver_version=driver,
                numa=_call_or(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle), -1),
            )
        except pynvml.NVMLError as error:
            self._reopen_after(error)
            return None

    def _reading(self, device: Device, trouble: str) -> Reading:
        if trouble:
            return Reading(device.uuid, used_mib=0, free_mib=0, problem=trouble)
        return self._xids.marked(self._read(device))

    def _read(self, device: Device) -> Reading:
        try:
            return _read(device.uuid)
        except pynvml.NVMLError as error:
            self._reopen_after(error)
            return Reading(device.uuid, used_mib=0, free_mib=0, problem=str(error))

    def _reopen_after(self, error: pynvml.NVMLError) -> None:
        """Reopen the library at the next call if the error demands it; first the other devices are read."""
        self._is_stale = self._is_stale or error.value in _REOPEN


def _read(uuid: str) -> Reading:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    memory = _memory(handle)
    rates = _call_or(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle), None)
    return Reading(
        uuid=uuid,
        used_mib=memory.used // MIB,
        free_mib=memory.free // MIB,
        utilization_percent=None if rates is None else float(rates.gpu),
        temperature_c=_call_or(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, 0)), None),
        processes=_processes(handle),
        ecc_errors=_call_or(lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, *_ECC)), None),
    )


def _memory(handle: Any) -> Any:
    """Where the driver is new enough, `used` leaves out what the driver reserves for itself."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _processes(handle: Any) -> tuple[Process, ...]:
    """A process can be listed both for compute and for graphics, each time with all its memory."""
    listed: list[Any] = _call_or(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
    listed += _call_or(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), [])
    used = {entry.pid: entry.usedGpuMemory for entry in listed}
    return tuple(Process(pid, None if size is None else size // MIB) for pid, size in sorted(used.items()))


def _call_or(call: Callable[[], T], default: T) -> T:
    """Return the driver's answer, or `default` if this device or driver does not support the call."""
    try:
        return call()
    except pynvml.NVMLError:
        return default


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
