"""What the agent saw → the status that it publishes. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Reading
from gpu_orchestrator.api import gpunodestatus, timestamps, topology
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusStatus, MigSlice, NodeDevice, NodeFabric
from gpu_orchestrator.api.topology import Link
from gpu_orchestrator.apps.agent.health import HEALTHY, Condition

LONGEST_REASON = 1024
MOST_USERS = 1024
_VENDORS = {"amd": "amd", "intel": "intel"}


@dataclass(frozen=True, slots=True)
class Look:
    """What was there at one moment. `pods` has the UID of the pod of each process that is in one; `began` is
    when the agent asked: a driver may take a while to answer. `withheld` are GPUs that give no device now, by
    UUID, with the reason."""

    devices: tuple[Device, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    fabric: Fabric = field(default_factory=Fabric)
    pods: Mapping[int, str] = field(default_factory=dict)
    began: float = float("-inf")
    withheld: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Findings:
    """What the agent makes of it, by UUID: ids, conditions, and the UIDs of the pods that use a device.
    `lost` are devices that were published and are not listed now, as they were published; `published` are all
    devices as they were published."""

    ids: Mapping[str, int]
    conditions: Mapping[str, Condition]
    users: Mapping[str, frozenset[str]]
    lost: tuple[NodeDevice, ...] = ()
    published: Mapping[str, NodeDevice] = field(default_factory=dict)


def survey(look: Look, found: Findings, now: datetime) -> GpuNodeStatusStatus:
    """Return the status of the node."""
    here = [device for device in look.devices if device.uuid in found.ids]
    islands = topology.islands([each.uuid for each in here], look.links)
    devices = [_device(each, look, found, islands[each.uuid]) for each in here]
    devices += [_lost(each, found) for each in found.lost]
    devices = [_judged(each, found.published.get(each.uuid), found.conditions, now) for each in devices]
    devices.sort(key=lambda device: device.id)
    return GpuNodeStatusStatus(
        total=len(devices),
        healthy=sum(each.health == "Healthy" for each in devices),
        in_use=sum(bool(each.in_use_by) for each in devices),
        devices=devices,
        links=sorted(_links(look.links, found.ids), key=lambda link: link.pair),
        fabric=_fabric(look.fabric),
        driver=next((each.driver_version for each in here if each.driver_version), ""),
        observed_at=timestamps.seconds(now),
    )


def unseen(
    before: GpuNodeStatusStatus, conditions: Mapping[str, Condition], now: datetime
) -> GpuNodeStatusStatus:
    """Return the status of devices that cannot be read: as it was, but for their health."""
    devices = [_judged(each, each, conditions, now) for each in before.devices]
    healthy = sum(each.health == "Healthy" for each in devices)
    return msgspec.structs.replace(before, devices=devices, healthy=healthy)


def _judged(
    device: NodeDevice, before: NodeDevice | None, conditions: Mapping[str, Condition], now: datetime
) -> NodeDevice:
    """Return the device with its health and what came before it. Times stay as they were `before`: they
    change with the health alone."""
    condition, moment = conditions.get(device.uuid, HEALTHY), timestamps.seconds(now)
    since, recovered = (before.unhealthy_since, before.recovered_at) if before else ("", "")
    if condition.is_healthy and before is not None and before.health == "Unhealthy":
        recovered = moment
    return msgspec.structs.replace(
        device,
        health="Healthy" if condition.is_healthy else "Unhealthy",
        unhealthy_reason=condition.fault.reason[:LONGEST_REASON] if condition.fault else "",
        unhealthy_since="" if condition.is_healthy else since or moment,
        recovered_at=recovered,
        relapses=condition.relapses,
    )


def _device(device: Device, look: Look, found: Findings, island: int) -> NodeDevice:
    reading = look.readings.get(device.uuid) or Reading(device.uuid, 0, 0)
    return NodeDevice(
        id=found.ids[device.uuid],
        uuid=device.uuid,
        vendor=_VENDORS.get(device.vendor, "nvidia"),  # type: ignore[arg-type]  # one of the three
        model="-".join(device.model.split()),
        memory_mib=device.memory_mib,
        bandwidth_gbps=topology.best_peer(device.uuid, look.links),
        island=island,
        numa_node=device.numa,
        pci_bus_id=device.pci_bus_id,
        mig=MigSlice(device.mig.profile, device.mig.parent) if device.mig else None,
        in_use_by=sorted(found.users.get(device.uuid, ()))[:MOST_USERS],
        processes=len(reading.processes),
        used_memory_mib=reading.used_mib,
        utilization=_whole(reading.utilization_percent, 0, 100),
        temperature_c=_whole(reading.temperature_c, -100, 1000),
    )


def _lost(device: NodeDevice, found: Findings) -> NodeDevice:
    """Return a device that is not listed any more: as it was, without what changes."""
    users = sorted(found.users.get(device.uuid, ()))[:MOST_USERS]
    return msgspec.structs.replace(steady(device), in_use_by=users)


def _whole(value: float | None, least: int, most: int) -> int:
    return min(max(round(value or 0), least), most)


def _links(links: Iterable[Link], ids: Mapping[str, int]) -> Iterable[gpunodestatus.Link]:
    for link in links:
        if link.a in ids and link.b in ids:
            pair = sorted((ids[link.a], ids[link.b]))
            yield gpunodestatus.Link(pair, link.kind, link.bandwidth_gbps)


def _fabric(fabric: Fabric) -> NodeFabric:
    return NodeFabric(
        hcas=[gpunodestatus.Hca(each.name, each.ports, each.speed_gbps) for each in fabric.hcas],
        ports=sum(each.ports for each in fabric.hcas),
        speed_gbps=max((each.speed_gbps for each in fabric.hcas), default=0),
        gpu_direct_rdma=fabric.gpu_direct_rdma,
        cu_file=fabric.cu_file,
    )


def differs(old: GpuNodeStatusStatus, new: GpuNodeStatusStatus) -> bool:
    """Return True if the status changed by more than readings that change all the time."""
    return _without_noise(old) != _without_noise(new)


def _without_noise(status: GpuNodeStatusStatus) -> GpuNodeStatusStatus:
    devices = [steady(device) for device in status.devices]
    return msgspec.structs.replace(status, devices=devices, observed_at="")


def steady(device: NodeDevice) -> NodeDevice:
    """Return the device without what changes all the time."""
    return msgspec.structs.replace(device, processes=0, used_memory_mib=0, utilization=0, temperature_c=0)
