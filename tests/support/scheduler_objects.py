"""Pods, nodes, claims and leases as the API server would show them, with defaults for all but the point."""

from itertools import count
from typing import Any

import msgspec

from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Node, Pod, VolumeClaim
from gpu_orchestrator.api.volumes import Volume

_versions = count(1)
BESIDE = ("topology", "selector", "gangRef")


def _meta(name: str, **more: Any) -> dict[str, Any]:
    named = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {**named, "resourceVersion": str(next(_versions)), **more}


def pod(name: str, *, node: str = "", phase: str = "Pending", meta: Any = None, **spec: Any) -> Pod:
    """`gpus=`, `claim=` and `claim_template=` ask; `allocated=` answers; everything else is spec."""
    words = ("gpus", "claim", "claim_template", "strategy", "allocated")
    told = {f"gpu.scheduling/{word.replace('_', '-')}": str(spec.pop(word)) for word in words if word in spec}
    about = _meta(name, annotations=told, **(meta or {}))
    body = {"schedulerName": "gpu-scheduler", "nodeName": node, **spec}
    return msgspec.convert({"metadata": about, "spec": body, "status": {"phase": phase}}, Pod)


def node(
    name: str,
    gpus: int = 8,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Node:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {**_meta(name, annotations=annotations or {}, labels=labels or {}), "namespace": ""}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Node)


def claim(
    name: str, *, served: str = "", deleting: bool = False, status: Any = None, **devices: Any
) -> GpuClaim:
    more: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    if served:
        more |= {"labels": {"gpu.scheduling/pod-uid": served}, "finalizers": ["gpu.scheduling/in-use"]}
    spec: dict[str, Any] = {key: devices.pop(key) for key in BESIDE if key in devices}
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


def volume_claim(name: str, volume: str = "") -> VolumeClaim:
    body = {
        "metadata": _meta(name),
        "spec": {"volumeName": volume},
        "status": {"phase": "Bound" if volume else "Pending"},
    }
    return msgspec.convert(body, VolumeClaim)


def volume(name: str, *nodes: str) -> Volume:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    spec = {"nodeAffinity": terms} if nodes else {}
    return msgspec.convert({"metadata": {**_meta(name), "namespace": ""}, "spec": spec}, Volume)
