"""Ask the API server where the volumes of a workload can be mounted.

Called by `snapshot_reader` for a plain workload that has volumes and no Job yet. They are read when a place
is sought rather than watched: few workloads have some, and a cluster may have very many.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Forbidden, NotFound
from gpu_orchestrator.api import names, pod_limits, template_checks, volumes
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import VOLUME_CLAIMS, Pod, PodSpec, VolumeClaim
from gpu_orchestrator.api.volumes import STORAGE_CLASSES, VOLUMES, NotReady, StorageClass, Volume
from gpu_orchestrator.api.wire import Object, ObjectMeta, Resource, key
from gpu_orchestrator.apps.operator.planning.snapshot import Volumes

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Found:
    """The claims, volumes and classes of one workload; None is a class that does not exist."""

    claims: dict[str, VolumeClaim] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    classes: dict[str, StorageClass | None] = field(default_factory=dict)

    def volume_claim(self, name: str) -> VolumeClaim | None:
        return self.claims.get(name)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)


def mounted(workload: GPUWorkload) -> list[str]:
    """Return the names of the PersistentVolumeClaims in the workload's template, each once; none if the check
    of the template refuses them."""
    written = (workload.spec.template.spec if workload.spec.template else {}).get("volumes") or []
    try:
        spec = msgspec.convert({"volumes": written}, PodSpec)
    except msgspec.ValidationError:
        return []
    found = list(dict.fromkeys(template_checks.claim_names(spec)))
    return found if len(found) <= pod_limits.MOST_CLAIMS else []


async def examine(client: Client, workload: GPUWorkload) -> Volumes:
    """Return where the volumes can be mounted. Without the right to read them, leave that to the
    kube-scheduler."""
    try:
        return await _examine(client, workload, mounted(workload))
    except Forbidden:
        return Volumes(is_open=True)


async def _examine(client: Client, workload: GPUWorkload, wanted: list[str]) -> Volumes:
    space, found, is_open = workload.metadata.namespace, Found(), False
    for name in wanted:
        claim = await _find(client, VOLUME_CLAIMS, name, space)
        if claim is None:
            return Volumes(not_ready=f"PersistentVolumeClaim {space}/{name} does not exist; create it")
        if claim.spec.volume_name and claim.status.phase == "Bound":
            found.claims[key(claim)] = claim
            await _volume(client, claim, found)
        elif await _waits_for_consumer(client, claim, found):
            is_open = True
        else:
            return Volumes(not_ready=f"PersistentVolumeClaim {space}/{name} is not bound to a volume yet")
    return _reach(space, found, is_open)


def _reach(space: str, found: Found, is_open: bool) -> Volumes:
    mounts = [
        {"persistentVolumeClaim": {"claimName": claim.metadata.name}} for claim in found.claims.values()
    ]
    pod = Pod(ObjectMeta(namespace=space), msgspec.convert({"volumes": mounts}, PodSpec))
    reach = volumes.reach(pod, found)
    return Volumes(not_ready=reach.why) if isinstance(reach, NotReady) else Volumes(reach, is_open=is_open)


async def _volume(client: Client, claim: VolumeClaim, found: Found) -> None:
    name = claim.spec.volume_name
    if volume := await _find(client, VOLUMES, name):
        found.volumes[name] = volume  # `volumes.reach` reports a missing one


async def _waits_for_consumer(client: Client, claim: VolumeClaim, found: Found) -> bool:
    name = claim.spec.storage_class_name
    if name not in found.classes:
        found.classes[name] = await _find(client, STORAGE_CLASSES, name)
    storage = found.classes[name]
    return storage is not None and storage.waits_for_consumer


async def _find(client: Client, kind: Resource[T], name: str, space: str = "") -> T | None:
    """Return the object; None if it does not exist, or if no object can have this name."""
    if not names.is_object_name(name):
        return None
    try:
        return await client.get(kind, name, space)
    except NotFound:
        return None
