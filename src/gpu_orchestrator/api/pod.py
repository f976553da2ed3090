"""A Pod as the scheduler, the operator and the agent need it: where it may go, what it takes, its status.

Features that we do not implement (resource claims …) are here only so that we notice a pod that uses them.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import TypeAlias

from msgspec import field
from msgspec.structs import force_setattr

from gpu_orchestrator.api import names
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

Quantities: TypeAlias = dict[str, str]

# Longer than any valid value, so that what is cut stays invalid.
ANNOTATIONS = {
    **dict.fromkeys(
        (
            *names.ASKING_ANNOTATIONS,
            names.STRATEGY,
            *names.GANG_ANNOTATIONS,
            names.SHARING,
            names.MAX_RUNTIME,
        ),
        1024,
    ),
    names.MOVABLE: 8,
    names.ALLOCATED: 6 * 1024,
    names.VISIBLE_DEVICES: 16 * 1024,
}
"""The annotations of a pod that we read, and how much of each."""


class Present(Wire, frozen=True, gc=False):
    """A value of which only its presence matters."""


class Requirement(Wire, frozen=True, gc=False):
    """One condition on a label of a node or pod, or on a field of a node."""

    key: str
    operator: str
    values: list[str] = []


class NodeSelectorTerm(Wire, frozen=True, gc=False):
    match_expressions: list[Requirement] = []
    match_fields: list[Requirement] = []


class NodeSelector(Wire, frozen=True, gc=False):
    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredTerm(Wire, frozen=True, gc=False):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True, gc=False):
    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredTerm] = field(
        default_factory=list, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class LabelSelector(Wire, frozen=True, gc=False):
    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []


class PodAffinityTerm(Wire, frozen=True, gc=False):
    """A selector that is missing matches nothing, an empty one everything."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None


class PodAffinity(Wire, frozen=True, gc=False):
    required: list[PodAffinityTerm] = field(
        default_factory=list, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[Present] = field(
        default_factory=list, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Wire, frozen=True, gc=False):
    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class Toleration(Wire, frozen=True, gc=False):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Requirements(Wire, frozen=True, gc=False):
    """What is requested of each resource, and the most that is allowed."""

    requests: Quantities = {}
    limits: Quantities = {}


class ContainerPort(Wire, frozen=True, gc=False):
    host_port: int = 0
    host_ip: str = field(default="", name="hostIP")
    protocol: str = "TCP"


class FieldRef(Wire, frozen=True, gc=False):
    field_path: str = ""


class VariableSource(Wire, frozen=True, gc=False):
    field_ref: FieldRef = FieldRef()


class Variable(Wire, frozen=True, gc=False):
    name: str = ""
    value_from: VariableSource = VariableSource()


class Container(Wire, frozen=True, gc=False):
    """An init container with restartPolicy Always is a sidecar: it keeps running beside the others. Of `env`
    only the device variables are kept: the others of all pods would fill the memory."""

    name: str = ""
    resources: Requirements = Requirements()
    ports: list[ContainerPort] = []
    restart_policy: str = ""
    env: list[Variable] = []

    def __post_init__(self) -> None:
        if self.env:
            kept = [each for each in self.env if each.name in names.DEVICE_ENV]
            force_setattr(self, "env", kept)


class VolumeClaim(Wire, frozen=True, gc=False):
    claim_name: str = ""


class Volume(Wire, frozen=True, gc=False):
    """`ephemeral` asks for a PersistentVolumeClaim of the pod's own, named after the pod and the volume."""

    name: str = ""
    persistent_volume_claim: VolumeClaim | None = None
    ephemeral: Present | None = None


class TopologySpread(Wire, frozen=True, gc=False):
    topology_key: str = ""
    when_unsatisfiable: str = ""
    max_skew: int = 1
    min_domains: int = 1
    label_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class PodResourceClaim(Wire, frozen=True, gc=False):
    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class SchedulingGate(Wire, frozen=True, gc=False):
    name: str = ""


class SchedulingGroup(Wire, frozen=True, gc=False):
    """The PodGroup that the pod belongs to."""

    pod_group_name: str = ""


class PodSpec(Wire, frozen=True, gc=False):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity = Affinity()
    tolerations: list[Toleration] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    resources: Requirements | None = None
    overhead: Quantities = {}
    volumes: list[Volume] = []
    topology_spread_constraints: list[TopologySpread] = []
    resource_claims: list[PodResourceClaim] = []
    scheduling_gates: list[SchedulingGate] = []
    scheduling_group: SchedulingGroup | None = None
    active_deadline_seconds: int = 0


class PodCondition(Wire, frozen=True, gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodStatus(Wire, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: list[PodCondition] = []


class Pod(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, ANNOTATIONS)


PODS = Resource(Pod, "Pod", "pods")
