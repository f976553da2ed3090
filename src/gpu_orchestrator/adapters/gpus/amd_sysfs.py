"""AMD's GPUs as the kernel describes them: KFD's topology, and the files of the PCI device.

/sys/class/kfd/kfd/topology/nodes/<n>/{gpu_id,properties,mem_banks,io_links}    CPUs and GPUs are nodes
/sys/class/kfd/kfd/proc/<pid>/vram_<gpu_id>                                     bytes of one process
/sys/bus/pci/devices/<address>/                                                 memory, load, hwmon, RAS
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_orchestrator.adapters.gpus import pci
from gpu_orchestrator.adapters.gpus.gpu import Process
from gpu_orchestrator.adapters.gpus.sysfs import number, text, to_number
from gpu_orchestrator.api.units import MIB

KFD = "sys/class/kfd/kfd"
AMD = 0x1002
XGMI = 11
"""Type of a link from GPU to GPU, as KFD numbers them."""
MODELS = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X/MI250",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A5: "AMD Instinct MI325X",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
"""By PCI device, for boards that do not name themselves."""
WIDEST = 32
"""Lanes of a slot."""
_GIGATRANSFERS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?(?![0-9.])")


@dataclass(frozen=True, slots=True)
class Node:
    """A GPU as KFD lists it. `number` is its node, `place` its number among the GPUs; `unique_id` is 0 for
    boards without one."""

    number: int
    place: int
    gpu_id: int
    unique_id: int
    device_id: int
    gfx_version: int
    address: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Edge:
    """A link between two nodes, with KFD's bandwidth for one direction; 0 if it leads through other GPUs, or
    if the kernel is too old to say."""

    node_from: int
    node_to: int
    kind: int
    weight: int
    mbps: int

    @property
    def is_direct(self) -> bool:
        return self.mbps > 0 or self.weight <= 15


def nodes(root: Path) -> list[Node]:
    """Return the GPUs in the order in which AMD's runtime numbers them."""
    found: list[Node] = []
    for folder in _numbered(root / KFD / "topology/nodes"):
        facts = properties(folder / "properties")
        if facts.get("simd_count") and facts.get("vendor_id") == AMD:
            found.append(_node(folder, len(found), facts))
    return found


def edges(root: Path, node: Node) -> list[Edge]:
    folder = root / KFD / "topology/nodes" / str(node.number) / "io_links"
    facts = [properties(each / "properties") for each in _numbered(folder)]
    return [
        Edge(
            each["node_from"],
            each["node_to"],
            each.get("type", 0),
            each.get("weight", 0),
            each.get("max_bandwidth", 0),
        )
        for each in facts
        if "node_from" in each and "node_to" in each
    ]


def model(root: Path, node: Node) -> str:
    named = text(pci.folder(root, node.address) / "product_name")
    major, minor, step = node.gfx_version // 10000, node.gfx_version // 100 % 100, node.gfx_version % 100
    return named or MODELS.get(node.device_id) or f"AMD gfx{major}{minor:x}{step:x}"


def driver(root: Path) -> str:
    """Return the version of AMD's own driver package, or of the kernel that the driver is part of."""
    return text(root / "sys/module/amdgpu/version") or text(root / "proc/sys/kernel/osrelease")


def processes(root: Path, gpu_id: int) -> tuple[Process, ...]:
    """Return the processes that have memory on the GPU, by the process ids of the host."""
    found = []
    for folder in _numbered(root / KFD / "proc"):
        size = number(folder / f"vram_{gpu_id}")
        if size:
            found.append(Process(int(folder.name), size // MIB))
    return tuple(found)


def errors(folder: Path) -> dict[str, int]:
    """Return the memory errors of all blocks of the GPU: `ue` that could not be corrected, and `ce` that
    were. Empty for a board that counts none."""
    found: dict[str, int] = {}
    for path in _matching(folder, "ras/*_err_count"):
        for line in text(path).splitlines():
            kind, _, count = line.partition(":")
            with suppress(ValueError):
                found[kind.strip()] = found.get(kind.strip(), 0) + max(to_number(count), 0)
    return found


def sensors(folder: Path) -> Path | None:
    """Return the folder of the GPU's sensors."""
    return next(iter(_matching(folder, "hwmon/hwmon*")), None)


def hottest(sensors: Path) -> float | None:
    """Return the temperature that limits the GPU, in °C: the junction, or the edge where there is no
    other."""
    labels = {text(path): path for path in _matching(sensors, "temp*_label")}
    for label in ("junction", "edge"):
        if label in labels:
            milli = number(labels[label].with_name(labels[label].name.replace("_label", "_input")))
            if milli is not None:
                return milli / 1000
    return None


def pcie_gbps(folder: Path) -> int:
    """Return the bandwidth of the slot in GB/s, both directions added."""
    speed = _GIGATRANSFERS.match(text(folder / "max_link_speed"))
    width = number(folder / "max_link_width") or 0
    return int(2 * float(speed[0]) * width / 8) if speed and 0 < width <= WIDEST else 0


def properties(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    facts = {}
    for line in text(path).splitlines():
        name, _, value = line.partition(" ")
        with suppress(ValueError):
            facts[name] = to_number(value)
    return facts


def _node(folder: Path, place: int, facts: dict[str, int]) -> Node:
    location = facts.get("location_id", 0)
    banks = (properties(bank / "properties") for bank in _numbered(folder / "mem_banks"))
    return Node(
        number=int(folder.name),
        place=place,
        gpu_id=number(folder / "gpu_id") or 0,
        unique_id=facts.get("unique_id", 0),
        device_id=facts.get("device_id", 0),
        gfx_version=facts.get("gfx_target_version", 0),
        address=pci.bus_id(facts.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7),
        memory_mib=max(sum(bank.get("size_in_bytes", 0) for bank in banks), 0) // MIB,
    )


def _numbered(folder: Path) -> Iterator[Path]:
    """Return the subfolders whose names are numbers, in order; none if the folder cannot be read."""
    try:
        found = [each for each in folder.iterdir() if each.name.isdecimal()]
    except OSError:
        return iter(())
    return iter(sorted(found, key=lambda each: int(each.name)))


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files of this form, in order; none if the folder cannot be read, or goes meanwhile."""
    with suppress(OSError):
        return sorted(folder.glob(pattern))
    return []
