"""Write claims: reserve a claim for one pod at a time, and report in its status what the pod was given.

    free ──reserve: finalizer and the pod's UID, at the version seen──▶ reserved ──pod bound──▶ Bound
      ▲                                                                    │
      └────── Released: status, then finalizer and UID removed ◀── pod ended, devices free

If several schedulers decide, the binder reserves before the bind, so that two pods never get the same claim;
a single leader reserves after it. Every other write follows from the claim and its pod as they are now
(`claim_status`), so a crash in between loses nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import AlreadyExists, Conflict, NotFound
from gpu_orchestrator.adapters.kube.transport.codec import ignore_answer
from gpu_orchestrator.api import claims, names
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS, GpuClaim
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import Json, Resource
from gpu_orchestrator.apps.scheduler.binding.claim_status import Due

_CLAIMS: Resource[Any] = ignore_answer(GPU_CLAIMS)


@dataclass(frozen=True, slots=True)
class Reserved:
    """The claim is reserved for the pod."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim cannot be reserved for the pod. `is_for_user`: until a user does what `why` says."""

    why: str
    is_for_user: bool = False


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
        except Conflict:
            return await self._reserve_again(pod, claim)
        except NotFound:
            return Refused(f"GpuClaim {meta.name} was deleted in the meantime")
        return Reserved()

    async def _reserve_again(self, pod: Pod, claim: GpuClaim) -> Reserved | Refused:
        """Reserve a claim that has changed since it was read, unless its user changed: a status that we wrote
        a moment ago must not make the bind fail."""
        name = claim.metadata.name
        try:
            found = await self._client.get(GPU_CLAIMS, name, claim.metadata.namespace)
        except NotFound:
            return Refused(f"GpuClaim {name} was deleted in the meantime")
        meta, user = found.metadata, claims.reserved_for(found)
        is_same = meta.uid == claim.metadata.uid and not meta.deletion_timestamp
        is_newer = meta.resource_version != claim.metadata.resource_version
        if not (is_same and is_newer and user in ("", pod.metadata.uid)):
            return Refused(f"GpuClaim {name} changed in the meantime")
        return await self.reserve(pod, found)

    async def _make_child(self, pod: Pod, template: GpuClaim) -> Reserved | Refused:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {
            "metadata": {
                "name": claims.child_name(pod),
                "namespace": pod.metadata.namespace,
                "finalizers": [names.CLAIM_FINALIZER],
                "ownerReferences": [owner],
                **_about(pod, {names.MANAGED: "true"}),
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
        return Refused(f"GpuClaim {name} exists and is not this pod's; delete it", is_for_user=True)

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

    async def write_at_version(self, claim: GpuClaim, status: Json) -> bool:
        """Write a status that is true of the claim as it was read; return False if the claim has changed.
        Without the version, a claim that was bound a moment ago would show Pending."""
        meta = claim.metadata
        body = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
        try:
            await self._client.patch(_CLAIMS, meta.name, body, meta.namespace, subresource="status")
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


def _about(pod: Pod, labels: Mapping[str, str] = MappingProxyType({})) -> Json:
    return {
        "labels": {names.POD_UID: pod.metadata.uid, **labels},
        "annotations": {names.LEASE_POD: pod.metadata.name},
    }
