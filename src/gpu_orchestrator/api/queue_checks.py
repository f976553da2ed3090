"""What the schema of a GpuQueue cannot say, because it depends on other queues, or has no effect.

Called by the webhook. Queues may be created in any order, so a parent that does not exist yet is a warning; a
circle is refused: no order of creation makes sense of it.
"""

from collections.abc import Iterable, Iterator

from gpu_orchestrator.api import claims, queue_terms, request_checks
from gpu_orchestrator.api.gpuqueue import GpuQueue
from gpu_orchestrator.api.request_checks import Findings
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.queue_terms import ALL, limit, together
from gpu_orchestrator.core.queues import MOST_DEPTH, QueueNode, Queues, gpus


def of_queue(queue: GpuQueue, others: Iterable[GpuQueue]) -> Findings:
    """Return what is wrong with a queue beside these others."""
    name, queues = queue.metadata.name, Queues()
    for each in others:
        queues.update(queue_terms.terms(each))
    queues.update(queue_terms.terms(queue))
    node = queues.node(name)
    problem = node.problem if node else ""
    if "circle" in problem or f"more than {MOST_DEPTH}" in problem:
        return Findings((f"{problem}; give another spec.parent",))
    warnings = [*_alone(queue), *(_too_much(node) if node and not problem else ())]
    if problem:
        warnings.insert(0, f"{problem}; until that is mended, this queue admits no pod")
    return Findings((), tuple(warnings))


def _alone(queue: GpuQueue) -> Iterator[str]:
    """Yield what has no effect, or not that which was meant."""
    spec = queue.spec
    if not spec.borrowing and not any(spec.guaranteed.values()):
        yield "spec.borrowing is false and nothing is guaranteed, so only what queues below have can be used"
    if any(spec.guaranteed.values()) and spec.preemption.reclaim == "Never":
        yield (
            "spec.guaranteed is lent to others while it is not used, and spec.preemption.reclaim is Never: "
            "to have it back, its pods wait until pods of others end"
        )
    for what, amounts in (("guaranteed", spec.guaranteed), ("limit", spec.limit)):
        for model, milli in amounts.items():
            if 0 < milli < WHOLE:
                yield (
                    f"spec.{what} of {claims.shortened(model)} is {milli} thousandths of a GPU; for {milli} "
                    f"GPUs write {milli * WHOLE}"
                )
    selector = spec.namespace_selector
    keys = [*selector.match_labels, *(each.key for each in selector.match_expressions)] if selector else []
    for key in keys:
        if not request_checks.is_label(key):
            yield (
                f"spec.namespaceSelector names {claims.shortened(key)!r}, which is no label's name, so no "
                "namespace can have it"
            )


def _too_much(node: QueueNode) -> Iterator[str]:
    """Yield the queues from here up whose children are guaranteed more than they may use."""
    for each in node.path:
        if each.terms is None or not each.children:
            continue
        most, below = limit(each.terms.limit), each.children[0].guaranteed
        for child in each.children[1:]:
            below = together(below, child.guaranteed)
        for model in (ALL, *sorted(most.by)):
            had, may = (below.total, most.total) if model == ALL else (below.of(model), most.of(model))
            if had > may:
                what = "GPUs" if model == ALL else claims.shortened(model)
                yield (
                    f"the queues below {each.name} are guaranteed {gpus(had)} {what} together, and it may "
                    f"use {gpus(may)}; they are not had all at once"
                )
