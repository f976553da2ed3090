"""PCI addresses and rates: one form of address for all vendors, and what sysfs knows of such a device."""

from pathlib import Path

from gpu_orchestrator.adapters.gpus import sysfs

GBPS_OF_LANE = {1: 0.25, 2: 0.5, 3: 1.0, 4: 2.0, 5: 4.0, 6: 8.0}
"""GB/s of one lane in one direction, by generation, rounded as vendors quote it."""


def bus_id(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return an address as NVML writes it: `00000000:3B:00.0`."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}"


def folder(root: Path, address: str) -> Path:
    """Return the folder of a device in sysfs, which writes `0000:3b:00.0`."""
    domain, _, rest = address.partition(":")
    return root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}".lower()


def numa(root: Path, address: str) -> int:
    """Return the NUMA node that the device is attached to, -1 if unknown."""
    if address:
        near = sysfs.number(folder(root, address) / "numa_node")
        return -1 if near is None else near
    return -1


def gbps(generation: int, width: int) -> int:
    """Return the bandwidth of a slot in GB/s, both directions added."""
    return int(2 * GBPS_OF_LANE.get(generation, 0.0) * width)
