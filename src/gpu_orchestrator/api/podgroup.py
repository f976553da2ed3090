"""A PodGroup, Kubernetes' own gang of pods: what it says, and the conditions that its scheduler writes.

Of `scheduling.k8s.io/v1alpha2`, which Kubernetes 1.36 serves where its administrator has turned it on.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from gpu_orchestrator.api import names
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

SCHEDULED = "PodGroupScheduled"
DISRUPTION_TARGET = "DisruptionTarget"
WHOLE = "PodGroup"
"""The disruption mode of a group that is evicted whole; otherwise each pod is evicted alone."""


class BasicPolicy(Wire, frozen=True, gc=False):
    """The pods start one by one."""


class GangPolicy(Wire, frozen=True, gc=False):
    min_count: int = 0


class SchedulingPolicy(Wire, frozen=True, gc=False):
    basic: BasicPolicy | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Wire, frozen=True, gc=False):
    key: str = ""


class SchedulingConstraints(Wire, frozen=True, gc=False):
    topology: list[TopologyConstraint] = []


class PodGroupSpec(Wire, frozen=True, gc=False):
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    disruption_mode: str = ""
    priority: int | None = None


class GroupCondition(Wire, frozen=True, gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class PodGroupStatus(Wire, frozen=True, gc=False):
    conditions: list[GroupCondition] = []


class PodGroup(Wire, frozen=True, gc=False):
    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, {})

    @property
    def least(self) -> int:
        """How many of its pods must start together."""
        gang = self.spec.scheduling_policy.gang
        return 1 if gang is None else gang.min_count

    @property
    def is_evicted_whole(self) -> bool:
        return self.spec.disruption_mode == WHOLE

    def condition(self, type_: str) -> GroupCondition | None:
        return next((each for each in self.status.conditions if each.type == type_), None)

    def is_true(self, type_: str) -> bool:
        found = self.condition(type_)
        return found is not None and found.status == "True"


POD_GROUPS = Resource(PodGroup, "PodGroup", "podgroups", names.KUBE_SCHEDULING_GROUP, "v1alpha2")
