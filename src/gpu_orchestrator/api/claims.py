"""Turn a pod and its claim into a request for the core, and a placement into annotations.

A pod asks in one of three ways: a claim, a template from which each pod gets a claim of its own, or a bare
number of GPUs.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpu_orchestrator.api import deviceleases, names, translate
from gpu_orchestrator.api.gpuclaim import GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.job import EndedPod
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.seen_pod import SeenPod
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import WHOLE, Device
from gpu_orchestrator.core.pod_rules import Neighbour
from gpu_orchestrator.core.request import Fabric, Request, Shape

MAX_GPUS = 64
LONGEST_IDS = 5 * 1024
"""Characters of the device ids in an annotation: as many as a node can have, of four digits each."""
SHOWN_CHARACTERS = 80
"""Of a text that somebody wrote: a message with a long one would hide the rest, or not be stored."""


class BadGpuRequest(ValueError):
    """The pod's GPU request is invalid; the message says what to write instead."""


def named_claim(pod: Pod) -> str:
    """Return the claim or template that the pod's request is read from; empty if it asks for bare GPUs."""
    annotations = pod.metadata.annotations
    return annotations.get(names.CLAIM, "") or annotations.get(names.CLAIM_TEMPLATE, "")


def is_template(pod: Pod) -> bool:
    """Return True if the pod names a template and gets a claim of its own from it."""
    return names.CLAIM not in pod.metadata.annotations and names.CLAIM_TEMPLATE in pod.metadata.annotations


def claim_name(pod: Pod) -> str:
    """Return the name of the pod's GpuClaim: the one it names, or its own made from a template. Empty if
    none."""
    annotations = pod.metadata.annotations
    if name := annotations.get(names.CLAIM, ""):
        return name
    return child_name(pod) if names.CLAIM_TEMPLATE in annotations else ""


def child_name(pod: Pod) -> str:
    """Return a name that can be computed again: creating the child twice creates it once."""
    return f"{pod.metadata.name[:240].rstrip('-.')}-{pod.metadata.uid[:8]}"


def reserved_for(claim: GpuClaim) -> str:
    """Return the UID of the pod that the claim is reserved for; empty if it is free."""
    meta = claim.metadata
    return meta.labels.get(names.POD_UID, "") if names.CLAIM_FINALIZER in meta.finalizers else ""


def annotated_gpus(pod: Pod) -> int:
    """Return the number in `gpu.scheduling/gpus` of the pod. Raises `BadGpuRequest`."""
    least = 0 if pod.metadata.annotations.get(names.GANG) else 1
    return read_gpus(pod.metadata.annotations[names.GPUS], least=least)


def read_gpus(text: str, *, least: int = 1) -> int:
    """Return the number of GPUs in this text. `least` is 0 for a member of a gang: the launcher of a job may
    need none. Raises `BadGpuRequest`."""
    gpus = int(text) if text.isascii() and text.isdecimal() and len(text) <= SHOWN_CHARACTERS else -1
    if not least <= gpus <= MAX_GPUS:
        raise BadGpuRequest(f"{names.GPUS} is {shortened(text)!r}; write a number from {least} to {MAX_GPUS}")
    return gpus


