"""The GPUs of a machine as JSON, as a table and as a matrix of links. Pure: what was read comes in."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Link, Reading
from gpu_orchestrator.api import topology
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.cli.tables import Column, state_colour
from gpu_orchestrator.cli.worker_rows import gib

SELF = "X"
LEGEND = {
    "NV": "NV#: NVLink, and how many of them",
    "XGMI": "XGMI: AMD's link from GPU to GPU",
    "PIX": "PIX: PCIe, through one switch",
    "PXB": "PXB: PCIe, through several switches",
    "PHB": "PHB: PCIe, through the CPU's host bridge",
    "NODE": "NODE: PCIe, within a NUMA node",
    "SYS": "SYS: between NUMA nodes; no bandwidth is promised",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a machine has, read once."""

    devices: tuple[Device, ...]
    readings: tuple[Reading, ...]
    links: tuple[Link, ...]
    fabric: Fabric
    notes: tuple[str, ...] = ()


def as_json(seen: Seen) -> dict[str, Any]:
    islands = _islands(seen)
    pairs = zip(seen.devices, seen.readings, strict=True)
    return {
        "devices": [_device(device, now, seen.links, islands) for device, now in pairs],
        "links": [asdict(link) for link in seen.links],
        "fabric": asdict(seen.fabric),
        "notes": list(seen.notes),
    }


def table(seen: Seen) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows of `devices`."""
    columns = [
        Column("DEVICE"),
        Column("STATE", paint=_colour),
        Column("MODEL", 1),
        Column("MIG", 6),
        Column("MEMORY", 2),
        Column("IN USE", 3),
        Column("BUSY", 5),
        Column("TEMP", 4),
        Column("POWER", 7),
        Column("ISLAND", 6),
        Column("GB/S", 6),
        Column("NUMA", 8),
        Column("PROCESSES", 8),
        Column("UUID", 9),
        Column("PROBLEM", 5, free=True, below=True),
    ]
    rows = [_row(each) for each in as_json(seen)["devices"]]
    kept = [
        at
        for at, each in enumerate(columns)
        if each.head not in {"MIG", "PROBLEM"} or any(r[at] for r in rows)
    ]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def matrix(seen: Seen) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows that say how every pair is connected, as `nvidia-smi topo -m` does."""
    names = [f"GPU{device.index}" for device in seen.devices]
    label = {frozenset((link.a, link.b)): link.label or link.kind for link in seen.links}
    islands = _islands(seen)
    columns = [
        Column(""),
        *(Column(name) for name in names),
        Column("ISLAND"),
        Column("GB/S"),
        Column("NUMA"),
    ]
    rows = [
        [
            name,
            *(
                SELF if device is other else label.get(frozenset((device.uuid, other.uuid)), "")
                for other in seen.devices
            ),
            _island(device, islands),
            topology.best_peer(device.uuid, seen.links) or "",
            device.numa if device.numa >= 0 else "",
        ]
        for name, device in zip(names, seen.devices, strict=True)
    ]
    return columns, rows


def legend(seen: Seen) -> list[str]:
    """Explain the words of the matrix that appear in it."""
    used = {link.label.rstrip("0123456789") for link in seen.links}
    return [
        *(words for label, words in LEGEND.items() if label in used),
        "GB/S: to the best peer, both directions added",
    ]


def fabric(seen: Seen) -> str:
    """Return the network adapters in a line; empty if there is nothing to say."""
    found = [f"{hca.name} ({hca.ports} × {hca.speed_gbps} Gbit/s)" for hca in seen.fabric.hcas if hca.ports]
    can = ["GPUDirect RDMA"] if seen.fabric.gpu_direct_rdma else []
    can += ["cuFile"] if seen.fabric.cu_file else []
    return ", ".join([*found, *can])


def _device(
    device: Device, now: Reading, links: Sequence[Link], islands: Mapping[str, int]
) -> dict[str, Any]:
    known, read = asdict(device), asdict(now)
    return {
        **known,
        **{name: value for name, value in read.items() if name != "uuid"},
        "island": islands.get(device.uuid),
        "bandwidth_gbps": topology.best_peer(device.uuid, links),
        "health": "Unhealthy" if now.problem else "Healthy",
    }


def _row(device: Mapping[str, Any]) -> list[object]:
    return [
        device["index"],
        "faulty" if device["problem"] else "ok",
        device["model"],
        device["mig"]["profile"] if device["mig"] else "",
        gib(device["memory_mib"] * MIB),
        "" if device["problem"] else gib(device["used_mib"] * MIB),
        _unit(device["utilization_percent"], " %"),
        _unit(device["temperature_c"], " °C"),
        _unit(device["power_w"], " W"),
        "" if device["island"] is None else device["island"],
        device["bandwidth_gbps"] or "",
        device["numa"] if device["numa"] >= 0 else "",
        len(device["processes"]),
        device["uuid"],
        device["problem"],
    ]


def _unit(number: float | None, unit: str) -> str:
    return "" if number is None else f"{number:.0f}{unit}"


def _colour(word: str) -> str:
    return "red" if word == "faulty" else state_colour(word)


def _islands(seen: Seen) -> dict[str, int]:
    """Instances of a GPU are in no island: they have no links of their own."""
    return topology.islands([device.uuid for device in seen.devices if device.mig is None], seen.links)


def _island(device: Device, islands: Mapping[str, int]) -> object:
    return islands.get(device.uuid, "")
