"""What the status of a GpuQueue says, from what the engine counts. Pure."""

from collections.abc import Mapping

from msgspec import structs

from gpu_orchestrator.api import conditions, names
from gpu_orchestrator.api.conditions import Condition
from gpu_orchestrator.api.gpuqueue import MOST_MODELS, GpuQueue, GpuQueueStatus
from gpu_orchestrator.api.schema import INT32
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.core.queue_terms import ALL
from gpu_orchestrator.core.queue_usage import QueueUsage

READY = "Ready"
PROBLEM = "Problem"
OVERLAPPING = "Overlapping"
NOISE = 10
"""Thousandths by which the share may differ without a write: it changes whenever any queue becomes idle."""
LONGEST_NAME = 253
NO_USAGE = QueueUsage({ALL: 0}, {}, {})


def status(queue: GpuQueue, usage: QueueUsage, *, problem: str, overlap: str, now: str) -> GpuQueueStatus:
    """Return the status. `problem` says why the queue admits nothing, `overlap` with which others it shares
    namespaces; each is empty if there is none."""
    found = [_condition(queue, READY, "False" if problem else "True", PROBLEM if problem else READY, problem)]
    if overlap:
        found.append(_condition(queue, OVERLAPPING, "True", OVERLAPPING, overlap))
    return GpuQueueStatus(
        {ALL: _bounded(usage.used.get(ALL, 0)), **_amounts(usage.used)},
        _amounts(usage.borrowed),
        _amounts(usage.lent),
        _bounded(usage.pending),
        min(max(round(usage.share * 1000), 0), 1000),
        [_dated(queue, each, now) for each in found],
        queue.metadata.generation,
    )


def differs(shown: GpuQueueStatus, wanted: GpuQueueStatus) -> bool:
    """Return True if the status is to be written again."""
    if abs(shown.share - wanted.share) >= NOISE:
        return True
    return structs.replace(shown, share=0) != structs.replace(wanted, share=0)


def patch(shown: GpuQueueStatus, wanted: GpuQueueStatus) -> Json:
    """Return the merge patch that makes the status as wanted."""
    return {
        "used": _changed(shown.used, wanted.used),
        "borrowed": _changed(shown.borrowed, wanted.borrowed),
        "lent": _changed(shown.lent, wanted.lent),
        "pending": wanted.pending,
        "share": wanted.share,
        "conditions": [_plain(each) for each in wanted.conditions],
        "observedGeneration": wanted.observed_generation,
    }


def overlap(namespace: str, queue: str, first: str, more: int) -> str:
    """Return what is said of a namespace that this queue and others select. `more` counts other such
    namespaces."""
    others = f", and {more} more namespaces" if more > 1 else ", and one more namespace" if more else ""
    whose = "this one" if first == queue else f"queue {first}"
    return (
        f"namespace {namespace}{others}: selected by other queues, too; its pods without the label "
        f"{names.QUEUE} belong to {whose}"
    )


def _condition(queue: GpuQueue, kind: str, truth: conditions.Truth, reason: str, message: str) -> Condition:
    return Condition(kind, truth, reason, message, observed_generation=queue.metadata.generation)


def _dated(queue: GpuQueue, condition: Condition, now: str) -> Condition:
    known = conditions.find(queue.status.conditions, condition.type)
    is_same = known is not None and known.status == condition.status
    since = known.last_transition_time if known is not None and is_same else ""
    return structs.replace(condition, last_transition_time=since or now)


def _amounts(found: Mapping[str, int]) -> dict[str, int]:
    """Return the sum and the models of which there is most; those without a name are in the sum alone."""
    models = [(name[:LONGEST_NAME], each) for name, each in found.items() if name and each and name != ALL]
    most = sorted(models, key=lambda each: (-each[1], each[0]))[:MOST_MODELS]
    total = {ALL: _bounded(found[ALL])} if found.get(ALL) else {}
    return {**total, **{name: _bounded(each) for name, each in most}}


def _bounded(amount: int) -> int:
    return min(max(amount, 0), INT32)


def _changed(shown: Mapping[str, int], wanted: Mapping[str, int]) -> Json:
    return {**dict.fromkeys(shown.keys() - wanted.keys()), **wanted}


def _plain(condition: Condition) -> Json:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
        "observedGeneration": condition.observed_generation,
    }
