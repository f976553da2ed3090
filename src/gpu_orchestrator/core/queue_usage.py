"""What queues use, borrow, lend and have as their fair share, for those who look at them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpu_orchestrator.core.queue_terms import ALL
from gpu_orchestrator.core.queues import QueueNode, Queues


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """Milli-GPUs by model, `*` for the sum. `lent` is what others use of what it is guaranteed. `pending`
    counts the requests that wait, in the queues below it too. `share` is the part of all GPUs, from 0 to 1,
    that is fair by the weights of those queues that use or want any."""

    used: Mapping[str, int]
    borrowed: Mapping[str, int]
    lent: Mapping[str, int]
    pending: int = 0
    share: float = 0.0


def usages(queues: Queues, pending: Mapping[str, int], free_milli: int) -> dict[str, QueueUsage]:
    """Return the usage of every queue. `pending` counts the waiting requests of each, `free_milli` is what
    nobody uses of the cluster."""
    found: dict[str, QueueUsage] = {}
    waiting: dict[str, int] = {}
    for name, count in pending.items():
        if (node := queues.node(name)) is not None:
            for each in node.path:
                waiting[each.name] = waiting.get(each.name, 0) + count
    for node, share, lent in _shared(queues.top(), waiting, free_milli, 1.0):
        used = {ALL: node.total, **{model: milli for model, milli in node.used.items() if milli}}
        borrowed = {ALL: round(node.borrowed), **_positive({each: node.over(each) for each in node.used})}
        found[node.name] = QueueUsage(used, borrowed, {ALL: lent}, waiting.get(node.name, 0), share)
    return found


def _shared(
    nodes: Iterable[QueueNode], waiting: Mapping[str, int], free_milli: float, whole: float
) -> Iterator[tuple[QueueNode, float, int]]:
    """Yield these queues and all below them, each with its fair share and what it lends."""
    siblings = list(nodes)
    unused = {each: max(each.guaranteed.total - each.total, 0.0) for each in siblings}
    lent = min(max(sum(unused.values()) - free_milli, 0.0), sum(each.borrowed for each in siblings))
    active = sum(_weight(each) for each in siblings if each.total or waiting.get(each.name))
    for node in siblings:
        is_active = bool(node.total or waiting.get(node.name))
        share = whole * _weight(node) / (active if is_active else active + _weight(node))
        mine = lent * unused[node] / sum(unused.values()) if lent else 0.0
        yield node, share, round(mine)
        yield from _shared(node.children, waiting, max(free_milli, 0.0), share)


def _weight(node: QueueNode) -> float:
    return node.terms.weight if node.terms is not None and not node.problem else 1.0


def _positive(amounts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(milli) for name, milli in amounts.items() if milli > 0}
