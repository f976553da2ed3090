"""A node with its devices: from its agent's report, else from its annotation, else from its GPU count.

The scheduler calls `node_of` whenever a node or its report changed. A report wins over everything else, also
over the node's own count. Without one, a node whose devices cannot be numbered is barred, with the reason. So
is a node with anything that cannot be counted, and one that an administrator keeps for a device plugin.
Device slices are left out: no request can ask for them yet.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpu_orchestrator.api import names, nodedevices, translate
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus, NodeDevice
from gpu_orchestrator.api.kubernetes import Node as WireNode
from gpu_orchestrator.api.nodedevices import DeviceEntry
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.errors import CoreError
from gpu_orchestrator.core.node import Node, node

PLUGIN_UNREPORTED = "have pods of a device plugin and no agent that reports which devices they use"


def node_of(seen: WireNode, report: GpuNodeStatus | None = None, *, barred: str = "") -> Node:
    """Return the node for the core. `barred`: why none of its devices may be given now."""
    known = translate.counted_node(seen)
    try:
        if not known.barred:
            known = _unreported(known, seen) if report is None else _reported(known, report)
    except (BadQuantity, CoreError) as error:
        known = translate.uncounted_node(seen, str(error))
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


def _reported(known: Node, report: GpuNodeStatus) -> Node:
    status = report.status
    parents = {device.mig.parent for device in status.devices if device.mig}
    whole = [device for device in status.devices if not device.mig]
    links = {
        (link.pair[0], link.pair[1]): link.bandwidth_gbps for link in status.links if len(link.pair) == 2
    }
    gbps = {device.id: device.bandwidth_gbps for device in whole}
    made = _with(known, [_device(each, sliced=each.uuid in parents) for each in whole], gbps, links or None)
    fabric = status.fabric
    return replace(made, rdma_ports=fabric.ports if fabric.gpu_direct_rdma else 0, cufile=fabric.cu_file)


def _device(seen: NodeDevice, *, sliced: bool) -> Device:
    """A GPU that is cut into slices cannot be given whole."""
    return Device(
        seen.id,
        uuid=seen.uuid,
        vendor=seen.vendor or "nvidia",
        model=seen.model,
        memory_mib=seen.memory_mib,
        healthy=seen.health == "Healthy" and not sliced,
        island=-1 if seen.island is None else seen.island,
        numa=-1 if seen.numa_node is None else seen.numa_node,
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
