"""Turn API objects into what the core decides over: nodes, what pods hold, what a pod requests.

Amounts are whole numbers: cpu in thousandths, everything else in its own unit (bytes, pods, pieces). GPUs are
devices, not amounts, so `nvidia.com/gpu` and the like never appear among the resources here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from gpu_orchestrator.api import deviceleases, names, nodedevices, pod_amounts, quantity
from gpu_orchestrator.api.kubernetes import Node as WireNode
from gpu_orchestrator.api.kubernetes import Pod, PodSpec
from gpu_orchestrator.api.nodedevices import DeviceEntry
from gpu_orchestrator.api.pod import NodeSelectorTerm, Requirement
from gpu_orchestrator.api.pod_amounts import Amounts, Taken, amounts, without_gpus
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.errors import CoreError
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_DEVICES, MOST_MIB
from gpu_orchestrator.core.node import Node, Taint, node
from gpu_orchestrator.core.request import EVERY_ADDRESS, Expression, HostPort, Shape, Term, Toleration

MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
MEMORY_LABELS = ("nvidia.com/gpu.memory",)
SUCCEEDED = "Succeeded"
TERMINAL = (SUCCEEDED, "Failed")
LONGEST_REASON = 200
# A node may be tainted with the name of its GPU resource, to keep other pods away. The operator adds these
# tolerations to the pods that it makes.
GPU_TAINTS = tuple(Toleration(resource, "Exists") for resource in names.GPU_RESOURCES)


def gpu_resource(seen: WireNode) -> str:
    """Return the extended resource that counts the node's GPUs; empty if it has none. On a node with GPUs of
    two vendors, only those of the vendor listed first are used."""
    given = seen.status.allocatable
    return next((name for name in names.GPU_RESOURCES if _is_some(given.get(name, "0"))), "")


def _is_some(text: str) -> bool:
    try:
        return quantity.whole(text) > 0
    except quantity.BadQuantity:
        return False


def model(seen: WireNode) -> str:
    """Return the model of the node's GPUs, as a person described them or as its labels say; empty if
    unknown."""
    return _entry(seen).model or _first(seen.metadata.labels, MODEL_LABELS)


def is_ready(seen: WireNode) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in seen.status.conditions)


def counted_node(seen: WireNode) -> Node:
    """Return the node for the core, with as many GPUs as its device plugin counts. A node with a number that
    cannot be counted is barred, with nothing to give."""
    try:
        return _node(seen, **_devices(seen), resources=_resources(seen))
    except (quantity.BadQuantity, CoreError) as error:
        return uncounted_node(seen, str(error))


def uncounted_node(seen: WireNode, why: str) -> Node:
    """Return a node of which nothing can be given, because one of its numbers cannot be counted."""
    return _node(seen, barred=f"cannot be counted: {why[:LONGEST_REASON]}")


def _resources(seen: WireNode) -> Amounts:
    """Return what the node gives besides GPUs. A kubelet lets pods in that request what its node does not
    list, so a node that does not count thousandths of GPUs gives any number of them; one that lists 0 gives
    none."""
    given = without_gpus(amounts(seen.status.allocatable))
    return given if names.MILLIGPU in seen.status.allocatable else {**given, names.MILLIGPU: MOST_AMOUNT}


def _node(seen: WireNode, **more: Any) -> Node:
    return node(
        seen.metadata.name,
        labels=seen.metadata.labels,
        taints=[Taint(taint.key, taint.value, taint.effect) for taint in seen.spec.taints],
        ready=is_ready(seen),
        schedulable=not seen.spec.unschedulable,
        **more,
    )


def _devices(seen: WireNode) -> dict[str, Any]:
    resource, entry = gpu_resource(seen), _entry(seen)
    devices = described(seen, entry, range(_count(seen, resource)))
    return {"gpus": devices, "gbps": dict.fromkeys(entry.island_of, entry.bandwidth_gbps)}


def _entry(seen: WireNode) -> DeviceEntry:
    """Without an entry the count is known all the same; model, memory and links are not."""
    try:
        return nodedevices.entry(seen) or DeviceEntry()
    except nodedevices.BadEntry:
        return DeviceEntry()


def described(seen: WireNode, entry: DeviceEntry, ids: Iterable[int]) -> list[Device]:
    """Return the node's devices with these ids, as its annotation and its labels describe them."""
    island_of = entry.island_of
    vendor, model, mib = _kind(seen, entry)
    if not island_of:
        return list(_alike(tuple(ids), vendor, model, mib))
    return [
        Device(each, vendor=vendor, model=model, memory_mib=mib, island=island_of.get(each, -1))
        for each in ids
    ]


def kind(seen: WireNode) -> tuple[str, str, int]:
    """Return vendor, model and memory in MiB of the node's devices, as far as it says; all of a node are
    alike."""
    return _kind(seen, _entry(seen))


def _kind(seen: WireNode, entry: DeviceEntry) -> tuple[str, str, int]:
    labels = seen.metadata.labels
    vendor = names.VENDOR_OF.get(gpu_resource(seen), entry.vendor)
    model = entry.model or _first(labels, MODEL_LABELS)
    return vendor, model, entry.memory_mib or _mib(_first(labels, MEMORY_LABELS))


