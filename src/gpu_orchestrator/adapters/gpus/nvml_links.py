"""How NVIDIA's GPUs are connected: NVLink from GPU to GPU, NVLink through NVSwitches, else PCIe.

The bandwidth of a pair is its number of NVLinks times the rate of one. Through switches, every GPU reaches
every other with all the links that it has to them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.gpus import pci
from gpu_orchestrator.adapters.gpus.gpu import Device, Link
from gpu_orchestrator.adapters.gpus.nvml_calls import field, text, value_or

QUOTED_GBPS = (100, 50, 25, 20)
"""What NVIDIA quotes for a link in one direction. Drivers report a little more, the rate on the wire: 26.562
GB/s on an H100."""
NEAR = 0.97
"""The first NVLinks are reported a little below what is quoted."""
GBPS_OF_ARCHITECTURE = {
    pynvml.NVML_DEVICE_ARCH_PASCAL: 20,
    pynvml.NVML_DEVICE_ARCH_VOLTA: 25,
    pynvml.NVML_DEVICE_ARCH_TURING: 25,
    pynvml.NVML_DEVICE_ARCH_AMPERE: 25,
    pynvml.NVML_DEVICE_ARCH_HOPPER: 25,
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: 50,
}
LABELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU and what its active NVLinks lead to: other GPUs by PCI address, and switches. `gbps` is the rate
    of one link, `pcie_gbps` that of its slot, both directions added."""

    uuid: str
    handle: Any
    address: str
    gpus: Counter[str]
    switches: Counter[str]
    gbps: int
    pcie_gbps: int


def read(devices: Sequence[Device]) -> tuple[Link, ...]:
    """Return the links; a GPU that does not answer has none."""
    addresses = {device.pci_bus_id for device in devices}
    boards = [board for device in devices if (board := _board(device, addresses)) is not None]
    found = (_fast(a, b) or _slow(a, b) for a, b in combinations(boards, 2))
    return tuple(link for link in found if link is not None)


def _board(device: Device, addresses: set[str]) -> Board | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        gpus, switches = _remotes(handle, addresses)
        gbps = _gbps(handle) if gpus or switches else 0
        pcie_gbps = _pcie_gbps(handle)
    except pynvml.NVMLError:
        return None
    return Board(device.uuid, handle, device.pci_bus_id, gpus, switches, gbps, pcie_gbps)


def _remotes(handle: Any, addresses: set[str]) -> tuple[Counter[str], Counter[str]]:
    """Count the active links by where they lead to."""
    gpus, switches = Counter[str](), Counter[str]()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _is_active(handle, link):
            continue
        remote = _remote_address(handle, link)
        if remote in addresses:
            gpus[remote] += 1
        elif _leads_to_switch(handle, link):
            switches[remote] += 1
    return gpus, switches


def _is_active(handle: Any, link: int) -> bool:
    """A link that the device does not have answers with an error, and others may follow it."""
    state = value_or(lambda: pynvml.nvmlDeviceGetNvLinkState(handle, link), pynvml.NVML_FEATURE_DISABLED)
    return bool(state == pynvml.NVML_FEATURE_ENABLED)


def _remote_address(handle: Any, link: int) -> str:
    """Return the PCI address at the other end; empty if a virtual machine does not see it."""
    return value_or(lambda: text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId), "").upper()


def _leads_to_switch(handle: Any, link: int) -> bool:
    switch = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    return bool(value_or(lambda: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), switch) == switch)


def _gbps(handle: Any) -> int:
    """Return the rate of one link in GB/s, both directions added, as NVIDIA quotes it."""
    if wire_mbps := field(handle, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON):
        return 2 * next((gbps for gbps in QUOTED_GBPS if wire_mbps >= NEAR * 1000 * gbps), wire_mbps // 1000)
    architecture = value_or(lambda: pynvml.nvmlDeviceGetArchitecture(handle), 0)
    return 2 * GBPS_OF_ARCHITECTURE.get(architecture, 0)


def _pcie_gbps(handle: Any) -> int:
    """An idle slot runs slower to save power, so that only the maximum says something."""
    generation = value_or(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), 0)
    width = value_or(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle), 0)
    return pci.gbps(generation, width)


def _fast(a: Board, b: Board) -> Link | None:
    direct = max(a.gpus[b.address], b.gpus[a.address])
    meet = not a.switches.keys().isdisjoint(b.switches)
    count = direct + (min(a.switches.total(), b.switches.total()) if meet else 0)
    return Link(a.uuid, b.uuid, "NVLink", count * min(a.gbps, b.gbps), f"NV{count}") if count else None


def _slow(a: Board, b: Board) -> Link | None:
    """Between sockets no bandwidth is promised, so that none is claimed."""
    level = value_or(lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(a.handle, b.handle), None)
    if level is None:
        return None
    if level >= pynvml.NVML_TOPOLOGY_SYSTEM:
        return Link(a.uuid, b.uuid, "System", 0, LABELS[pynvml.NVML_TOPOLOGY_SYSTEM])
    return Link(a.uuid, b.uuid, "PCIe", min(a.pcie_gbps, b.pcie_gbps), LABELS.get(level, ""))
