"""Builders for pods, nodes, claims and reports as the API server returns them, with defaults."""

from itertools import count
from typing import Any

import msgspec

from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.gpuqueue import GpuQueue
from gpu_orchestrator.api.kubernetes import Namespace, Node, Pod, VolumeClaim
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.api.volumes import StorageClass, Volume

_versions = count(1)
GANG_WORDS = ("gang", "gang_size", "gang_min", "topology_required", "topology_preferred")
CLAIM_FIELDS = ("topology", "selector", "gangRef", "gangSize", "onUnhealthy")


def _meta(name: str, **more: Any) -> dict[str, Any]:
    named = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {**named, "resourceVersion": str(next(_versions)), **more}


def pod(name: str, *, node: str = "", phase: str = "Pending", meta: Any = None, **spec: Any) -> Pod:
    """Return a pod. Arguments listed in `words` become annotations; the others are fields of its spec."""
    words = ("gpus", "claim", "claim_template", "strategy", "allocated", "max_runtime_seconds", *GANG_WORDS)
    given = {word: str(spec.pop(word)) for word in words if word in spec}
    annotations = {f"gpu.scheduling/{word.replace('_', '-')}": value for word, value in given.items()}
    metadata = _meta(name, **{"annotations": annotations, **(meta or {})})
    body = {"schedulerName": "gpu-scheduler", "nodeName": node, **spec}
    return msgspec.convert({"metadata": metadata, "spec": body, "status": {"phase": phase}}, Pod)


def node(
    name: str,
    gpus: int = 8,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    gives: dict[str, str] | None = None,
    capacity: dict[str, str] | None = None,
    **spec: Any,
) -> Node:
    """Return a node that is Ready. `gives` is what it allocates besides `gpus`."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    status = {
        "capacity": capacity or {},
        "allocatable": amounts | (gives or {}),
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    meta = {**_meta(name, annotations=annotations or {}, labels=labels or {}), "namespace": ""}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Node)


def pod_group(
    name: str, least: int | None = 2, *, generation: int = 1, status: Any = None, **spec: Any
) -> PodGroup:
    """Return a PodGroup; without `least` its pods start one by one."""
    policy: dict[str, Any] = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    made = {"schedulingPolicy": policy, **spec}
    body = {"metadata": _meta(name, generation=generation), "spec": made, "status": status or {}}
    return msgspec.convert(body, PodGroup)


def namespace(name: str, **labels: str) -> Namespace:
    return msgspec.convert({"metadata": {**_meta(name, labels=labels), "namespace": ""}}, Namespace)


def gpu_queue(name: str, team: str = "", *, status: Any = None, generation: int = 1, **spec: Any) -> GpuQueue:
    """Return a queue; it selects the namespaces with this label `team`."""
    if team:
        spec.setdefault("namespaceSelector", {"matchLabels": {"team": team}})
    meta = {**_meta(name, generation=generation), "namespace": ""}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status or {}}, GpuQueue)


def claim(
    name: str,
    *,
    reserved_for: str = "",
    deleting: bool = False,
    status: Any = None,
    generation: int = 1,
    **devices: Any,
) -> GpuClaim:
    more: dict[str, Any] = {"generation": generation}
    if deleting:
        more["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if reserved_for:
        more |= {"labels": {"gpu.scheduling/pod-uid": reserved_for}, "finalizers": ["gpu.scheduling/in-use"]}
    spec: dict[str, Any] = {key: devices.pop(key) for key in CLAIM_FIELDS if key in devices}
    body = {"metadata": _meta(name, **more), "spec": {**spec, "devices": devices}, "status": status or {}}
    return msgspec.convert(body, GpuClaim)


def report(name: str, *devices: dict[str, Any], **status: Any) -> GpuNodeStatus:
    healthy = [{"health": "Healthy", **each} for each in devices]
    body = {
        "metadata": {**_meta(name), "namespace": ""},
        "spec": {"nodeName": name},
        "status": {"devices": healthy, **status},
    }
    return msgspec.convert(body, GpuNodeStatus)


def volume_claim(
    name: str,
    volume: str = "",
    *,
    phase: str = "",
    modes: tuple[str, ...] = (),
    meta: Any = None,
    storage: str = "",
    of: str = "",
    **spec: Any,
) -> VolumeClaim:
    """Return a claim. It is bound if it has a volume; `of` names its storage class."""
    if storage:
        spec["resources"] = {"requests": {"storage": storage}}
    body = {
        "metadata": _meta(name, **(meta or {})),
        "spec": {"volumeName": volume, "accessModes": list(modes), "storageClassName": of, **spec},
        "status": {"phase": phase or ("Bound" if volume else "Pending")},
    }
    return msgspec.convert(body, VolumeClaim)


def volume(
    name: str,
    *nodes: str,
    labels: dict[str, str] | None = None,
    driver: str = "",
    of: str = "",
    storage: str = "1Gi",
    modes: tuple[str, ...] = (),
    phase: str = "",
    meta: Any = None,
    **spec: Any,
) -> Volume:
    """Return a volume that these nodes reach; all nodes if none is named. One `of` a storage class is
    free."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    if nodes:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    if driver:
        spec["csi"] = {"driver": driver, "volumeHandle": f"handle-{name}"}
    if of:
        spec |= {"storageClassName": of, "capacity": {"storage": storage}, "accessModes": list(modes)}
    metadata = {**_meta(name, labels=labels or {}, **(meta or {})), "namespace": ""}
    status = {"phase": phase or ("Available" if of else "")}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Volume)


def storage_class(
    name: str, *zones: str, waits: bool = True, provisioner: str = "kubernetes.io/no-provisioner"
) -> StorageClass:
    """Return a class; its volumes can be created in these zones, or anywhere if none is named."""
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    terms = [{"matchLabelExpressions": [{"key": "zone", "values": [zone]}]} for zone in zones]
    body = {
        "metadata": {**_meta(name), "namespace": ""},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        "allowedTopologies": terms,
    }
    return msgspec.convert(body, StorageClass)
