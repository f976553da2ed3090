"""AMD's GPUs: what the kernel says of them (sysfs), and what `amdsmi` adds where the host has it.

A GPU is `GPU-` and the 16 hexadecimal digits of its unique id, as AMD's runtime names it in
`ROCR_VISIBLE_DEVICES`. A board without a unique id, and a partition that shares one, is named by where it is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from gpu_orchestrator.adapters.gpus import amd_smi, amd_sysfs, fabric, pci, sysfs
from gpu_orchestrator.adapters.gpus.amd_smi import AmdSmi
from gpu_orchestrator.adapters.gpus.amd_sysfs import Node
from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Link, Reading, unread
from gpu_orchestrator.adapters.gpus.numbers import Numbers
from gpu_orchestrator.api.units import MIB

GONE = "the driver no longer lists the GPU"


class Amd:
    def __init__(self, root: Path = Path("/"), find_smi: Callable[[], AmdSmi | None] = amd_smi.find) -> None:
        self._root, self._find_smi = root, find_smi
        self._nodes: dict[str, Node] = {}
        self._devices: dict[str, Device] = {}
        self._numbers = Numbers()
        self._smi: AmdSmi | None = None
        self._has_looked = False

    def devices(self) -> tuple[Device, ...]:
        """A device stays listed once it was seen. What is known already is not read again."""
        self._nodes = _named(amd_sysfs.nodes(self._root))
        if new := [uuid for uuid in self._nodes if uuid not in self._devices]:
            names = self._names()
            for uuid in new:
                self._devices[uuid] = self._device(uuid, self._nodes[uuid], names)
        return self._known()

    def readings(self) -> tuple[Reading, ...]:
        return tuple(self._reading(device) for device in self._known())

    def withheld(self) -> Mapping[str, str]:
        return {}

    def links(self) -> tuple[Link, ...]:
        uuids = {node.number: uuid for uuid, node in self._nodes.items()}
        fast = {
            frozenset((uuids[edge.node_from], uuids[edge.node_to])): 2 * edge.mbps // 1000
            for node in self._nodes.values()
            for edge in amd_sysfs.edges(self._root, node)
            if edge.kind == amd_sysfs.XGMI
            and edge.is_direct
            and {edge.node_from, edge.node_to} <= uuids.keys()
        }
        pairs = combinations([device for device in self._known() if device.uuid in self._nodes], 2)
        found = (self._link(a, b, fast.get(frozenset((a.uuid, b.uuid)))) for a, b in pairs)
        return tuple(link for link in found if link is not None)

    def fabric(self) -> Fabric:
        return fabric.read(self._root)

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        """Return the environment. AMD's runtime shows the devices of `ROCR_VISIBLE_DEVICES`, none if it is
        empty, and HIP numbers these from 0."""
        return {
            "ROCR_VISIBLE_DEVICES": ",".join(self._token(uuid) for uuid in uuids),
            "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(uuids)))),
        }

    def notes(self) -> tuple[str, ...]:
        if self._devices:
            return ()
        return (f"AMD: no GPU in {self._root / amd_sysfs.KFD}/topology (amdgpu driver)",)

    def close(self) -> None:
        if self._smi is not None:
            self._smi.close()
        self._smi, self._has_looked = None, False

    def _known(self) -> tuple[Device, ...]:
        return tuple(sorted(self._devices.values(), key=lambda device: device.index))

    def _names(self) -> dict[str, str]:
        """Open `amdsmi` only on a machine that has GPUs of AMD."""
        if not self._has_looked:
            self._smi, self._has_looked = self._find_smi(), True
        return self._smi.names() if self._smi else {}

    def _device(self, uuid: str, node: Node, names: dict[str, str]) -> Device:
        place = pci.folder(self._root, node.address)
        total = sysfs.number(place / "mem_info_vram_total") or 0
        return Device(
            index=self._numbers.of(uuid, node.place),
            uuid=uuid,
            vendor="amd",
            model=names.get(place.name) or amd_sysfs.model(self._root, node),
            memory_mib=node.memory_mib or total // MIB,
            driver_version=amd_sysfs.driver(self._root),
            numa=pci.numa(self._root, node.address),
            pci_bus_id=node.address,
        )

    def _reading(self, device: Device) -> Reading:
        node = self._nodes.get(device.uuid)
        if node is None:
            return unread(device, GONE)
        folder = pci.folder(self._root, node.address)
        try:
            used_mib = sysfs.read_number(folder / "mem_info_vram_used") // MIB
        except (OSError, ValueError) as error:
            problem = f"the driver does not answer: {error}"
            return unread(device, problem)
        values = self._smi.values(folder.name) if self._smi else {}
        return replace(self._read(device, node, folder, used_mib), **values)

    def _read(self, device: Device, node: Node, folder: Path, used_mib: int) -> Reading:
        errors, sensors = amd_sysfs.errors(folder), amd_sysfs.sensors(folder) or folder / "hwmon"
        power_uw = sysfs.number(sensors / "power1_average") or sysfs.number(sensors / "power1_input")
        return Reading(
            uuid=device.uuid,
            used_mib=used_mib,
            free_mib=max(device.memory_mib - used_mib, 0),
            utilization_percent=_float(sysfs.number(folder / "gpu_busy_percent")),
            memory_utilization_percent=_float(sysfs.number(folder / "mem_busy_percent")),
            temperature_c=amd_sysfs.hottest(sensors),
            processes=amd_sysfs.processes(self._root, node.gpu_id),
            ecc_errors=errors.get("ue"),
            ecc_corrected=errors.get("ce"),
            power_w=None if power_uw is None else power_uw / 1e6,
            sm_clock_mhz=_megahertz(sysfs.number(sensors / "freq1_input")),
            memory_clock_mhz=_megahertz(sysfs.number(sensors / "freq2_input")),
            pcie_replays=sysfs.number(folder / "pcie_replay_count"),
        )

    def _link(self, a: Device, b: Device, xgmi_gbps: int | None) -> Link | None:
        if xgmi_gbps is not None:
            return Link(a.uuid, b.uuid, "XGMI", xgmi_gbps, "XGMI")
        if a.numa < 0 or b.numa < 0:
            return None
        if a.numa != b.numa:
            return Link(a.uuid, b.uuid, "System", 0, "SYS")
        slots = (amd_sysfs.pcie_gbps(pci.folder(self._root, each.pci_bus_id)) for each in (a, b))
        return Link(a.uuid, b.uuid, "PCIe", min(slots), "NODE")

    def _token(self, uuid: str) -> str:
        """Return what the runtime calls a device: its UUID if it has one, else its number."""
        node = self._nodes.get(uuid)
        return uuid if node is None or uuid == _uuid(node) else str(node.place)


def _named(nodes: Sequence[Node]) -> dict[str, Node]:
    """Return the GPUs by UUID."""
    times = Counter(node.unique_id for node in nodes)
    return {
        _uuid(node)
        if node.unique_id and times[node.unique_id] == 1
        else f"PCI-{node.address}-{node.gpu_id}": node
        for node in nodes
    }


def _uuid(node: Node) -> str:
    return f"GPU-{node.unique_id:016x}"


def _float(number: int | None) -> float | None:
    return None if number is None else float(number)


def _megahertz(hertz: int | None) -> int | None:
    return None if hertz is None else hertz // 1_000_000
