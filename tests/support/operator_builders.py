"""Builders of workloads, Jobs, pods and nodes, with defaults for all but the point of a test."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gpu_orchestrator.api import names
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.kubernetes import Node, Pod
from gpu_orchestrator.apps.operator import apply
from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.planning.plan import Plan
from gpu_orchestrator.apps.operator.planning.reconcile import reconcile
from gpu_orchestrator.apps.operator.planning.snapshot import Ask, Given, WorkloadSnapshot
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UID = "0a1b2c3d-0000-0000-0000-000000000000"
REFUSAL = Refusal(2, (("have fewer than 4 free GPUs", 2),))


def workload(name: str = "bert", *, meta: dict[str, Any] | None = None, **fields: Any) -> GPUWorkload:
    """Build a workload. `fields` are those of the spec in camelCase, and `status`."""
    status = fields.pop("status", {})
    if status:
        status = {"observedGeneration": 1, **status}
    plain = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": UID,
            "generation": 1,
            "finalizers": [names.WORKLOAD_FINALIZER],
            "creationTimestamp": "2026-01-01T12:00:00Z",
            **(meta or {}),
        },
        "spec": {"modelName": "bert-large", "gpuCount": 4, **fields},
        "status": status,
    }
    return msgspec.convert(plain, GPUWorkload)


def job(owner: GPUWorkload, *nodes: str, retry: int = 0, **state: Any) -> Job:
    """Build a Job of this workload for one of these nodes. `state`: `conditions` as {type: reason},
    `created`, `deleting`, `ttl`, `suspend`, `deadline`, `status`, `owned_by` a UID, `annotations`, and
    `made_from` for a claimed one."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        for node in nodes or ("a",)
    ]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(owner.spec.gpu_count)}}}
    meta: dict[str, Any] = {
        "name": jobs.name_of(owner, retry),
        "namespace": owner.metadata.namespace,
        "uid": f"job-{retry}",
        "ownerReferences": [
            {
                "apiVersion": "gpu.warp.dev/v1alpha1",
                "kind": "GPUWorkload",
                "name": owner.metadata.name,
                "uid": state.get("owned_by", UID),
                "controller": True,
            }
        ],
    }
    if created := state.get("created"):
        meta["creationTimestamp"] = created.isoformat()
    if state.get("deleting"):
        meta["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": f"because of {reason}"}
        for kind, reason in state.get("conditions", {}).items()
    ]
    spec: dict[str, Any] = {
        "template": {"spec": {"affinity": {"nodeAffinity": affinity}, "containers": [container]}}
    }
    meta["annotations"] = state.get("annotations", {})
    if "made_from" in state:
        meta["annotations"] = {names.MADE_FROM: state["made_from"]}
        asking = {"metadata": {"annotations": {names.CLAIM_TEMPLATE: "template"}}}
        spec = {"template": {**asking, "spec": {"schedulerName": names.SCHEDULER}}}
    if "ttl" in state:
        spec["ttlSecondsAfterFinished"] = state["ttl"]
    spec["suspend"] = state.get("suspend", False)
    spec["activeDeadlineSeconds"] = state.get("deadline", owner.spec.max_runtime_seconds)
    plain = {"metadata": meta, "spec": spec, "status": {"conditions": conditions, **state.get("status", {})}}
    return msgspec.convert(plain, Job)


def pod(owner: str = "", *, uid: str = "pod-1", node: str = "", phase: str = "Pending", **more: Any) -> Pod:
    """Build a pod. `owner` is the name of its Job, `unschedulable_since` a time, `said` the scheduler's
    message, `gpus` and `milligpu` numbers, `given` the devices of its node and `uuids` theirs, `allocated`
    the annotation instead of these, `created` a time, `scheduler` its scheduler, `nominated` the node where
    others are evicted for it, `index` its number among the replicas."""
    meta: dict[str, Any] = {"name": uid, "namespace": "team", "uid": uid}
    if given := more.get("given"):
        visible = ",".join(more.get("uuids", ()))
        meta["annotations"] = {names.ALLOCATED: f"{node}:{given}", names.VISIBLE_DEVICES: visible}
    if allocated := more.get("allocated"):
        meta["annotations"] = {names.ALLOCATED: allocated}
    if created := more.get("created"):
        meta["creationTimestamp"] = created.isoformat()
    if owner:
        meta["labels"] = {names.CONTROLLER: names.CONTROLLER_NAME}
        if "index" in more:
            meta["labels"][names.COMPLETION_INDEX] = str(more["index"])
        meta["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "job-0"}]
    conditions = []
    if since := more.get("unschedulable_since"):
        conditions.append(
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": more.get("said", "0/1 nodes are available"),
                "lastTransitionTime": since.isoformat(),
            }
        )
    limits = {"nvidia.com/gpu": str(more.get("gpus", 0))}
    if "milligpu" in more:
        limits[names.MILLIGPU] = str(more["milligpu"])
    by_claim = names.SCHEDULER if more.get("given") else "default-scheduler"
    scheduler = more.get("scheduler", by_claim)
    spec = {
        "nodeName": node,
        "schedulerName": scheduler,
        "containers": [{"name": "main", "resources": {"limits": limits}}],
    }
    status = {
        "phase": phase,
        "conditions": conditions,
        "nominatedNodeName": more.get("nominated", ""),
    }
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod)


def node(name: str, gpus: int = 4, *, ready: bool = True, **more: Any) -> Node:
    """Build a node. `more`: `labels`, `annotations`, `resource`, `taints`, `unschedulable`."""
    plain = {
        "metadata": {
            "name": name,
            "labels": more.get("labels", {}),
            "annotations": more.get("annotations", {}),
        },
        "spec": {"unschedulable": more.get("unschedulable", False), "taints": more.get("taints", [])},
        "status": {
            "allocatable": {
                "cpu": "96",
                "memory": "1Ti",
                "pods": "110",
                more.get("resource", "nvidia.com/gpu"): str(gpus),
            },
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
    return msgspec.convert(plain, Node)


def gives(node_name: str, *others: str, resource: str = "nvidia.com/gpu") -> Ask:
    return lambda wishes, most=1: Given(node_name, resource, others[: most - 1])


def refuses(wishes: Sequence[Request], most: int = 1) -> Refusal:
    return REFUSAL


def never(wishes: Sequence[Request], most: int = 1) -> Given | Refusal:
    raise AssertionError("the plan asked for a placement, but should not")


def plan_for(snapshot: WorkloadSnapshot, ask: Ask = never, *, at: datetime = NOW, seed: int = 1) -> Plan:
    return reconcile(snapshot, at, ask, random.Random(seed))


def after(snapshot: WorkloadSnapshot, plan: Plan) -> GPUWorkload:
    """Return the workload as it is after the plan's status was written."""
    old = snapshot.workload
    if plan.status is None:
        return old
    status = msgspec.to_builtins(old.status)
    for name, value in apply.difference(old.status, plan.status).items():
        if value is None:
            del status[name]
        else:
            status[name] = value
    return msgspec.structs.replace(old, status=msgspec.convert(status, type(old.status)))


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)
