"""Ask the API server where the volumes of a workload can be mounted.

Called by `snapshot_reader` for a plain workload that has volumes and no Job yet. They are read when a place
is sought rather than watched: few workloads have some, and a cluster may have very many.
"""

from dataclasses import dataclass, field

import msgspec

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Forbidden, NotFound
from gpu_orchestrator.api import volumes
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import VOLUME_CLAIMS, Pod, PodSpec, VolumeClaim
from gpu_orchestrator.api.volumes import STORAGE_CLASSES, VOLUMES, NotReady, Volume
from gpu_orchestrator.api.wire import ObjectMeta, key
from gpu_orchestrator.apps.operator.planning.snapshot import Volumes


@dataclass(frozen=True, slots=True)
class Found:
    """The claims and volumes of one workload."""

    claims: dict[str, VolumeClaim] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)

    def volume_claim(self, name: str) -> VolumeClaim | None:
        return self.claims.get(name)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)


def mounted(workload: GPUWorkload) -> list[str]:
    """Return the names of the PersistentVolumeClaims in the workload's template."""
    written = (workload.spec.template.spec if workload.spec.template else {}).get("volumes") or []
    try:
        spec = msgspec.convert({"volumes": written}, PodSpec)
    except msgspec.ValidationError:
        return []  # the check of the template reports it
    return [each.persistent_volume_claim.claim_name for each in spec.volumes if each.persistent_volume_claim]


async def examine(client: Client, workload: GPUWorkload) -> Volumes:
    """Return where the volumes can be mounted. Without the right to read them, leave that to the
    kube-scheduler."""
    try:
        return await _examine(client, workload, dict.fromkeys(mounted(workload)))
    except Forbidden:
        return Volumes(is_open=True)


async def _examine(client: Client, workload: GPUWorkload, wanted: dict[str, None]) -> Volumes:
    space, found, is_open = workload.metadata.namespace, Found(), False
    for name in wanted:
        claim = await _claim(client, name, space)
        if claim is None:
            return Volumes(not_ready=f"PersistentVolumeClaim {space}/{name} does not exist; create it")
        if claim.spec.volume_name and claim.status.phase == "Bound":
            found.claims[key(claim)] = claim
            await _volume(client, claim, found)
        elif await _waits_for_consumer(client, claim):
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


async def _claim(client: Client, name: str, space: str) -> VolumeClaim | None:
    try:
        return await client.get(VOLUME_CLAIMS, name, space)
    except NotFound:
        return None


async def _volume(client: Client, claim: VolumeClaim, found: Found) -> None:
    name = claim.spec.volume_name
    try:
        found.volumes[name] = await client.get(VOLUMES, name)
    except NotFound:
        return  # `volumes.reach` reports it


async def _waits_for_consumer(client: Client, claim: VolumeClaim) -> bool:
    if not claim.spec.storage_class_name:
        return False
    try:
        return (await client.get(STORAGE_CLASSES, claim.spec.storage_class_name)).waits_for_consumer
    except NotFound:
        return False
