"""One NVIDIA GPU as devices: the GPU itself, or its instances if it is in MIG mode."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.gpus import pci
from gpu_orchestrator.adapters.gpus.gpu import Device, Slice
from gpu_orchestrator.adapters.gpus.nvml_calls import text, value_or
from gpu_orchestrator.adapters.gpus.nvml_reading import memory
from gpu_orchestrator.api.units import MIB

_PROFILE = re.compile(r"\bMIG (\S+)")


def read(index: int, driver: str, known: Mapping[str, Device], root: Path) -> tuple[str, list[Device]]:
    """Return the UUID of the GPU and its devices; none for a GPU in MIG mode without instances. What is known
    already is not read again. Raise `NVMLError` if the GPU does not answer."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = text(pynvml.nvmlDeviceGetUUID(handle))
    if not _is_in_mig_mode(handle):
        return uuid, [known.get(uuid) or _gpu(handle, index, uuid, driver, root)]
    parent = _gpu(handle, index, uuid, driver, root)
    handles = _instances(handle)
    return uuid, [known.get(each) or _instance(at, each, parent) for each, at in handles.items()]


def without_instances(gpu: str) -> str:
    return (
        f"{gpu} is in MIG mode and has no instances, so nothing can run on it: "
        "create some (nvidia-smi mig -cgi ... -C) or leave MIG mode (nvidia-smi -mig 0)"
    )


def _gpu(handle: Any, index: int, uuid: str, driver: str, root: Path) -> Device:
    address = value_or(lambda: text(pynvml.nvmlDeviceGetPciInfo(handle).busId), "")
    near = pci.numa(root, address)
    return Device(
        index=index,
        uuid=uuid,
        vendor="nvidia",
        model=text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=memory(handle).total // MIB,
        driver_version=driver,
        numa=near if near >= 0 else value_or(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle), -1),
        pci_bus_id=address,
        minor=value_or(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), -1),
    )


def _is_in_mig_mode(handle: Any) -> bool:
    modes = value_or(lambda: pynvml.nvmlDeviceGetMigMode(handle), None)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _instances(handle: Any) -> dict[str, Any]:
    """Return the handles of the instances, by UUID. A place without an instance has no handle."""
    places = range(value_or(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0))
    handles = [
        value_or(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at), None) for at in places
    ]
    return {text(pynvml.nvmlDeviceGetUUID(each)): each for each in handles if each is not None}


def _instance(handle: Any, uuid: str, parent: Device) -> Device:
    size = memory(handle).total // MIB
    return Device(
        index=parent.index,
        uuid=uuid,
        vendor=parent.vendor,
        model=parent.model,
        memory_mib=size,
        driver_version=parent.driver_version,
        numa=parent.numa,
        pci_bus_id=parent.pci_bus_id,
        mig=Slice(_profile(handle, size), parent.uuid),
    )


def _profile(handle: Any, memory_mib: int) -> str:
    """Return the profile, which the driver writes behind the name: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""
    if match := _PROFILE.search(text(value_or(lambda: pynvml.nvmlDeviceGetName(handle), ""))):
        return match[1]
    parts = value_or(lambda: pynvml.nvmlDeviceGetAttributes(handle), None)
    slices = parts.gpuInstanceSliceCount if parts else 1
    return f"{slices}g.{-(-memory_mib // 1024)}gb"
