"""Give each device an id that stays with its UUID. Pure.

Leases, claims and annotations name devices by id. A driver that numbers its devices again after one was lost
must not change what those mean, so the ids are those that the agent published before.
"""

from collections.abc import Iterable, Mapping

from gpu_orchestrator.adapters.gpus.gpu import Device
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.core.limits import MOST_DEVICES


def published(report: GpuNodeStatus | None) -> dict[str, int]:
    """Return the ids of a report, by UUID."""
    return {each.uuid: each.id for each in report.status.devices if each.uuid} if report else {}


def assign(known: Mapping[str, int], devices: Iterable[Device]) -> dict[str, int]:
    """Return the ids of all devices that are known or there. A new one gets its index, or else the lowest id
    that no other has; none if all are taken."""
    ids, taken = dict(known), set(known.values())
    for device in devices:
        if device.uuid in ids:
            continue
        free = (each for each in (device.index, *range(MOST_DEVICES)) if each not in taken)
        if (number := next(free, None)) is not None:
            ids[device.uuid] = number
            taken.add(number)
    return ids
