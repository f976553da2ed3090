"""Volumes, and the nodes that can reach and attach the bound volumes of a pod.

`first_consumer` chooses volumes for claims that are bound when their pod is scheduled.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gpu_orchestrator.api.kubernetes import CsiNode, Pod, VolumeClaim
from gpu_orchestrator.api.pod import NodeSelector, Quantities
from gpu_orchestrator.api.pod import Volume as Mount
from gpu_orchestrator.api.translate import term_of
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire
from gpu_orchestrator.core.request import Expression, Term


class ClaimReference(Wire, frozen=True, gc=False):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeAffinity(Wire, frozen=True, gc=False):
    required: NodeSelector | None = None


class CsiVolume(Wire, frozen=True, gc=False):
    driver: str = ""
    volume_handle: str = ""


class VolumeSpec(Wire, frozen=True, gc=False):
    claim_ref: ClaimReference = ClaimReference()
    node_affinity: VolumeAffinity | None = None
    csi: CsiVolume | None = None
    storage_class_name: str = ""
    capacity: Quantities = {}
    access_modes: list[str] = []
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str = ""


class VolumeStatus(Wire, frozen=True, gc=False):
    phase: str = ""


class Volume(Wire, frozen=True, gc=False):
    """A PersistentVolume, with only what decides which claim gets it and where its pod can go."""

    metadata: ObjectMeta
    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


VOLUMES = Resource(Volume, "PersistentVolume", "persistentvolumes", namespaced=False)


class TopologyCondition(Wire, frozen=True, gc=False):
    key: str = ""
    values: list[str] = []


class TopologyTerm(Wire, frozen=True, gc=False):
    match_label_expressions: list[TopologyCondition] = []


class StorageClass(Wire, frozen=True, gc=False):
    """`allowed_topologies` are the alternatives of where volumes can be created; none means anywhere."""

    metadata: ObjectMeta
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: list[TopologyTerm] = []

    @property
    def creates_volumes(self) -> bool:
        return self.provisioner not in ("", "kubernetes.io/no-provisioner")

    @property
    def waits_for_consumer(self) -> bool:
        """True if a volume is bound only when a pod that needs it has a node."""
        return self.volume_binding_mode == "WaitForFirstConsumer"


STORAGE_CLASSES = Resource(StorageClass, "StorageClass", "storageclasses", "storage.k8s.io", namespaced=False)


ZONES = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels that say where a volume or a node is, and what each is called today."""


class Known(Protocol):
    """Looks up volume claims and volumes."""

    def volume_claim(self, key: str) -> VolumeClaim | None: ...

    def volume(self, name: str) -> Volume | None: ...


def claims_of(pod: Pod) -> list[str]:
    """Return the keys of the PersistentVolumeClaims that a pod mounts, each once."""
    if not pod.spec.volumes:
        return []
    mounted = (claim_name(pod.metadata.name, each) for each in pod.spec.volumes)
    return list(dict.fromkeys(f"{pod.metadata.namespace}/{name}" for name in mounted if name))


def claim_name(pod_name: str, mounted: Mount) -> str:
    """Return the name of the claim behind a volume of a pod; empty if it has none."""
    if mounted.persistent_volume_claim:
        return mounted.persistent_volume_claim.claim_name
    return f"{pod_name}-{mounted.name}" if mounted.ephemeral else ""


@dataclass(frozen=True, slots=True)
class NotReady:
    """A volume of the pod is missing or not bound."""

    why: str


Alternatives: TypeAlias = tuple[Term, ...]
"""Terms of which one must hold; none at all means anywhere."""


def reach(pod: Pod, known: Known) -> tuple[Alternatives, ...] | NotReady:
    """Return the alternatives of each bound volume, all of which must hold; or which one is not ready."""
    found: list[Alternatives] = []
    for key in claims_of(pod):
        volume = bound_volume(key, known)
        if isinstance(volume, NotReady):
            return volume
        found += reach_of(volume)
    return tuple(dict.fromkeys(each for each in found if each))


