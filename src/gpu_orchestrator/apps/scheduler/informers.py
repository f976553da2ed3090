"""The watches of everything that the scheduler uses, their stores, and lookups across several stores.

Every replica keeps its watches running, so that a new leader need not list first.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.optional import OptionalWatch
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api import claims, first_consumer, free_volumes, gangs, neighbours, volumes
from gpu_orchestrator.api.free_volumes import FreeVolume
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS, GpuClaim, GpuClaimSpec
from gpu_orchestrator.api.gpunodestatus import GPU_NODE_STATUSES, GpuNodeStatus
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES, GpuQueue
from gpu_orchestrator.api.kubernetes import (
    CSI_NODES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    VOLUME_CLAIMS,
    CsiNode,
    Lease,
    Namespace,
    Node,
    Pod,
    VolumeClaim,
)
from gpu_orchestrator.api.podgroup import POD_GROUPS, PodGroup
from gpu_orchestrator.api.volumes import STORAGE_CLASSES, VOLUMES, StorageClass, Volume
from gpu_orchestrator.core.request import Expression

# Ended pods leave the store: the watch reports their end as a deletion.
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


NOBODY: frozenset[str] = frozenset()

MOST_SELECTIONS = 1024
"""How many answers about namespaces are kept."""

MOST_OFFERS = 20_000
"""How many volumes of other classes are remembered."""


class Selections:
    """Which namespaces meet conditions on their labels. An answer is kept until a namespace changes."""

    def __init__(self) -> None:
        self._version = -1
        self._names: frozenset[str] = frozenset()
        self._with_key: dict[str, set[str]] = {}
        self._with_label: dict[tuple[str, str], set[str]] = {}
        self._answers: dict[tuple[Expression, ...], frozenset[str]] = {}

    def find(self, namespaces: Store[Namespace], labels: tuple[Expression, ...]) -> frozenset[str]:
        if self._version != namespaces.version:
            self._list(namespaces)
        if (found := self._answers.get(labels)) is None:
            if len(self._answers) >= MOST_SELECTIONS:
                self._answers.clear()
            found = self._answers[labels] = self._names.intersection(*map(self._meeting, labels))
        return found

    def _list(self, namespaces: Store[Namespace]) -> None:
        self._version = namespaces.version
        self._names = frozenset(each.metadata.name for each in namespaces)
        self._with_key, self._with_label, self._answers = {}, {}, {}
        for meta in (each.metadata for each in namespaces):
            for label in meta.labels.items():
                self._with_key.setdefault(label[0], set()).add(meta.name)
                self._with_label.setdefault(label, set()).add(meta.name)

    def _meeting(self, condition: Expression) -> AbstractSet[str]:
        name = condition.key
        valued = (self._with_label.get((name, value), NOBODY) for value in condition.values)
        match condition.operator:
            case "In":
                return NOBODY.union(*valued)
            case "NotIn":
                return self._names.difference(*valued)
            case "Exists":
                return self._with_key.get(name, NOBODY)
            case "DoesNotExist":
                return self._names - self._with_key.get(name, NOBODY)
            case _:
                return NOBODY


class Offers:
    """What free volumes offer, each worked out once until it changes."""

    def __init__(self) -> None:
        self._known: dict[str, FreeVolume] = {}

    def find(self, free: list[Volume]) -> list[FreeVolume]:
        if len(self._known) > 2 * len(free) + MOST_OFFERS:
            self._known.clear()  # most of them are free no longer
        return list(map(self._of, free))

    def _of(self, volume: Volume) -> FreeVolume:
        found = self._known.get(volume.metadata.name)
        if found is None or found.volume is not volume:
            found = self._known[volume.metadata.name] = free_volumes.free_volume(volume)
        return found


@dataclass(frozen=True, slots=True)
class Promised:
    """What running bind jobs have chosen and the watches may not show yet: volumes by name, each with the key
    of its claim, and claims by key, each with the UID of the pod for which it is being bound."""

    volumes: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stores:
    pods: Store[Pod]
    nodes: Store[Node]
    claims: Store[GpuClaim]
    node_statuses: Store[GpuNodeStatus]
    leases: Store[Lease]
    volume_claims: Store[VolumeClaim]
    volumes: Store[Volume]
    namespaces: Store[Namespace] = field(default_factory=Store)
    csi_nodes: Store[CsiNode] = field(default_factory=Store)
    storage_classes: Store[StorageClass] = field(default_factory=Store)
    pod_groups: Store[PodGroup] = field(default_factory=Store)
    no_groups: Callable[[], str] = lambda: ""
    """Returns why PodGroups are not watched; empty if they are."""
    gpu_queues: Store[GpuQueue] = field(default_factory=Store)
    promised: Promised = field(default_factory=Promised)
    _offers: Offers = field(default_factory=Offers, repr=False)
    _selections: Selections = field(default_factory=Selections, repr=False)

    def volume_claim(self, key: str) -> VolumeClaim | None:
        return self.volume_claims.get(key)

    def volume(self, name: str) -> Volume | None:
        return self.volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self.storage_classes.get(name)

    def free_volumes(self, class_name: str, claim: str) -> list[FreeVolume]:
        """Return the volumes of a class that no claim has and none but this one was promised."""
        free, promised = self.volumes.by("class", class_name), self.promised.volumes
        if promised:
            free = [each for each in free if promised.get(each.metadata.name, claim) == claim]
        return self._offers.find(free)

    def volumes_for(self, claim: str) -> list[Volume]:
        """Return the volumes that name this claim and are not bound yet."""
        return self.volumes.by("claim", claim)

    def binding_for(self, claim: str) -> str:
        """Return the UID of the pod for which this claim is being bound; empty if for none."""
        return self.promised.claims.get(claim, "")

    @property
    def has_queues(self) -> bool:
        """True if there is any GpuQueue."""
        return len(self.gpu_queues) > 0

    def volume_limits(self, node: str) -> tuple[tuple[str, int], ...]:
        """Return how many volumes of each driver the node can attach."""
        return volumes.limits(self.csi_nodes.get(node))

    def namespaces_with(self, labels: tuple[Expression, ...]) -> frozenset[str]:
        """Return the names of the namespaces that meet these conditions."""
        return self._selections.find(self.namespaces, labels)

    def group_of(self, pod: Pod) -> PodGroup | None:
        """Return the PodGroup that the pod is in."""
        name = gangs.group_key(pod)
        return self.pod_groups.get(name) if name else None

    def no_group(self, pod: Pod) -> str:
        """Return what is said to a pod whose PodGroup is not known."""
        said = f"PodGroup {claims.shortened(gangs.group_key(pod))}"
        if absent := self.no_groups():
            return f"the pod is in {said}, and {absent}"
        return f"{said} does not exist; create it"

    def claim_of(self, pod: Pod) -> GpuClaim | None:
        """Return the claim or template that the pod names."""
        name = claims.named_claim(pod)
        return self.claims.get(f"{pod.metadata.namespace}/{name}") if name else None

    def claim_spec(self, pod: Pod) -> GpuClaimSpec | None:
        """Return how the pod holds its devices: the spec of its own claim, or of the template until the claim
        is made."""
        name = claims.claim_name(pod)
        claim = self.claims.get(f"{pod.metadata.namespace}/{name}") if name else None
        claim = claim or self.claim_of(pod)
        return claim.spec if claim else None


def free_class(volume: Volume) -> list[str]:
    """Return the class of a volume that no claim has: an index of the volume store."""
    return [first_consumer.class_name(volume)] if free_volumes.is_free(volume) else []


def named_claim(volume: Volume) -> list[str]:
    """Return the claim that a volume names while it is not bound: an index of the volume store."""
    named = volume.spec.claim_ref
    return [f"{named.namespace}/{named.name}"] if named.name and volume.status.phase != "Bound" else []


def unbound_class(claim: VolumeClaim) -> list[str]:
    """Return the class of a claim without a volume: an index of the volume claim store."""
    return [] if claim.spec.volume_name else [first_consumer.class_name(claim)]


VOLUME_INDICES = {"class": free_class, "claim": named_claim}
VOLUME_CLAIM_INDICES = {"class": unbound_class}


class Watches:
    def __init__(self, client: Client, namespace: str) -> None:
        self.nodes = Watch(client, NODES)
        self.node_statuses = Watch(client, GPU_NODE_STATUSES)
        self.claims = Watch(client, GPU_CLAIMS, indices={"pod": lambda claim: [claims.reserved_for(claim)]})
        self.leases = Watch(client, LEASES, namespace=namespace)
        self.volumes = Watch(client, VOLUMES, indices=VOLUME_INDICES)
        self.volume_claims = Watch(client, VOLUME_CLAIMS, indices=VOLUME_CLAIM_INDICES)
        self.storage_classes = Watch(client, STORAGE_CLASSES)
        self.namespaces = Watch(client, NAMESPACES)
        self.csi_nodes = Watch(client, CSI_NODES)
        self.pod_groups = OptionalWatch(client, POD_GROUPS)
        self.gpu_queues = OptionalWatch(client, GPU_QUEUES)
        self.pods = Watch(client, PODS, fields=NOT_ENDED, indices=POD_INDICES)
        self.stores = Stores(
            pods=self.pods.store,
            nodes=self.nodes.store,
            claims=self.claims.store,
            node_statuses=self.node_statuses.store,
            leases=self.leases.store,
            volume_claims=self.volume_claims.store,
            volumes=self.volumes.store,
            namespaces=self.namespaces.store,
            csi_nodes=self.csi_nodes.store,
            storage_classes=self.storage_classes.store,
            pod_groups=self.pod_groups.store,
            no_groups=lambda: self.pod_groups.absent,
            gpu_queues=self.gpu_queues.store,
        )

    @property
    def all(self) -> tuple[Watch[Any], ...]:
        """Return the watches in the order in which they must be complete before anything is decided."""
        volumes = self.volumes, self.volume_claims, self.storage_classes, self.csi_nodes
        first = self.nodes, self.node_statuses, self.claims, self.leases
        return *first, *volumes, self.namespaces, self.gpu_queues, self.pod_groups, self.pods


def claims_of(pod: Pod) -> list[str]:
    """Return the keys of the claims that a pod names or owns: an index of the pod store."""
    own = {claims.named_claim(pod), claims.claim_name(pod)} - {""}
    return [f"{pod.metadata.namespace}/{name}" for name in sorted(own)]


SELECTS_NAMESPACES = "selects namespaces"


def rules_of(pod: Pod) -> list[str]:
    """Return what the meaning of a pod's rules depends on besides the pod: an index of the pod store."""
    return [SELECTS_NAMESPACES] if neighbours.selects_namespaces(pod) else []


def waiting_in(pod: Pod) -> list[str]:
    """Return the namespace of a pod that is not bound: an index of the pod store."""
    return [] if pod.spec.node_name else [pod.metadata.namespace]


def groups_of(pod: Pod) -> list[str]:
    """Return the key of the PodGroup of a pod: an index of the pod store."""
    name = gangs.group_key(pod)
    return [name] if name else []


POD_INDICES = {
    "claim": claims_of,
    "volume": volumes.claims_of,
    "rule": rules_of,
    "waiting": waiting_in,
    "group": groups_of,
}
