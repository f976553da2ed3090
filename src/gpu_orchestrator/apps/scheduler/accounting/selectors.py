"""Which GpuQueues select a namespace, by its labels. Kept by `pod_queues`.

A queue that asks for a value of a label first is only looked at for namespaces with that value: a thousand
teams with a queue each cost a namespace no more than one.
"""

from collections.abc import Iterable, Mapping

from gpu_orchestrator.api import queue_terms
from gpu_orchestrator.api.gpuqueue import GpuQueue, NamespaceSelector
from gpu_orchestrator.core.request import Expression

Label = tuple[str, str]
ANY: Label = ("", "")
"""No label is named so: for queues that cannot be found by one."""


class Selectors:
    def __init__(self) -> None:
        self._selectors: dict[str, NamespaceSelector | None] = {}
        self._conditions: dict[str, tuple[Expression, ...]] = {}
        self._by_label: dict[Label, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._selectors)

    def __contains__(self, queue: str) -> bool:
        return queue in self._selectors

    def set(self, name: str, queue: GpuQueue | None) -> NamespaceSelector | None:
        """Take in a queue as it is now; None if it is gone. Return its selector of before."""
        for label in _labels(self._conditions.pop(name, None)):
            self._by_label[label].pop(name, None)
            if not self._by_label[label]:
                del self._by_label[label]
        before = self._selectors.pop(name, None)
        if queue is not None:
            selector = self._selectors[name] = queue.spec.namespace_selector
            if selector is not None:
                self._conditions[name] = queue_terms.conditions(selector)
                for label in _labels(self._conditions[name]):
                    self._by_label.setdefault(label, {})[name] = None
        return before

    def selecting(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the queues that select a namespace with these labels, in order."""
        near = [self._by_label.get(label, {}) for label in (ANY, *labels.items())]
        return self.ranked(name for some in near for name in some if self.is_selected(name, labels))

    def is_selected(self, queue: str, labels: Mapping[str, str]) -> bool:
        """Return True if this queue selects a namespace with these labels."""
        conditions = self._conditions.get(queue)
        return conditions is not None and all(each.holds(labels.get(each.key)) for each in conditions)

    def ranked(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return the queues that select one namespace, the one that its pods belong to first: the one with
        the most conditions, of equals the first by name."""
        return tuple(sorted(queues, key=lambda each: (-len(self._conditions[each]), each)))


def _labels(conditions: tuple[Expression, ...] | None) -> tuple[Label, ...]:
    """Return the labels by which a queue with these conditions is found; none without a selector."""
    if conditions is None:
        return ()
    first = conditions[0] if conditions else None
    if first is None or first.operator != "In":
        return (ANY,)
    return tuple((first.key, value) for value in dict.fromkeys(first.values))
