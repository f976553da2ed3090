"""Write claims: reserve a claim for one pod at a time, and report in its status what the pod was given.

    free ──reserve: finalizer and the pod's UID, at the version seen──▶ reserved ──pod bound──▶ Bound
      ▲                                                                    │
      └────── Released: status, then finalizer and UID removed ◀── pod ended, devices free

If several schedulers decide, the binder reserves before the bind, so that two pods never get the same claim;
a single leader reserves after it. Every other write follows from the claim and its pod as they are now
(`due`), so a crash in between loses nothing.
"""

from dataclasses import dataclass
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import AlreadyExists, Conflict, NotFound
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.api import claims, names
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS, GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import Json, Resource

_CLAIMS: Resource[Any] = ignore_answer(GPU_CLAIMS)


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be written: a status, and whether the reservation is removed."""

    status: Json | None = None
    release: bool = False


@dataclass(frozen=True, slots=True)
class Reserved:
    """The claim is reserved for the pod."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim cannot be reserved for the pod."""

    why: str


class ClaimWriter:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def reserve(self, pod: Pod, claim: GpuClaim) -> Reserved | Refused:
        """Reserve the pod's claim for it, or create its own claim from the template."""
        if claims.is_template(pod):
            return await self._make_child(pod, claim)
        if claims.reserved_for(claim) == pod.metadata.uid:
            return Reserved()
        meta = claim.metadata
        body = {
            "metadata": {
                "resourceVersion": meta.resource_version,
                "finalizers": [*meta.finalizers, names.CLAIM_FINALIZER],
                **_about(pod),
            }
        }
        try:
            await self._client.patch(_CLAIMS, meta.name, body, meta.namespace)
        except (Conflict, NotFound):
            return Refused(f"GpuClaim {meta.name} changed in the meantime")
        return Reserved()

    async def _make_child(self, pod: Pod, template: GpuClaim) -> Reserved | Refused:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {
            "metadata": {
                "name": claims.child_name(pod),
                "namespace": pod.metadata.namespace,
                "finalizers": [names.CLAIM_FINALIZER],
                "ownerReferences": [owner],
                **_about(pod),
            },
            "spec": template.spec,
        }
        try:
            await self._client.create(_CLAIMS, body, idempotent=True)
        except AlreadyExists:
            return await self._find_child(pod)
        return Reserved()

    async def _find_child(self, pod: Pod) -> Reserved | Refused:
        name = claims.child_name(pod)
        found = await self._client.get(GPU_CLAIMS, name, pod.metadata.namespace)
        if claims.reserved_for(found) == pod.metadata.uid:
            return Reserved()
        return Refused(f"GpuClaim {name} exists and is not this pod's; delete it")

    async def write(self, claim: GpuClaim, due: Due) -> bool:
        """Write what is due; return False if the claim has changed and must be read again."""
        meta = claim.metadata
        try:
            if due.status is not None:
                body = {"status": due.status}
                claim = await self._client.patch(
                    GPU_CLAIMS, meta.name, body, meta.namespace, subresource="status"
                )
            if due.release:
                await self._remove_reservation(claim)
        except NotFound:
            return True
        except Conflict:
            return False
        return True

    async def _remove_reservation(self, claim: GpuClaim) -> None:
        meta = claim.metadata
        change = {
            "resourceVersion": meta.resource_version,
            "finalizers": [each for each in meta.finalizers if each != names.CLAIM_FINALIZER],
            "labels": {names.POD_UID: None},
            "annotations": {names.LEASE_POD: None},
        }
        await self._client.patch(_CLAIMS, meta.name, {"metadata": change}, meta.namespace)


def _about(pod: Pod) -> Json:
    return {
        "labels": {names.POD_UID: pod.metadata.uid},
        "annotations": {names.LEASE_POD: pod.metadata.name},
    }


def due(claim: GpuClaim, pod: Pod | None, *, given: Json | None, held: bool) -> Due | None:
    """Return what to write to a claim that is reserved for a pod; None if nothing. `pod` is None if it has
    ended. `given` is the status for a bound pod. `held`: an ended pod's devices are not free yet, or the pod
    is being bound."""
    meta, status = claim.metadata, claim.status
    if names.CLAIM_FINALIZER not in meta.finalizers:
        return None
    if pod is not None and pod.spec.node_name and claims.reserved_for(claim) == pod.metadata.uid:
        is_written = status.phase == "Bound" and status.pod_uid == pod.metadata.uid
        return None if is_written or given is None else Due(given)
    if pod is not None and not (meta.deletion_timestamp and not held):
        return None
    if pod is None and held:
        return None
    is_written = bool(meta.deletion_timestamp) or status.phase == "Released"
    return Due(None if is_written else released(claim), release=True)


def bound(pod: Pod, claim: GpuClaim, *, uuids: list[str], gbps: int, now: str) -> Json:
    """Return the status of a claim whose pod has its devices."""
    ids = claims.given(pod)
    return {
        "phase": "Bound",
        "nodeName": pod.spec.node_name,
        "gpuIds": list(ids),
        "allocated": pod.metadata.annotations.get(names.ALLOCATED, ""),
        "deviceUUIDs": uuids or None,
        "podUID": pod.metadata.uid,
        "bandwidthGBps": gbps or None,
        "message": None,
        "observedGeneration": claim.metadata.generation,
        "conditions": [_allocated("True", "Bound", f"serves pod {pod.metadata.name}", now)],
    }


def released(claim: GpuClaim) -> Json:
    cleared = dict.fromkeys(("nodeName", "gpuIds", "allocated", "deviceUUIDs", "podUID", "bandwidthGBps"))
    return {
        **cleared,
        "phase": "Released",
        "message": "the pod it served has ended; the claim can be used again",
        "observedGeneration": claim.metadata.generation,
        "conditions": [],
    }


def _allocated(truth: str, reason: str, message: str, now: str) -> Json:
    return {
        "type": "Allocated",
        "status": truth,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
