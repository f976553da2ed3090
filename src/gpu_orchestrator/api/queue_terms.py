"""A GpuQueue as the core's terms, and which namespaces it selects. Pure."""

from gpu_orchestrator.api.gpuqueue import GpuQueue, NamespaceSelector
from gpu_orchestrator.core.queue_terms import QueueTerms, Reclaim, Within
from gpu_orchestrator.core.request import Expression

RECLAIM: dict[str, Reclaim] = {"Never": "never", "LowerPriority": "lower", "Any": "any"}
WITHIN: dict[str, Within] = {"Never": "never", "LowerPriority": "lower"}


def terms(queue: GpuQueue) -> QueueTerms:
    """Return what is declared of a queue, as the core counts it."""
    spec = queue.spec
    return QueueTerms(
        queue.metadata.name,
        spec.parent,
        float(spec.weight),
        spec.guaranteed,
        spec.limit,
        spec.borrowing,
        RECLAIM[spec.preemption.reclaim],
        WITHIN[spec.preemption.within],
    )


def conditions(selector: NamespaceSelector) -> tuple[Expression, ...]:
    """Return the conditions that a namespace must meet."""
    equal = (Expression(key, "In", (value,)) for key, value in selector.match_labels.items())
    others = (Expression(each.key, each.operator, tuple(each.values)) for each in selector.match_expressions)
    return (*equal, *others)
