"""What was seen → what a report can hold. Pure.

A driver in trouble tells of memory below zero, temperatures that are not numbers, names without end. The API
server refuses a report for one such value, and with it the bad news of all other devices; so a device with
nonsense is unhealthy for that reason, and the rest is cut to what the schema allows.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Reading
from gpu_orchestrator.api.schema import INT32
from gpu_orchestrator.api.topology import Link
from gpu_orchestrator.apps.agent.survey import Look
from gpu_orchestrator.core.limits import within

MOST_MIB = 16 * 1024 * 1024
"""More memory than any device has."""
LONGEST_NAME, LONGEST_ADDRESS, LONGEST_PROFILE = 253, 64, 32
MOST_DEVICES, MOST_LINKS, MOST_HCAS = 1024, 16_384, 64
MOST_PORTS, MOST_GBPS = 1024, 1_000_000
TWICE = "several GPUs of this node have this UUID"


def plausible(look: Look) -> Look:
    """Return the look with nothing in it that a report cannot hold."""
    listed = [device for device in look.devices if _is_named(device)][:MOST_DEVICES]
    counts = Counter(device.uuid for device in listed)
    devices = {device.uuid: device for device in reversed(listed)}
    readings = {
        uuid: _reading(reading, devices.get(uuid), counts[uuid] > 1)
        for uuid, reading in look.readings.items()
    }
    return replace(
        look,
        devices=tuple(_device(devices[uuid]) for uuid in counts),
        readings=readings,
        links=tuple(_links(look.links))[:MOST_LINKS],
        fabric=_fabric(look.fabric),
    )


def _is_named(device: Device) -> bool:
    parent = device.mig.parent if device.mig else device.uuid
    return all(0 < len(each) <= LONGEST_NAME for each in (device.uuid, parent))


def _device(device: Device) -> Device:
    return replace(
        device,
        model=device.model[:LONGEST_NAME],
        memory_mib=within(device.memory_mib, INT32),
        driver_version=device.driver_version[:LONGEST_NAME],
        numa=device.numa if -1 <= device.numa < 1024 else -1,
        pci_bus_id=device.pci_bus_id[:LONGEST_ADDRESS],
        mig=replace(device.mig, profile=device.mig.profile[:LONGEST_PROFILE] or "?") if device.mig else None,
    )


def _reading(reading: Reading, device: Device | None, is_twice: bool) -> Reading:
    nonsense = TWICE if is_twice else _nonsense(reading, device)
    return replace(
        reading,
        used_mib=within(reading.used_mib, INT32),
        free_mib=within(reading.free_mib, INT32),
        utilization_percent=_number(reading.utilization_percent),
        memory_utilization_percent=_number(reading.memory_utilization_percent),
        temperature_c=_number(reading.temperature_c),
        power_w=_number(reading.power_w),
        energy_j=_number(reading.energy_j),
        problem=reading.problem or nonsense,
    )


def _nonsense(reading: Reading, device: Device | None) -> str:
    told = {"has": device.memory_mib if device else 0, "uses": reading.used_mib, "has free": reading.free_mib}
    wrong = (f"the driver says that it {what} {mib} MiB" for what, mib in told.items() if not _is_memory(mib))
    return next(wrong, "")


def _is_memory(mib: int) -> bool:
    return 0 <= mib <= MOST_MIB


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _links(links: Iterable[Link]) -> Iterable[Link]:
    return (replace(link, bandwidth_gbps=within(link.bandwidth_gbps, INT32)) for link in links)


def _fabric(fabric: Fabric) -> Fabric:
    hcas = {each.name: each for each in fabric.hcas if 0 < len(each.name) <= LONGEST_NAME}
    cut = [
        replace(each, ports=within(each.ports, MOST_PORTS), speed_gbps=within(each.speed_gbps, MOST_GBPS))
        for each in hcas.values()
    ]
    return replace(fabric, hcas=tuple(cut[:MOST_HCAS]))
