"""Devices that are described instead of found: in one line (`4xL4:24GiB`), or in a JSON file.

{"devices": [{"count": 8, "vendor": "nvidia", "model": "H100", "memory_mib": 81559, "numa": 0}],
 "links": [{"between": [0, 1, 2, 3, 4, 5, 6, 7], "kind": "NVLink", "bandwidth_gbps": 900}],
 "fabric": {"hcas": [{"name": "mlx5_0", "ports": 1, "speed_gbps": 400}], "gpu_direct_rdma": true}}
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import msgspec

from gpu_orchestrator.adapters.gpus.fabric import Fabric, Hca
from gpu_orchestrator.adapters.gpus.gpu import Device, Link, Slice
from gpu_orchestrator.api.gpunodestatus import LinkType

MOST = 1024
NO_FABRIC = Fabric()
_WORDS = re.compile(r"(?P<count>\d+)(x(?P<model>[^:,]+):(?P<size>\d+)(?P<unit>GiB|MiB))?")


class BadDescription(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Described:
    """Links name devices by UUID, as devices do their parents. A UUID that is a number stands for the device
    of that number until `identified`."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    fabric: Fabric = NO_FABRIC


class DescribedSlice(msgspec.Struct, forbid_unknown_fields=True):
    profile: str
    parent: str


class DescribedDevice(msgspec.Struct, forbid_unknown_fields=True):
    """One device, or `count` equal ones. Without a UUID each gets one that stays the same in its folder."""

    count: int = 1
    uuid: str = ""
    vendor: str = "simulated"
    model: str = "Simulated"
    memory_mib: int = 24576
    driver_version: str = "simulated"
    numa: int = -1
    pci_bus_id: str = ""
    mig: DescribedSlice | None = None


class DescribedLinks(msgspec.Struct, forbid_unknown_fields=True):
    """All pairs of these devices, by number, that no entry before it has."""

    between: list[int]
    kind: LinkType
    bandwidth_gbps: int = 0
    label: str = ""


class DescribedFabric(msgspec.Struct, forbid_unknown_fields=True):
    hcas: list[Hca] = []
    gpu_direct_rdma: bool = False
    cu_file: bool = False


class DevicesFile(msgspec.Struct, forbid_unknown_fields=True):
    devices: list[DescribedDevice]
    links: list[DescribedLinks] = []
    fabric: DescribedFabric = msgspec.field(default_factory=DescribedFabric)


def from_words(words: str) -> Described:
    """Read `4`, or `4xL4:24GiB,2xH200:141GiB`."""
    found: list[DescribedDevice] = []
    for part in words.split(","):
        match = _WORDS.fullmatch(part.strip())
        if match is None or not 0 < int(match["count"]) <= MOST:
            raise BadDescription(
                f"'{part}' does not describe GPUs; write a count such as 4, or 4xL4:24GiB,2xH200:141GiB"
            )
        size = int(match["size"] or 24) * (1 if match["unit"] == "MiB" else 1024)
        count, model = int(match["count"]), match["model"] or "Simulated"
        found.append(DescribedDevice(count=count, model=model, memory_mib=size))
    return Described(tuple(_devices(found)))


def from_file(path: Path) -> Described:
    """Read a file as above."""
    try:
        read = msgspec.json.decode(path.read_bytes(), type=DevicesFile)
    except (OSError, msgspec.DecodeError) as error:
        raise BadDescription(f"{path} does not describe devices: {error}") from error
    devices, known = tuple(_devices(read.devices)), range(sum(each.count for each in read.devices))
    if not devices or len(devices) > MOST or any(each.count < 1 for each in read.devices):
        raise BadDescription(f"{path} describes {len(devices)} devices; describe 1 to {MOST}")
    uuids = [device.uuid for device in devices]
    if len(set(uuids)) < len(uuids):
        raise BadDescription(f"{path} gives two devices one UUID; a UUID belongs to one device")
    if strange := {number for each in read.links for number in each.between} - set(known):
        raise BadDescription(
            f"{path} links device {min(strange)}, but devices are numbered 0 to {len(known) - 1}"
        )
    fabric = Fabric(tuple(read.fabric.hcas), read.fabric.gpu_direct_rdma, read.fabric.cu_file)
    return Described(devices, tuple(_links(read.links, devices)), fabric)


def identified(described: Described, place: str) -> Described:
    """Return it with a UUID for each device that has none, made of its number and `place`."""
    names = {device.uuid: _uuid(device, place) for device in described.devices}
    links = [replace(link, a=names[link.a], b=names[link.b]) for link in described.links]
    devices = [replace(device, uuid=names[device.uuid]) for device in described.devices]
    return replace(described, devices=tuple(devices), links=tuple(links))


def _uuid(device: Device, place: str) -> str:
    if not device.uuid.isdecimal():
        return device.uuid
    return f"{'MIG' if device.mig else 'GPU'}-{uuid5(NAMESPACE_URL, f'{place}/{device.index}')}"


def _devices(described: list[DescribedDevice]) -> Iterator[Device]:
    number = 0
    for each in described:
        for _ in range(each.count):
            yield Device(
                index=number,
                uuid=each.uuid or str(number),
                vendor=each.vendor,
                model=each.model,
                memory_mib=each.memory_mib,
                driver_version=each.driver_version,
                numa=each.numa,
                pci_bus_id=each.pci_bus_id,
                mig=Slice(each.mig.profile, each.mig.parent) if each.mig else None,
            )
            number += 1


def _links(described: list[DescribedLinks], devices: tuple[Device, ...]) -> Iterator[Link]:
    done: set[tuple[int, int]] = set()
    for each in described:
        pairs = set(combinations(sorted(set(each.between)), 2)) - done
        for a, b in sorted(pairs):
            yield Link(devices[a].uuid, devices[b].uuid, each.kind, each.bandwidth_gbps, each.label)
        done |= pairs
