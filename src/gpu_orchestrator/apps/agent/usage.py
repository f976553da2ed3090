"""Which pods use a device: those whose processes are on it, and those that the kubelet gave it to. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping

from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent.survey import Look

Users = dict[str, frozenset[str]]
"""By UUID of a device: UIDs of pods."""
Name = tuple[str, str]
"""Namespace and name of a pod."""
LONGEST_UID = 128

_REPLICA = re.compile("::|/vgpu")
"""NVIDIA's device plugin names the shares of a time-sliced GPU `<uuid>::<number>`, GKE's `nvidia0/vgpu1`."""


def of_processes(look: Look, without: str | None = None) -> Users:
    """Return the pods whose processes are on a device, also pods that are deleted and not yet dead. `without`
    is the agent's own pod: a daemon that serves the others there uses no device for itself."""
    users: Users = {}
    for uuid, reading in look.readings.items():
        pods = {look.pods[each.pid] for each in reading.processes if each.pid in look.pods} - {without}
        if pods:
            users[uuid] = frozenset(each for each in pods if each)
    return users


def of_kubelet(look: Look, given: Iterable[GivenDevices]) -> dict[str, list[Name]]:
    """Return the pods that the kubelet gave a device to, by namespace and name."""
    users: dict[str, list[Name]] = {}
    for pod, uuid in _placed(look, given):
        if uuid and pod not in users.setdefault(uuid, []):
            users[uuid].append(pod)
    return users


def unplaced(look: Look, given: Iterable[GivenDevices]) -> set[Name]:
    """Return the pods that got devices under names of which none is known here: those of a plugin that has
    names of its own. Which devices they may use, nobody can say."""
    placed = list(_placed(look, given))
    return {pod for pod, _ in placed} - {pod for pod, uuid in placed if uuid}


def _placed(look: Look, given: Iterable[GivenDevices]) -> Iterator[tuple[Name, str]]:
    """Return each pod and device; the UUID is empty if the name of the device is not known."""
    uuids = _by_plugin_name(look)
    for each in given:
        if names.is_gpu_resource(each.resource):
            for name in each.ids:
                yield (each.namespace, each.pod), uuids.get(_REPLICA.split(name.lower())[0], "")


def nameless(pod: Name) -> str:
    """Return what stands in a report for a pod whose UID is not known."""
    return "/".join(pod)[:LONGEST_UID]


def _by_plugin_name(look: Look) -> dict[str, str]:
    """Return the UUID of each device by the names that device plugins have for it: UUID, PCI address with a
    domain of four digits or eight, or as GKE's does, that of NVIDIA's device file."""
    found: dict[str, str] = {}
    for device in look.devices:
        found[device.uuid.lower()] = device.uuid
        if device.pci_bus_id and not device.mig:
            address = device.pci_bus_id.lower()
            found[address] = found[address[-12:]] = device.uuid
        if device.minor >= 0 and not device.mig:
            found[f"nvidia{device.minor}"] = device.uuid
    return found


def joined(*all_users: Mapping[str, frozenset[str]]) -> Users:
    uuids = {uuid for users in all_users for uuid in users}
    return {uuid: frozenset().union(*(users.get(uuid, ()) for users in all_users)) for uuid in uuids}
