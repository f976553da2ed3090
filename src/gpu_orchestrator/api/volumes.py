"""Find the nodes that can reach a pod's volumes. Only bound volumes name their nodes.

This scheduler does not bind volumes or create them for their first consumer; a pod that needs that is refused
with this reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.api.kubernetes import Pod, VolumeClaim
from gpu_orchestrator.api.pod import NodeSelector
from gpu_orchestrator.api.translate import term_of
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire
from gpu_orchestrator.core.request import Term


class ClaimReference(Wire, frozen=True, gc=False):
    namespace: str = ""
    name: str = ""


class VolumeAffinity(Wire, frozen=True, gc=False):
    required: NodeSelector | None = None


class VolumeSpec(Wire, frozen=True, gc=False):
    claim_ref: ClaimReference = ClaimReference()
    node_affinity: VolumeAffinity | None = None


class Volume(Wire, frozen=True, gc=False):
    """A PersistentVolume, with only what decides where its pod can go."""

    metadata: ObjectMeta
    spec: VolumeSpec = VolumeSpec()


VOLUMES = Resource(Volume, "PersistentVolume", "persistentvolumes", namespaced=False)


class StorageClass(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    volume_binding_mode: str = ""

    @property
    def waits_for_consumer(self) -> bool:
        """True if a volume is bound only when a pod that needs it has a node."""
        return self.volume_binding_mode == "WaitForFirstConsumer"


STORAGE_CLASSES = Resource(StorageClass, "StorageClass", "storageclasses", "storage.k8s.io", namespaced=False)


class Known(Protocol):
    """Looks up volume claims and volumes."""

    def volume_claim(self, key: str) -> VolumeClaim | None: ...

    def volume(self, name: str) -> Volume | None: ...


def claims_of(pod: Pod) -> list[str]:
    """Return the keys of the PersistentVolumeClaims that a pod mounts."""
    mounted = [each.persistent_volume_claim for each in pod.spec.volumes]
    return [f"{pod.metadata.namespace}/{each.claim_name}" for each in mounted if each]


@dataclass(frozen=True, slots=True)
class NotReady:
    """A volume of the pod is missing or not bound."""

    why: str


def reach(pod: Pod, known: Known) -> tuple[tuple[Term, ...], ...] | NotReady:
    """Return the alternatives of each volume, all of which must hold; or which volume is not ready."""
    found: list[tuple[Term, ...]] = []
    for key in claims_of(pod):
        claim = known.volume_claim(key)
        if claim is None:
            return NotReady(f"PersistentVolumeClaim {key} does not exist; create it")
        if claim.status.phase != "Bound" or not claim.spec.volume_name:
            return NotReady(
                f"PersistentVolumeClaim {key} is not bound, and this scheduler binds no volumes; "
                "use a StorageClass with volumeBindingMode Immediate"
            )
        volume = known.volume(claim.spec.volume_name)
        if volume is None:
            return NotReady(f"PersistentVolume {claim.spec.volume_name} of {key} does not exist")
        if volume.spec.node_affinity and volume.spec.node_affinity.required:
            found.append(tuple(map(term_of, volume.spec.node_affinity.required.node_selector_terms)))
    return tuple(found)


def both(one: tuple[Term, ...], other: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the alternatives that hold where one of each holds. A term without conditions matches
    nothing."""
    if not one or not other:
        return one or other
    real = [(a, b) for a in one if _has_conditions(a) for b in other if _has_conditions(b)]
    return tuple(Term((*a.labels, *b.labels), (*a.fields, *b.fields)) for a, b in real) or (Term(),)


def all_of(first: tuple[Term, ...], rest: Iterable[tuple[Term, ...]]) -> tuple[Term, ...]:
    for each in rest:
        first = both(first, each)
    return first


def _has_conditions(term: Term) -> bool:
    return bool(term.labels or term.fields)
