"""The Lease of one device: who holds it, written so that every scheduler reads the same.

An exclusive holder is the Lease's `holderIdentity`. Shared holders stand in one annotation; the identity is
then the word `shared`, so an old reader sees that the device is taken. Every entry carries the moment it was
made: an entry made anew by somebody else is another entry.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec, Pod
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import WHOLE, Device

SHARED = "shared"


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """One device of one node."""

    node: str
    device: int
    uuid: str = ""
    memory_mib: int = 0

    @property
    def lease(self) -> str:
        return names.device_lease(self.node, self.device)


class Holder(msgspec.Struct, frozen=True, rename={"memory_mib": "memoryMiB"}, omit_defaults=True):
    """Who holds a device. `share` and `memory_mib` are set for shared holders alone."""

    uid: str
    pod: str = ""
    namespace: str = ""
    share: int = 0
    memory_mib: int = 0
    since: str = ""

    def placement(self, ref: DeviceRef, *, exclusive: bool) -> Placement:
        """What the holder takes, as the core counts it."""
        return Placement(
            f"lease/{ref.lease}/{self.uid}",
            ref.node,
            devices=(ref.device,),
            exclusive=exclusive,
            milli=WHOLE if exclusive else self.share,
            memory_mib=0 if exclusive else self.memory_mib,
        )


def device_refs(node: str, devices: Iterable[Device]) -> list[DeviceRef]:
    """Name devices of a node as their leases do."""
    return [DeviceRef(node, each.id, each.uuid, each.memory_mib) for each in devices]


def holder_of(pod: Pod, placement: Placement, since: str) -> Holder:
    """The entry of a pod that holds the devices of its placement."""
    meta = pod.metadata
    shared = (0, 0) if placement.exclusive else (placement.milli, placement.memory_mib)
    return Holder(meta.uid, meta.name, meta.namespace, *shared, since)


def exclusive(ref: DeviceRef, holder: Holder, namespace: str) -> Lease:
    """The Lease whose creation takes a whole device."""
    about = {names.LEASE_POD: holder.pod, names.LEASE_NAMESPACE: holder.namespace}
    return _lease(ref, namespace, holder.uid, holder.since, about, {names.POD_UID: holder.uid})


def shared(ref: DeviceRef, holders: Iterable[Holder], namespace: str, since: str) -> Lease:
    """The Lease of a device that several share."""
    return _lease(ref, namespace, SHARED, since, {names.LEASE_HOLDERS: encode(holders)}, {})


def _lease(
    ref: DeviceRef, namespace: str, identity: str, since: str, about: dict[str, str], labels: dict[str, str]
) -> Lease:
    annotations = {names.LEASE_NODE: ref.node, **about}
    if ref.uuid:
        annotations[names.LEASE_UUID] = ref.uuid
    meta = ObjectMeta(
        name=ref.lease,
        namespace=namespace,
        labels={names.MANAGED: "true", **labels},
        annotations=annotations,
    )
    return Lease(meta, LeaseSpec(holder_identity=identity, acquire_time=since, renew_time=since))


def encode(holders: Iterable[Holder]) -> str:
    return msgspec.json.encode(list(holders)).decode()


def is_device(lease: Lease) -> bool:
    return lease.metadata.labels.get(names.MANAGED) == "true"


def is_shared(lease: Lease) -> bool:
    return lease.spec.holder_identity == SHARED


def device_ref(lease: Lease) -> DeviceRef | None:
    """The device that a Lease stands for; None for one that is no device's."""
    meta = lease.metadata
    named = _named(meta.name)
    if named is None or named.node != meta.annotations.get(names.LEASE_NODE):
        return None
    return DeviceRef(named.node, named.device, meta.annotations.get(names.LEASE_UUID, ""))


def obstructed(lease: Lease) -> DeviceRef | None:
    """The device whose name a Lease has that is no device's. The sign of life of the agent on `node-3` is
    called as the Lease of device 3 on a node `agent-node` would be; while it is there, nobody can hold that
    device."""
    return None if is_device(lease) else _named(lease.metadata.name)


def _named(name: str) -> DeviceRef | None:
    head, _, device = name.rpartition("-")
    node = head.removeprefix(names.DEVICE_LEASE_PREFIX)
    if node == head or not device.isdecimal() or device != str(int(device)):
        return None
    return DeviceRef(node, int(device))


def holders(lease: Lease) -> tuple[Holder, ...]:
    """Everybody who holds the device. An annotation that cannot be read holds it whole, so nothing is given
    twice."""
    spec, about = lease.spec, lease.metadata.annotations
    if not is_shared(lease):
        pod, namespace = about.get(names.LEASE_POD, ""), about.get(names.LEASE_NAMESPACE, "")
        return (Holder(spec.holder_identity, pod, namespace, since=spec.acquire_time),)
    try:
        return tuple(msgspec.json.decode(about.get(names.LEASE_HOLDERS, "[]"), type=list[Holder]))
    except msgspec.DecodeError:
        return (Holder("unreadable", share=WHOLE),)


def fits(known: Iterable[Holder], new: Holder, memory_mib: int) -> bool:
    """Whether one more may share the device. Without a known size, memory cannot be oversold by us."""
    all_of = [*known, new]
    share, memory = sum(each.share for each in all_of), sum(each.memory_mib for each in all_of)
    return share <= WHOLE and (memory <= memory_mib or not new.memory_mib)
