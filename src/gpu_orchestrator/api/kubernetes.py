"""The Kubernetes objects we read and write, with only the fields we use; the API server keeps the others.

The server's own enums stay plain strings: a newer server may have more values than we know.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from gpu_orchestrator.api import names
from gpu_orchestrator.api.pod import (
    PODS,
    LabelSelector,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Quantities,
    Requirements,
)
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

__all__ = [
    "CSI_NODES",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "VOLUME_CLAIMS",
    "CsiNode",
    "Event",
    "Lease",
    "Namespace",
    "Node",
    "ObjectReference",
    "Pod",
    "PodCondition",
    "PodSpec",
    "PodStatus",
    "Taint",
    "VolumeClaim",
]


# The annotations that we read, and how much of each.
NODE_ANNOTATIONS = {names.NODE_DEVICES: 256 * 1024, names.CLOSED_UNTIL: 64}
VOLUME_ANNOTATIONS = {
    "volume.kubernetes.io/selected-node": 1024,
    "volume.beta.kubernetes.io/storage-class": 1024,
}


class StatusCondition(Wire, frozen=True, gc=False):
    """A condition of a Node or a Job."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Taint(Wire, frozen=True, gc=False):
    key: str
    effect: str
    value: str = ""


class NodeSpec(Wire, frozen=True, gc=False):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Wire, frozen=True, gc=False):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[StatusCondition] = []


class Node(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, NODE_ANNOTATIONS)


class LeaseSpec(Wire, frozen=True, gc=False):
    """The server writes the first moment of the year 1 as null."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = ""
    renew_time: str | None = ""
    lease_transitions: int = 0


class Lease(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(Wire, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""


class EventSeries(Wire, frozen=True, gc=False):
    count: int
    last_observed_time: str


class Event(Wire, frozen=True, gc=False):
    """Of events.k8s.io. Events written by older clients have no eventTime."""

    metadata: ObjectMeta
    regarding: ObjectReference | None = None
    reason: str = ""
    note: str = ""
    type: str = ""
    action: str = ""
    event_time: str | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    series: EventSeries | None = None
    deprecated_last_timestamp: str | None = None


class Namespace(Wire, frozen=True, gc=False):
    metadata: ObjectMeta

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, {})


class AttachLimit(Wire, frozen=True, gc=False):
    """How many volumes of a driver a node can attach; None means any number."""

    count: int | None = None


class NodeDriver(Wire, frozen=True, gc=False):
    name: str = ""
    allocatable: AttachLimit | None = None


class CsiNodeSpec(Wire, frozen=True, gc=False):
    """A kubelet without drivers writes null."""

    drivers: list[NodeDriver] | None = None


class CsiNode(Wire, frozen=True, gc=False):
    """The volume drivers of the node with the same name."""

    metadata: ObjectMeta
    spec: CsiNodeSpec = CsiNodeSpec()


class VolumeClaimSpec(Wire, frozen=True, gc=False):
    volume_name: str = ""
    storage_class_name: str = ""
    access_modes: list[str] = []
    resources: Requirements = Requirements()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str = ""


class VolumeClaimStatus(Wire, frozen=True, gc=False):
    phase: str = ""


class VolumeClaim(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: VolumeClaimStatus = VolumeClaimStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, VOLUME_ANNOTATIONS)


class BudgetSpec(Wire, frozen=True, gc=False):
    selector: LabelSelector | None = None


class BudgetStatus(Wire, frozen=True, gc=False):
    disruptions_allowed: int = 0


class DisruptionBudget(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


NAMESPACES = Resource(Namespace, "Namespace", "namespaces", namespaced=False)
CSI_NODES = Resource(CsiNode, "CSINode", "csinodes", "storage.k8s.io", namespaced=False)
NODES = Resource(Node, "Node", "nodes", namespaced=False)
LEASES = Resource(Lease, "Lease", "leases", "coordination.k8s.io")
EVENTS = Resource(Event, "Event", "events", "events.k8s.io")
DISRUPTION_BUDGETS = Resource(DisruptionBudget, "PodDisruptionBudget", "poddisruptionbudgets", "policy")
VOLUME_CLAIMS = Resource(VolumeClaim, "PersistentVolumeClaim", "persistentvolumeclaims")
