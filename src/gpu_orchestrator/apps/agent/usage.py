"""Which pods use a device: those whose processes are on it, and those that the kubelet gave it to. Pure."""

from collections.abc import Callable, Iterable, Mapping

from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.agent.survey import Look

Users = dict[str, frozenset[str]]
"""By UUID of a device: UIDs of pods."""

_REPLICA = "::"
"""NVIDIA's device plugin names the shares of a time-sliced GPU `<uuid>::<number>`."""


def of_processes(look: Look, without: str | None = None) -> Users:
    """Return the pods whose processes are on a device, also pods that are deleted and not yet dead. `without`
    is the agent's own pod: a daemon that serves the others there uses no device for itself."""
    users: Users = {}
    for uuid, reading in look.readings.items():
        pods = {look.pods[each.pid] for each in reading.processes if each.pid in look.pods} - {without}
        if pods:
            users[uuid] = frozenset(each for each in pods if each)
    return users


def of_kubelet(look: Look, given: Iterable[GivenDevices], uid_of: Callable[[str, str], str | None]) -> Users:
    """Return the pods that the kubelet gave a device to. `uid_of` returns the UID of a pod by namespace and
    name; None if it is not known, and then the pod is left out."""
    uuids = _by_plugin_name(look)
    users: dict[str, set[str]] = {}
    for each in given:
        uid = uid_of(each.namespace, each.pod) if names.is_gpu_resource(each.resource) else None
        for name in each.ids if uid else ():
            if uid and (uuid := uuids.get(name.partition(_REPLICA)[0].lower())):
                users.setdefault(uuid, set()).add(uid)
    return {uuid: frozenset(found) for uuid, found in users.items()}


def _by_plugin_name(look: Look) -> dict[str, str]:
    """Return the UUID of each device by the names that device plugins have for it: UUID or PCI address, the
    latter with a domain of four digits or eight."""
    found: dict[str, str] = {}
    for device in look.devices:
        found[device.uuid.lower()] = device.uuid
        if device.pci_bus_id and not device.mig:
            address = device.pci_bus_id.lower()
            found[address] = found[address[-12:]] = device.uuid
    return found


def joined(*all_users: Mapping[str, frozenset[str]]) -> Users:
    uuids = {uuid for users in all_users for uuid in users}
    return {uuid: frozenset().union(*(users.get(uuid, ()) for users in all_users)) for uuid in uuids}
