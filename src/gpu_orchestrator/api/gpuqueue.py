"""GpuQueue (`gpu.scheduling/v1`, `gq`, cluster-scoped): a quota of GPUs that namespaces share.

Written by administrators: a namespace that is selected is held to the queue, whatever its pods say.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import Annotated, ClassVar, Literal, TypeAlias

from gpu_orchestrator.api import names
from gpu_orchestrator.api.conditions import Conditions
from gpu_orchestrator.api.devices import LABEL_VALUE
from gpu_orchestrator.api.schema import INT32, INT64, Rule, about, number, text
from gpu_orchestrator.api.wire import ObjectMeta, Resource, Wire, keep_annotations

Reclaim: TypeAlias = Literal["Never", "LowerPriority", "Any"]
Within: TypeAlias = Literal["Never", "LowerPriority"]
Operator: TypeAlias = Literal["In", "NotIn", "Exists", "DoesNotExist"]

DEFAULT = "default"
"""The queue of pods that no GpuQueue selects. It has no limits, and no object."""
MOST_MODELS = 64
NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Milli: TypeAlias = dict[str, Annotated[int, number("Thousandths of a GPU.", 0, INT32)]]


class Requirement(Wire, frozen=True, gc=False):
    """One condition on a label of a namespace."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : "
            "!has(self.values) || self.values.size() == 0",
            "values must be given for the operators In and NotIn, and for no other",
            ".values",
        ),
    )

    key: Annotated[str, text("Name of the label.", 1, 317)]
    operator: Annotated[Operator, about("How the label compares with the values.")]
    values: Annotated[
        list[Annotated[str, text("A value of the label.", 0, 63, LABEL_VALUE)]],
        about("Values of the label, for In and NotIn.", at_most=64),
    ] = []


class NamespaceSelector(Wire, frozen=True, gc=False):
    """Namespaces whose pods belong to the queue, by their labels. An empty selector takes all namespaces,
    none at all takes none."""

    match_labels: Annotated[
        dict[str, Annotated[str, text("Value of the label.", 0, 63, LABEL_VALUE)]],
        about("Labels that a namespace must have.", at_most=32),
    ] = {}
    match_expressions: Annotated[
        list[Requirement], about("Conditions that its labels must meet.", at_most=32)
    ] = []

    @property
    def conditions(self) -> int:
        """How many conditions a namespace must meet."""
        return len(self.match_labels) + len(self.match_expressions)


class QueuePreemption(Wire, frozen=True, gc=False):
    """Whose pods may be evicted for pods of this queue."""

    reclaim: Annotated[
        Reclaim,
        about(
            "For what the queue is guaranteed, pods of queues that borrow: Never, those of LowerPriority, or "
            "Any."
        ),
    ] = "Never"
    within: Annotated[Within, about("Pods of the queue itself: Never, or those of LowerPriority.")] = "Never"


class GpuQueueSpec(Wire, frozen=True, gc=False):
    """What the queue may use. Amounts are thousandths of GPUs by model; `*` counts the GPUs of all models
    together."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.guaranteed) || !has(self.limit) || "
            "self.guaranteed.all(each, !(each in self.limit) || self.guaranteed[each] <= self.limit[each])",
            "spec.guaranteed of a model must not be above spec.limit",
            ".guaranteed",
        ),
    )

    parent: Annotated[
        str, text("Queue above this one, whose limit holds for both together; none if left out.", 1, 63, NAME)
    ] = ""
    weight: Annotated[
        int, number("Share of what nobody is guaranteed, compared with the queues beside it.", 1, 1_000_000)
    ] = 1
    guaranteed: Annotated[
        Milli, about("What the queue has whatever others use, by model.", at_most=MOST_MODELS)
    ] = {}
    limit: Annotated[
        Milli,
        about(
            "What the queue never uses more of, by model. What is not named is not limited.",
            at_most=MOST_MODELS,
        ),
    ] = {}
    borrowing: Annotated[
        bool, about("Whether the queue may use what others leave, beyond what it is guaranteed.")
    ] = True
    namespace_selector: NamespaceSelector | None = None
    preemption: QueuePreemption = QueuePreemption()


class GpuQueueStatus(Wire, frozen=True, gc=False):
    """What the queue uses. Written by the scheduler, in thousandths of GPUs by model; `*` is the sum."""

    used: Annotated[Milli, about("What its pods use, and those of the queues below it.", at_most=128)] = {}
    borrowed: Annotated[Milli, about("What of this is beyond its guaranteed quota.", at_most=128)] = {}
    lent: Annotated[Milli, about("What others use of its guaranteed quota.", at_most=128)] = {}
    pending: Annotated[int, number("Pods that wait in it and in the queues below it.", 0, INT32)] = 0
    share: Annotated[
        int, number("Its fair share of all GPUs, in thousandths, by the weights of active queues.", 0, 1000)
    ] = 0
    conditions: Conditions = []
    observed_generation: Annotated[int, number("Generation of the spec this speaks of.", 0, INT64)] = 0


class GpuQueue(Wire, frozen=True, gc=False):
    """A quota of GPUs for the pods of some namespaces: what they are guaranteed, and what they never exceed
    together."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.metadata.name.size() <= 63",
            "metadata.name must have 63 characters at most: pods name their queue in a label",
            ".metadata",
        ),
        Rule(
            f"self.metadata.name != '{DEFAULT}'",
            f"metadata.name {DEFAULT} stands for the pods that no queue selects; give another name, and an "
            "empty namespaceSelector to hold all other namespaces to limits",
            ".metadata",
        ),
        Rule(
            "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "spec.parent must be another queue",
            ".spec.parent",
        ),
    )

    metadata: ObjectMeta
    spec: GpuQueueSpec
    status: GpuQueueStatus = GpuQueueStatus()

    def __post_init__(self) -> None:
        keep_annotations(self.metadata, {})


GPU_QUEUES = Resource(
    GpuQueue,
    "GpuQueue",
    "gpuqueues",
    names.SCHEDULING_GROUP,
    names.SCHEDULING_VERSION,
    namespaced=False,
)
