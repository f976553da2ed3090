"""The live copies that the watches keep, and what is looked up in them together."""

from dataclasses import dataclass

from gpu_orchestrator.adapters.kube.store import Store
from gpu_orchestrator.api import claims as asks
from gpu_orchestrator.api.gpuclaim import GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus
from gpu_orchestrator.api.kubernetes import Lease, Node, Pod, VolumeClaim
from gpu_orchestrator.api.volumes import Volume
from gpu_orchestrator.apps.scheduler import wish


@dataclass(frozen=True, slots=True)
class Stores:
    pods: Store[Pod]
    nodes: Store[Node]
    claims: Store[GpuClaim]
    reports: Store[GpuNodeStatus]
    leases: Store[Lease]
    volume_claims: Store[VolumeClaim]
    volumes: Store[Volume]

    def volume_claim(self, key: str) -> VolumeClaim | None:
        return self.volume_claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)

    def claim_of(self, pod: Pod) -> GpuClaim | None:
        """The claim or template that the pod names."""
        name = wish.named_claim(pod)
        return self.claims.get(f"{pod.metadata.namespace}/{name}") if name else None

    def terms(self, pod: Pod) -> GpuClaimSpec | None:
        """How the pod holds its devices: as its claim says, or the template that is yet to become one."""
        name = asks.claim_name(pod)
        claim = self.claims.get(f"{pod.metadata.namespace}/{name}") if name else None
        claim = claim or self.claim_of(pod)
        return claim.spec if claim else None


def claims_of(pod: Pod) -> list[str]:
    """Keys of the claims a pod has to do with: an index of the pod store."""
    own = {wish.named_claim(pod), asks.claim_name(pod)} - {""}
    return [f"{pod.metadata.namespace}/{name}" for name in sorted(own)]