def shortened(text: str) -> str:
    """Return a text that somebody wrote so that it fits into a message."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def request(pod: Pod, spec: GpuClaimSpec | None, neighbour: Neighbour | None = None) -> Request:
    """Return what the pod requests. `spec` is that of its claim or template; None if it names neither.
    `neighbour` is what the rules of other pods see of it."""
    meta = pod.metadata
    shape = translate.shape(pod.spec, annotated_gpus(pod) if spec is None else spec.devices.count)
    if is_held_by_mps(pod, spec):
        shape = replace(shape, labels=tuple(sorted({*shape.labels, (names.SHARING, names.MPS)})))
    return Request(
        meta.uid,
        shape if spec is None else _claimed(shape, spec),
        priority=pod.spec.priority,
        tenant=meta.namespace,
        strategy=meta.annotations.get(names.STRATEGY, ""),
        allocator="" if spec is None else spec.devices.policy,
        neighbour=neighbour,
    )


def is_held_by_mps(pod: Pod, spec: GpuClaimSpec | None) -> bool:
    """Return True if the pod was prepared as a client of MPS, and shares devices."""
    is_shared = spec is not None and spec.devices.exclusivity == "Shared"
    return is_shared and pod.metadata.annotations.get(names.SHARING) == names.MPS


def _claimed(shape: Shape, spec: GpuClaimSpec) -> Shape:
    devices, network = spec.devices, spec.network
    is_shared = devices.exclusivity == "Shared"
    return replace(
        shape,
        exclusive=not is_shared,
        profile=devices.mig_profile if devices.exclusivity == "MIG" else "",
        milli=devices.share or 0 if is_shared else WHOLE,
        memory_mib=devices.memory_mib or 0 if is_shared else 0,
        vendor=devices.vendor or "",
        models=(devices.model,) if devices.model else (),
        prefer_ids=tuple(devices.prefer_ids) if devices.policy == "preferIds" else (),
        mode=spec.topology.mode,
        min_bandwidth_gbps=spec.topology.min_bandwidth_gbps or 0,
        labels=tuple(sorted({*shape.labels, *spec.selector.match_labels.items()})),
        fabric=Fabric(network.rdma_required, network.min_ports or 0, spec.storage.cu_file),
    )


def allocated(placement: Placement) -> str:
    """Return a placement as text: `node-a:0,1`."""
    return f"{placement.node}:{','.join(map(str, placement.devices))}"


def answer(placement: Placement, devices: Sequence[Device]) -> dict[str, str]:
    """Return the annotations of a bound pod. `devices` are those of the placement, in its order. A pod that
    asked for none sees none: to NVIDIA's and AMD's runtimes an empty list is that, and to CUDA and HIP -1."""
    if not devices:
        return {names.ALLOCATED: allocated(placement), names.VISIBLE_DEVICES: "", names.LOCAL_DEVICES: "-1"}
    ids, uuids = [str(device.id) for device in devices], [device.uuid for device in devices]
    visible = uuids if all(uuids) else ids
    # HIP numbers the devices that a container sees; CUDA also accepts UUIDs.
    by_uuid = all(uuids) and all(device.vendor == "nvidia" for device in devices)
    local = uuids if by_uuid else [str(number) for number in range(len(devices))]
    return {
        names.ALLOCATED: allocated(placement),
        names.VISIBLE_DEVICES: ",".join(visible),
        names.LOCAL_DEVICES: ",".join(local),
    }


def given(pod: Pod | EndedPod | SeenPod) -> tuple[int, ...]:
    """Return the devices in a bound pod's annotation; none if the annotation names another node or cannot be
    read. The pod's owner can write the annotation: it proves nothing, only leases do."""
    node, _, ids = pod.metadata.annotations.get(names.ALLOCATED, "").rpartition(":")
    if not node or node != pod.spec.node_name or len(ids) > LONGEST_IDS:
        return ()
    read = [deviceleases.device_id(each) for each in ids.split(",")]
    return tuple(dict.fromkeys(each for each in read if each is not None))


def recorded(pod: Pod, claim: GpuClaim | None) -> tuple[int, ...]:
    """Return the devices that the status of a claim says the bound pod has; none if it serves another pod.
    Only the scheduler may write that status."""
    status = claim.status if claim else None
    if status is None or status.phase != "Bound" or status.pod_uid != pod.metadata.uid:
        return ()
    return tuple(dict.fromkeys(status.gpu_ids)) if status.node_name == pod.spec.node_name else ()


def uuids(pod: Pod | EndedPod) -> tuple[str, ...]:
    """Return the UUIDs of a bound pod's devices, in the order of `given`; none if they are not known."""
    ids = tuple(map(str, given(pod)))
    named = tuple(pod.metadata.annotations.get(names.VISIBLE_DEVICES, "").split(","))
    return named if len(named) == len(ids) and named != ids else ()


def bound(pod: Pod, spec: GpuClaimSpec | None, *, devices: tuple[int, ...] | None = None) -> Placement:
    """Return the devices that a pod was bound to without leases, with the terms of its claim. Without
    `devices`, they are those in its annotation."""
    is_shared = spec is not None and spec.devices.exclusivity == "Shared"
    shape = _claimed(Shape(), spec) if spec is not None and is_shared else Shape()
    return Placement(
        pod.metadata.uid,
        pod.spec.node_name,
        devices=given(pod) if devices is None else devices,
        exclusive=shape.exclusive,
        milli=shape.milli,
        memory_mib=shape.memory_mib,
    )