@lru_cache(64)
def _alike(ids: tuple[int, ...], vendor: str, model: str, mib: int) -> tuple[Device, ...]:
    """Return devices that differ by their number alone; the nodes of a pool share them."""
    return tuple(Device(each, vendor=vendor, model=model, memory_mib=mib) for each in ids)


def _count(seen: WireNode, resource: str) -> int:
    count = quantity.whole(seen.status.allocatable[resource]) if resource else 0
    if count > MOST_DEVICES:
        raise quantity.BadQuantity(f"{count} {resource} on one node; at most {MOST_DEVICES} can be counted")
    return count


def _first(labels: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((labels[key] for key in keys if key in labels), "")


def _mib(text: str) -> int:
    """Return the number; 0 for a value that no device can have."""
    mib = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    return mib if mib <= MOST_MIB else 0


def counted_placement(pod: Pod) -> Placement | None:
    """Return what a pod takes from its node, its GPUs by number only; None if it has no node or has ended."""
    if not pod.spec.node_name or pod.status.phase in TERMINAL:
        return None
    taken = placement(pod.metadata.uid, pod.spec.node_name, pod.spec)
    return taken if taken.unnamed else replace(taken, unnamed=_gpus_given(pod))


def placement(key: str, node_name: str, spec: PodSpec) -> Placement:
    """What a pod with this spec takes from this node, under this key. Which GPUs it takes is not known."""
    taken = pod_amounts.taken(spec)
    return Placement(
        key, node_name, unnamed=taken.gpus, resources=taken.resources, host_ports=host_ports(spec)
    )


def _gpus_given(pod: Pod) -> int:
    """Return how many devices the gpu-scheduler gave the pod, which requests none by name: `node-a:0,1`. Text
    that names another node or no device of a node counts for nothing, and neither does that on a pod of the
    kube-scheduler, which gives no devices: the pod's owner wrote it."""
    if pod.spec.scheduler_name in names.KUBE_SCHEDULER:
        return 0
    node, _, ids = pod.metadata.annotations.get(names.ALLOCATED, "").rpartition(":")
    return len(set(map(deviceleases.device_id, ids.split(","))) - {None}) if node == pod.spec.node_name else 0


def shape(
    spec: PodSpec,
    gpus: int,
    *,
    vendor: str = "",
    avoid: Iterable[str] = (),
    tolerated: tuple[Toleration, ...] = (),
) -> Shape:
    """Return what decides where a pod with this many GPUs fits. `avoid` names nodes that it must not go to;
    `tolerated` is what its maker adds to the pod's own tolerations."""
    return Shape(
        gpus=gpus,
        vendor=vendor,
        resources=pod_amounts.taken(spec).resources,
        labels=tuple(sorted(spec.node_selector.items())),
        affinity=_affinity(spec, tuple(sorted(avoid))),
        preferred=_preferred(spec),
        tolerations=(*tolerations(spec), *tolerated),
        host_ports=host_ports(spec),
    )


def tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    return tuple(map(_toleration, spec.tolerations))


def _toleration(wire: Any) -> Toleration:
    return Toleration(wire.key, wire.operator or "Equal", wire.value, wire.effect)


def _affinity(spec: PodSpec, avoid: tuple[str, ...]) -> tuple[Term, ...]:
    required = spec.affinity.node_affinity.required
    terms = tuple(term_of(term) for term in required.node_selector_terms) if required else ()
    if not avoid:
        return terms
    elsewhere = Expression("metadata.name", "NotIn", avoid)
    return tuple(Term(term.labels, (*term.fields, elsewhere)) for term in terms or (Term(),))


def _preferred(spec: PodSpec) -> tuple[tuple[int, Term], ...]:
    """A term without conditions prefers nothing."""
    if not (preferred := spec.affinity.node_affinity.preferred):
        return ()
    terms = ((each.weight, term_of(each.preference)) for each in preferred)
    return tuple((weight, term) for weight, term in terms if weight and (term.labels or term.fields))


def term_of(wire: NodeSelectorTerm) -> Term:
    return Term(
        tuple(_expression(each) for each in wire.match_expressions),
        tuple(_expression(each) for each in wire.match_fields),
    )


def _expression(wire: Requirement) -> Expression:
    return Expression(wire.key, cast("Any", wire.operator), tuple(wire.values))


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    if not spec.init_containers and not any(container.ports for container in spec.containers):
        return ()
    return tuple(
        HostPort(port.host_port, port.protocol, port.host_ip or EVERY_ADDRESS)
        for container in (*spec.containers, *filter(pod_amounts.is_sidecar, spec.init_containers))
        for port in container.ports
        if port.host_port
    )


def gpus_asked(spec: PodSpec) -> int:
    """Return how many whole GPUs of any vendor a pod's containers request."""
    return pod_amounts.taken(spec).gpus


def has_gpu_parts(pod: Pod, taken: Taken) -> bool:
    """Return True if a pod may have a part of a GPU, or a GPU that no number names: a slice, a shared GPU, or
    what Dynamic Resource Allocation gave it. None of this counts as whole GPUs."""
    return taken.has_parts or bool(pod.spec.resource_claims)


def asked(spec: PodSpec) -> Amounts:
    """Return what a pod takes from its node besides GPUs, itself included (`pods`)."""
    return dict(pod_amounts.taken(spec).resources)
