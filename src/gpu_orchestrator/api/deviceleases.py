"""The Lease of one device: its holders, in a form that every scheduler reads the same way.

An exclusive holder is the Lease's `holderIdentity`. Shared holders are listed in one annotation and the
identity is the word `shared`, so that an old reader sees that the device is taken. Every entry carries the
time it was made: if another scheduler makes it again, it is another entry.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from gpu_orchestrator.api import names, nesting
from gpu_orchestrator.api.kubernetes import Lease, LeaseSpec, Pod
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import WHOLE, Device
from gpu_orchestrator.core.limits import MOST_DEVICES, MOST_MIB

SHARED = "shared"
LONGEST_ID = len(str(MOST_DEVICES))
"""Digits of a device's number."""
LONGEST_HOLDERS = 262_144
"""Characters of the holders' annotation: what Kubernetes allows for all annotations of an object."""


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
    """One holder of a device. `share` and `memory_mib` are set for shared holders only. `queue` is the one
    that the pod was bound in, empty for none."""

    uid: str
    pod: str = ""
    namespace: str = ""
    share: int = 0
    memory_mib: int = 0
    since: str = ""
    queue: str = ""

    def placement(self, ref: DeviceRef, *, exclusive: bool) -> Placement:
        """Return what the holder takes, as the core counts it."""
        return Placement(
            f"lease/{ref.lease}/{self.uid}",
            ref.node,
            devices=(ref.device,),
            exclusive=exclusive,
            milli=WHOLE if exclusive else self.share,
            memory_mib=0 if exclusive else self.memory_mib,
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """What one holder has of one device, as its Lease says."""

    ref: DeviceRef
    holder: Holder
    exclusive: bool

    @property
    def placement(self) -> Placement:
        return self.holder.placement(self.ref, exclusive=self.exclusive)


def device_refs(node: str, devices: Iterable[Device]) -> list[DeviceRef]:
    """Name devices of a node as their leases do."""
    return [DeviceRef(node, each.id, each.uuid, each.memory_mib) for each in devices]


def holder_of(pod: Pod, placement: Placement, since: str, queue: str = "") -> Holder:
    """Return the lease entry of a pod that holds the devices of its placement."""
    meta = pod.metadata
    shared = (0, 0) if placement.exclusive else (placement.milli, placement.memory_mib)
    return Holder(meta.uid, meta.name, meta.namespace, *shared, since, queue)


def exclusive(ref: DeviceRef, holder: Holder, namespace: str) -> Lease:
    """Return the Lease whose creation takes a whole device."""
    about = {names.LEASE_POD: holder.pod, names.LEASE_NAMESPACE: holder.namespace}
    if holder.queue:
        about[names.QUEUE] = holder.queue
    return _lease(ref, namespace, holder.uid, holder.since, about, {names.POD_UID: holder.uid})


def shared(ref: DeviceRef, holders: Iterable[Holder], namespace: str, since: str) -> Lease:
    """Return the Lease of a device that several holders share."""
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
    """Return the device that a Lease stands for; None if the Lease is not for a device."""
    meta = lease.metadata
    node, device = _named_device(meta.name) or ("", 0)
    if not node or node != meta.annotations.get(names.LEASE_NODE):
        return None
    return DeviceRef(node, device, meta.annotations.get(names.LEASE_UUID, ""))


def obstructed(lease: Lease) -> DeviceRef | None:
    """Return the device whose lease name is occupied by an unrelated Lease, e.g. the heartbeat
    `gpu-agent-node-3` of node `node-3` vs device 3 of node `agent-node`. While it exists, the device cannot
    be leased."""
    return None if is_device(lease) else _named(lease.metadata.name)


def _named(name: str) -> DeviceRef | None:
    if (named := _named_device(name)) is None:
        return None
    return DeviceRef(*named)


def _named_device(name: str) -> tuple[str, int] | None:
    """Return the node and the device that a device lease of this name would be for."""
    head, _, text = name.rpartition("-")
    node, device = head.removeprefix(names.DEVICE_LEASE_PREFIX), device_id(text)
    if node == head or device is None or text != str(device):
        return None
    return node, device


def device_id(text: str) -> int | None:
    """Return the number of a device; None if the text is not one that a device can have."""
    if not 1 <= len(text) <= LONGEST_ID or not text.isascii() or not text.isdecimal():
        return None
    return device if (device := int(text)) < MOST_DEVICES else None


def holders(lease: Lease) -> tuple[Holder, ...]:
    """Return all holders of the device. An annotation that cannot be read holds it whole, so that nothing is
    given twice."""
    spec, about = lease.spec, lease.metadata.annotations
    if not is_shared(lease):
        pod, namespace = about.get(names.LEASE_POD, ""), about.get(names.LEASE_NAMESPACE, "")
        since, queue = spec.acquire_time or "", about.get(names.QUEUE, "")
        return (Holder(spec.holder_identity, pod, namespace, since=since, queue=queue),)
    return _decoded(about.get(names.LEASE_HOLDERS, "[]"))


def _decoded(text: str) -> tuple[Holder, ...]:
    unreadable = (Holder("unreadable", share=WHOLE),)
    if len(text) > LONGEST_HOLDERS or nesting.is_too_deep(text.encode(errors="replace")):
        return unreadable
    try:
        found = tuple(msgspec.json.decode(text, type=list[Holder]))
    except (msgspec.DecodeError, UnicodeError):
        return unreadable
    return found if all(map(_can_be_counted, found)) else unreadable


def _can_be_counted(holder: Holder) -> bool:
    return 0 <= holder.share <= WHOLE and 0 <= holder.memory_mib <= MOST_MIB


def holds(lease: Lease) -> list[Hold]:
    """Return every hold in a Lease; none if it is not for a device."""
    ref = device_ref(lease) if is_device(lease) else None
    if ref is None:
        return []
    exclusive = not is_shared(lease)
    return [Hold(ref, holder, exclusive) for holder in holders(lease)]


def bound_attempt(bound: Iterable[int], held: Iterable[Hold]) -> str:
    """Return the time of the attempt that bound a pod, out of what it holds on its node; empty if that is not
    certain. All leases of one attempt carry the same time, so an attempt whose devices are exactly those that
    the binding named is the one that succeeded."""
    wanted, attempts = set(bound), dict[str, set[int]]()
    for hold in held:
        attempts.setdefault(hold.holder.since, set()).add(hold.ref.device)
    return next((since for since, devices in attempts.items() if devices == wanted), "")


def fits(known: Iterable[Holder], new: Holder, memory_mib: int) -> bool:
    """Return True if one more holder can share the device. Memory is checked only if the new
    holder asks for some; on a device of unknown size, such a holder is refused."""
    all_of = [*known, new]
    share, memory = sum(each.share for each in all_of), sum(each.memory_mib for each in all_of)
    return share <= WHOLE and (memory <= memory_mib or not new.memory_mib)
