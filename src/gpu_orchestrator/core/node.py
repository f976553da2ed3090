"""A node (or worker) as observed: its devices and links, other resources, and who may use it.

`node(...)` builds one with defaults; the cluster compares nodes to notice that nothing changed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_orchestrator.core import limits, topology
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.request import pairs
from gpu_orchestrator.core.topology import Topology

NO_DEVICES = Topology()
SOFT_EFFECT = "PreferNoSchedule"
"""A taint of this effect keeps nothing away; other nodes are preferred."""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Node:
    """`barred` is why no device of this node may be given now, whatever is free; empty if there is no
    reason. `labels` are sorted. `volume_limits`: how many volumes of a driver can be attached."""

    name: str
    devices: tuple[Device, ...] = ()
    topology: Topology = NO_DEVICES
    resources: tuple[tuple[str, int], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    schedulable: bool = True
    barred: str = ""
    rdma_ports: int = 0
    cufile: bool = False
    volume_limits: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        ids = tuple(device.id for device in self.devices)
        if ids != self.topology.ids:
            raise InvalidRequest(
                f"node {self.name} has devices {ids}, its topology speaks of {self.topology.ids}"
            )
        if not self._can_be_counted():
            limits.check(f"node {self.name} has", self._numbers())

    def label(self, key: str) -> str | None:
        """Return the value of a label; None if the node does not have it."""
        at = bisect_left(self.labels, (key,))
        found = self.labels[at] if at < len(self.labels) else ("", "")
        return found[1] if found[0] == key else None

    def _can_be_counted(self) -> bool:
        """Return True if no number is out of range. If one may be, `_numbers` names it."""
        most, gbps = limits.MOST_MIB, self.topology.levels[0] if self.topology.levels else 0
        return (
            len(self.devices) <= limits.MOST_DEVICES
            and 0 <= self.rdma_ports <= limits.MOST_NUMBER
            and 0 <= gbps <= limits.MOST_NUMBER
            and all(0 <= amount <= limits.MOST_AMOUNT for _, amount in self.resources)
            and all(0 <= each.memory_mib <= most and 0 <= each.taken_mib <= most for each in self.devices)
        )

    def _numbers(self) -> Iterator[tuple[str, int, int]]:
        yield "devices", len(self.devices), limits.MOST_DEVICES
        yield "RDMA ports", self.rdma_ports, limits.MOST_NUMBER
        yield "GB/s", self.topology.levels[0] if self.topology.levels else 0, limits.MOST_NUMBER
        for name, amount in self.resources:
            yield name, amount, limits.MOST_AMOUNT
        for device in self.devices:
            yield f"MiB on device {device.id}", device.memory_mib, limits.MOST_MIB
            yield f"MiB taken on device {device.id}", device.taken_mib, limits.MOST_MIB


def node(
    name: str,
    gpus: int | Iterable[Device] = 0,
    *,
    links: Mapping[tuple[int, int], int] | None = None,
    gbps: Mapping[int, int] | None = None,
    resources: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[Taint] = (),
    vendor: str = "nvidia",
    model: str = "",
    memory_mib: int = 0,
    **rest: Any,
) -> Node:
    """Build a node. `gpus` is a number (equal devices 0, 1, …) or the devices themselves. They are linked by
    `links` (pairs of ids to GB/s), or by each device's island and its best bandwidth `gbps` (id to GB/s)."""
    devices = _devices(gpus, Device(0, vendor=vendor, model=model, memory_mib=memory_mib))
    return Node(
        name,
        devices=devices,
        topology=_topology(devices, links, gbps),
        resources=pairs(resources or {}),
        labels=tuple(sorted((labels or {}).items())),
        taints=tuple(taints),
        **rest,
    )


def _devices(gpus: int | Iterable[Device], like: Device) -> tuple[Device, ...]:
    if isinstance(gpus, int):
        return tuple(
            Device(i, vendor=like.vendor, model=like.model, memory_mib=like.memory_mib) for i in range(gpus)
        )
    devices = tuple(sorted(gpus, key=lambda device: device.id))
    if len({device.id for device in devices}) != len(devices):
        raise InvalidRequest(f"two devices have the same id: {[device.id for device in devices]}")
    return devices


def _topology(
    devices: tuple[Device, ...],
    links: Mapping[tuple[int, int], int] | None,
    gbps: Mapping[int, int] | None,
) -> Topology:
    ids = [device.id for device in devices]
    numa = {device.id: device.numa for device in devices}
    islands = {device.id: device.island for device in devices if device.island >= 0}
    if links is None and (gbps or islands):
        return topology.from_islands(ids, islands=islands, gbps=gbps or {}, numa=numa)
    return topology.from_links(ids, links or {}, islands=islands, numa=numa)
