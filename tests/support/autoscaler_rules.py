"""What the cluster-autoscaler makes of pods and nodes, from its documentation and source, without its code.

docs/reference/autoscalers.md names the files. Only what can decide about a pod of ours is here.
"""

from typing import Any

from gpu_orchestrator.api.quantity import parse

Json = dict[str, Any]
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
THRESHOLD = 0.5
"""`--scale-down-gpu-utilization-threshold`: a node that is used less may be removed."""


def is_reason_to_grow(pod: Json) -> bool:
    """Return True if the pod waits for a node, so that a node is added if it fits on none that is there."""
    status = pod.get("status", {})
    said = {each["type"]: (each["status"], each.get("reason")) for each in status.get("conditions", [])}
    is_over = status.get("phase") in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
    is_bound = bool(pod["spec"].get("nodeName"))
    return not is_bound and not is_over and said.get("PodScheduled") == ("False", "Unschedulable")


def fits(pod: Json, node: Json, there: list[Json]) -> bool:
    """Return True if the node has enough left of all extended resources for the pod, as kube-scheduler's
    plugin NodeResourcesFit counts them. `there` are the node's pods."""
    wanted = [name for name in _requests(pod) if "/" in name]
    free = {name: _allocatable(node, name) - sum(_request(each, name) for each in there) for name in wanted}
    return all(_request(pod, name) <= free[name] for name in wanted)


def is_used_little(node: Json, there: list[Json], resource: str) -> bool:
    """Return True if the node may be removed for what its pods use. Of a node with the cloud's GPU label,
    only the GPU resource of that cloud counts."""
    return sum(_request(each, resource) for each in there) / _allocatable(node, resource) < THRESHOLD


def obstacle(pod: Json) -> str:
    """Return why the pod keeps its node; empty if it would be evicted, provided that it fits elsewhere. The
    first rule that says something wins."""
    meta, spec = pod["metadata"], pod["spec"]
    owners = [each["kind"] for each in meta.get("ownerReferences", []) if each.get("controller")]
    may_move = meta.get("annotations", {}).get(SAFE_TO_EVICT)
    if owners == ["DaemonSet"] or may_move == "true" or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return ""
    if not owners:
        return "nothing would create it again"
    if may_move == "false":
        return "it is not safe to evict"
    is_local = any("hostPath" in each or "emptyDir" in each for each in spec.get("volumes", []))
    return "it has local storage" if is_local else ""


def _requests(pod: Json) -> set[str]:
    return {name for each in _containers(pod) for name in each.get("resources", {}).get("requests", {})}


def _request(pod: Json, resource: str) -> float:
    return sum(
        float(parse(each.get("resources", {}).get("requests", {}).get(resource, "0")))
        for each in _containers(pod)
    )


def _containers(pod: Json) -> list[Json]:
    containers: list[Json] = pod["spec"]["containers"]
    return containers


def _allocatable(node: Json, resource: str) -> float:
    return float(parse(node["status"]["allocatable"].get(resource, "0")))
