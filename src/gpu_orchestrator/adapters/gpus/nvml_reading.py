"""Read one NVIDIA device now. An instance of a GPU has memory and processes of its own; heat, errors and
clocks are those of its GPU. Power and energy are the GPU's too, and are left out for an instance: a sum would
count them once for each."""

from functools import partial
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.gpus.gpu import Device, Process, Reading
from gpu_orchestrator.adapters.gpus.nvml_calls import list_or_none, value_or
from gpu_orchestrator.api.units import MIB

MOST = 2**44
"""More bytes of memory than any device has."""
_UNCORRECTED = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
_CORRECTED = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC)


def read(device: Device) -> Reading:
    """Return the reading; raise `NVMLError` if the device does not answer, or stops answering on the way."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
    board = pynvml.nvmlDeviceGetHandleByUUID(device.board) if device.mig else handle
    now = memory(handle)
    rates = value_or(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle), None)
    power_mw = None if device.mig else value_or(lambda: pynvml.nvmlDeviceGetPowerUsage(board), None)
    energy_mj = (
        None if device.mig else value_or(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(board), None)
    )
    processes, all_processes = _processes(handle)
    return Reading(
        uuid=device.uuid,
        used_mib=now.used // MIB,
        free_mib=now.free // MIB,
        utilization_percent=None if rates is None else float(rates.gpu),
        temperature_c=value_or(lambda: float(pynvml.nvmlDeviceGetTemperature(board, 0)), None),
        processes=processes,
        ecc_errors=_errors(board, _UNCORRECTED),
        ecc_corrected=_errors(board, _CORRECTED),
        memory_utilization_percent=None if rates is None else float(rates.memory),
        power_w=None if power_mw is None else power_mw / 1000,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        sm_clock_mhz=_clock(board, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_clock(board, pynvml.NVML_CLOCK_MEM),
        pcie_replays=value_or(lambda: int(pynvml.nvmlDeviceGetPcieReplayCounter(board)), None),
        all_processes=all_processes,
    )


def memory(handle: Any) -> Any:
    """Where the driver is new enough, `used` leaves out what the driver reserves for itself. Raise ValueError
    for more than there can be: counters that ran below zero."""
    try:
        found = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        found = pynvml.nvmlDeviceGetMemoryInfo(handle)
    for what in ("total", "used", "free"):
        size = getattr(found, what)
        if not 0 <= size <= MOST:
            raise ValueError(f"{what} memory of {size} bytes")
    return found


def _errors(handle: Any, kind: tuple[int, int]) -> int | None:
    return value_or(lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, *kind)), None)


def _clock(handle: Any, kind: int) -> int | None:
    return value_or(lambda: int(pynvml.nvmlDeviceGetClockInfo(handle, kind)), None)


def _processes(handle: Any) -> tuple[tuple[Process, ...], bool]:
    """Return the processes, and whether these are all. Clients of MPS have a list of their own. A process can
    be in several, each time with all its memory."""
    lists = [
        list_or_none(partial(call, handle))
        for call in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        )
    ]
    used = {entry.pid: entry.usedGpuMemory for each in lists for entry in each or ()}
    found = (Process(pid, None if size is None else size // MIB) for pid, size in sorted(used.items()))
    return tuple(found), None not in lists
