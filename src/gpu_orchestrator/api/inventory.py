"""A node with its devices: from its agent's report, else from its annotation, else from its GPU count.

The scheduler calls `node_of` whenever a node or its report changed. A report wins over everything else, also
over the node's own count. Without one, a node whose devices cannot be numbered is barred, with the reason. So
is a node with anything that cannot be counted, and one that an administrator keeps for a device plugin.
Slices of a GPU (MIG) are devices of their own; the GPU that they are part of is then not given whole.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from gpu_orchestrator.api import names, nodedevices, translate
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus, NodeDevice
from gpu_orchestrator.api.kubernetes import Node as WireNode
from gpu_orchestrator.api.nodedevices import DeviceEntry
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.device import WHOLE, Device, profile_milli
from gpu_orchestrator.core.errors import CoreError
from gpu_orchestrator.core.node import Node, node

PLUGIN_UNREPORTED = "have pods of a device plugin and no agent that reports which devices they use"
NOT_REPORTED = "have an agent that has not reported their GPUs yet"
DUPLICATES = (
    "have GPUs whose UUIDs another node reports as well: cordon the node whose report is wrong, or delete "
    "its GpuNodeStatus"
)


def node_of(
    seen: WireNode,
    report: GpuNodeStatus | None = None,
    *,
    barred: str = "",
    duplicates: Collection[int] = (),
    is_live: bool = True,
) -> Node:
    """Return the node for the core. `barred`: why none of its devices may be given now; `duplicates`: those
    of its devices that another node reports as well, which are not given either; `is_live`: whether its agent
    is, whose MPS daemons end with it."""
    known = translate.counted_node(seen)
    try:
        if not known.barred:
            known = _unreported(known, seen) if report is None else _reported(known, report, duplicates)
    except (BadQuantity, CoreError) as error:
        known = translate.uncounted_node(seen, str(error))
    known = _sharing(known, has_mps=is_live and report is not None and report.status.mps is not None)
    if nodedevices.mode(seen) == names.PLUGIN_MODE:
        return replace(known, barred=nodedevices.KEPT_FOR_PLUGIN)
    return replace(known, barred=barred) if barred and not known.barred else known


def _unreported(known: Node, seen: WireNode) -> Node:
    try:
        entry = nodedevices.entry(seen)
    except nodedevices.BadEntry:
        return replace(known, barred=nodedevices.UNREADABLE)
    why = nodedevices.unnumbered(seen, translate.gpu_resource(seen), entry)
    if entry is not None and (entry.count or not known.devices):
        devices = translate.described(seen, entry, _ids(entry))
        known = _with(known, devices, dict.fromkeys(entry.island_of, entry.bandwidth_gbps))
    return replace(known, barred=why) if why else known


def _ids(entry: DeviceEntry) -> list[int]:
    return sorted(set(entry.island_of) | set(range(entry.count)))


def milligpu(node: Node) -> int | None:
    """Return what the node counts of `gpu.scheduling/milligpu`: 1000 for each healthy GPU, and for a healthy
    slice its part. None if it counts nothing: its devices are not for claims, or are not numbered, or it has
    none."""
    if node.barred or not node.devices or node.label(names.NODE_MODE) == names.PLUGIN_MODE:
        return None
    return sum(device.milli for device in node.devices if device.healthy)


def _reported(known: Node, report: GpuNodeStatus, duplicates: Collection[int]) -> Node:
    status = report.status
    unusable = _unusable(status.devices)
    links = {
        (link.pair[0], link.pair[1]): link.bandwidth_gbps for link in status.links if len(link.pair) == 2
    }
    gbps = {device.id: device.bandwidth_gbps for device in status.devices}
    barred = DUPLICATES if status.devices and len(duplicates) == len(status.devices) else ""
    kept = () if barred else duplicates  # "no healthy GPU" would hide the reason
    devices = [
        _device(each, usable=each.uuid not in unusable and each.id not in kept) for each in status.devices
    ]
    made, fabric = _with(known, devices, gbps, links or None), status.fabric
    return replace(
        made,
        barred=barred,
        rdma_ports=fabric.ports if fabric.gpu_direct_rdma else 0,
        cufile=fabric.cu_file,
    )


def _unusable(devices: Iterable[NodeDevice]) -> set[str]:
    """Return the UUIDs of GPUs that are cut into slices, and of the slices of a GPU that is not healthy."""
    slices = [(each.uuid, each.mig.parent) for each in devices if each.mig]
    sick = {each.uuid for each in devices if each.health != "Healthy"}
    return {parent for _, parent in slices} | {uuid for uuid, parent in slices if parent in sick}


def _sharing(known: Node, *, has_mps: bool) -> Node:
    """Return the node with the label that pods need whose shares MPS holds, if its agent keeps daemons. The
    label of the Node itself counts for nothing: it starts no daemon."""
    if not has_mps and not known.label(names.SHARING):
        return known
    others = [each for each in known.labels if each[0] != names.SHARING]
    return replace(known, labels=tuple(sorted([*others, *([(names.SHARING, names.MPS)] if has_mps else [])])))


def _device(seen: NodeDevice, *, usable: bool) -> Device:
    """A GPU that is cut into slices, or a device that another node has, cannot be given."""
    profile = seen.mig.profile if seen.mig else ""
    return Device(
        seen.id,
        uuid=seen.uuid,
        vendor=seen.vendor or "nvidia",
        model=seen.model,
        memory_mib=seen.memory_mib,
        healthy=seen.health == "Healthy" and usable,
        island=-1 if seen.island is None else seen.island,
        numa=-1 if seen.numa_node is None else seen.numa_node,
        profile=profile,
        milli=profile_milli(profile) if profile else WHOLE,
    )


def _with(
    known: Node,
    devices: Sequence[Device],
    gbps: dict[int, int],
    links: dict[tuple[int, int], int] | None = None,
) -> Node:
    made = node(known.name, devices, links=links, gbps=gbps)
    return replace(known, devices=made.devices, topology=made.topology)


def used_by(report: GpuNodeStatus | None) -> dict[str, tuple[int, ...]]:
    """Return which devices each pod UID uses, as the agent reports it."""
    used: dict[str, tuple[int, ...]] = {}
    for device in report.status.devices if report else ():
        for uid in device.in_use_by:
            used[uid] = (*used.get(uid, ()), device.id)
    return used


def unhealthy(report: GpuNodeStatus | None) -> dict[int, str]:
    """Return the devices that the agent has found unhealthy, with the reasons. Those whose health it does
    not know are given to no new pod; they do not end one."""
    devices = report.status.devices if report else ()
    return {each.id: each.unhealthy_reason for each in devices if each.health == "Unhealthy"}