def reach_of(volume: Volume) -> list[Alternatives]:
    """Return the alternatives of where one volume can be reached, all of which must hold."""
    found: list[Alternatives] = []
    if volume.spec.node_affinity and volume.spec.node_affinity.required:
        found.append(tuple(map(term_of, volume.spec.node_affinity.required.node_selector_terms)))
    labels = volume.metadata.labels
    return found + [_in_zone(label, labels) for label in ZONES if label in labels]


def attached(pod: Pod, known: Known) -> tuple[tuple[str, str], ...]:
    """Return the volumes of a pod that count against its node's limits, by driver and handle."""
    bound = (bound_volume(key, known) for key in claims_of(pod))
    csi = (each.spec.csi for each in bound if isinstance(each, Volume))
    return tuple(sorted({(each.driver, each.volume_handle) for each in csi if each}))


def limits(drivers: CsiNode | None) -> tuple[tuple[str, int], ...]:
    """Return how many volumes of each driver a node can attach."""
    listed = (drivers.spec.drivers if drivers else None) or ()
    counts = ((each.name, each.allocatable.count) for each in listed if each.allocatable)
    return tuple(sorted((name, count) for name, count in counts if count is not None))


def serves_one_pod(claim: VolumeClaim) -> bool:
    return "ReadWriteOncePod" in claim.spec.access_modes


def bound_volume(key: str, known: Known) -> Volume | NotReady:
    """Return the volume that this PersistentVolumeClaim is bound to, or why it cannot be mounted."""
    claim = known.volume_claim(key)
    if claim is None:
        return NotReady(f"PersistentVolumeClaim {key} does not exist; create it")
    if problem := claim_problem(key, claim):
        return problem
    if not is_bound(claim):
        return NotReady(f"PersistentVolumeClaim {key} is not bound to a volume yet")
    return volume_of(key, claim, known)


def claim_problem(key: str, claim: VolumeClaim) -> NotReady | None:
    """Return why no pod can mount this claim, whether it is bound or not; None if one can."""
    if claim.metadata.deletion_timestamp:
        return NotReady(f"PersistentVolumeClaim {key} is being deleted; create it again")
    if claim.status.phase == "Lost":
        return NotReady(f"PersistentVolumeClaim {key} has lost its volume; create it again")
    return None


def is_bound(claim: VolumeClaim) -> bool:
    return claim.status.phase == "Bound" and bool(claim.spec.volume_name)


def volume_of(key: str, claim: VolumeClaim, known: Known) -> Volume | NotReady:
    """Return the volume of a bound claim."""
    volume = known.volume(claim.spec.volume_name)
    if volume is None:
        return NotReady(f"PersistentVolume {claim.spec.volume_name} of {key} does not exist")
    return volume


def _in_zone(label: str, labels: Mapping[str, str]) -> tuple[Term, ...]:
    """Return where a volume with this zone or region label can be reached: on nodes of one of its zones, and
    on nodes without any such label, which are all in the same zone."""
    zones = tuple(sorted(labels[label].split("__")))
    there = Term((Expression(label, "In", zones),))
    anywhere = Term(tuple(Expression(each, "DoesNotExist") for each in ZONES))
    if (newer := ZONES[label]) == label:
        return there, anywhere
    renamed = Term((Expression(label, "DoesNotExist"), Expression(newer, "In", zones)))
    return there, renamed, anywhere


def both(one: Alternatives, other: Alternatives) -> Alternatives:
    """Return the alternatives that hold where one of each holds. A term without conditions matches
    nothing."""
    if not one or not other:
        return one or other
    real = [(a, b) for a in one if _has_conditions(a) for b in other if _has_conditions(b)]
    return tuple(Term((*a.labels, *b.labels), (*a.fields, *b.fields)) for a, b in real) or (Term(),)


def all_of(every_one: Iterable[Alternatives]) -> Alternatives:
    """Return the alternatives that hold where one of each holds. They multiply: give it those of a single
    volume, of which there are few."""
    found: Alternatives = ()
    for each in every_one:
        found = both(found, each)
    return found


def _has_conditions(term: Term) -> bool:
    return bool(term.labels or term.fields)
