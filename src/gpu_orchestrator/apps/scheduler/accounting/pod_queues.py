"""Which GpuQueue each pod belongs to.

A pod that waits belongs to the queue that its label names, if that selects its namespace; without the label
to the queue that selects the namespace with the most conditions, of equals the first by name; else to none.
A bound pod stays in the queue that it was bound in, which its device leases remember, as long as that queue
exists: its owner can change the label, and a team must not shed what it uses by a new one. If the queue is
gone, or the pod was bound in none, it counts where it would wait now.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api import claims, names, queue_status
from gpu_orchestrator.api.gpuqueue import DEFAULT, GpuQueue
from gpu_orchestrator.api.kubernetes import Namespace, Pod
from gpu_orchestrator.apps.scheduler.accounting.selectors import Selectors

NONE = ""
MOST_SAID = 5
"""Queues that a message names."""


@dataclass(frozen=True, slots=True)
class NoQueue:
    """The pod names a queue that it cannot use."""

    why: str


class PodQueues:
    """`our_pods` are this scheduler's pods by UID; `recorded` returns the queue that a pod was bound in by
    its leases, empty if they name none."""

    def __init__(
        self,
        namespaces: Store[Namespace],
        our_pods: Mapping[str, Pod],
        *,
        recorded: Callable[[str], str],
    ) -> None:
        self._namespaces, self._our_pods, self._recorded = namespaces, our_pods, recorded
        self._queues = Selectors()
        self._bound: dict[str, str] = {}
        """What we have bound ourselves, by UID."""
        self._ranked: dict[str, tuple[str, ...]] = {}
        """By namespace, the queues that select it. It has the namespaces of all pods that were asked for."""
        self._overlaps: dict[str, str] | None = None

    def selecting(self, namespace: str) -> tuple[str, ...]:
        """Return the queues that select a namespace, the one of pods without a label first."""
        found = self._ranked.get(namespace)
        if found is None:
            found = self._ranked[namespace] = self._queues.selecting(self._labels(namespace))
            self._overlaps = None
        return found

    def of_waiting(self, pod: Pod) -> str | NoQueue:
        """Return the queue of a pod that waits; empty if none holds it to anything."""
        meta = pod.metadata
        mine, named = self.selecting(meta.namespace), meta.labels.get(names.QUEUE, "")
        if not named or not len(self._queues):
            return mine[0] if mine else NONE
        if named in mine:
            return named
        if named == DEFAULT and not mine:
            return NONE
        return NoQueue(_said(named, meta.namespace, mine))

    def of_bound(self, uid: str) -> str:
        """Return the queue in which a bound pod counts; empty if in none."""
        before = self._bound.get(uid, NONE) or self._recorded(uid)
        if before and before in self._queues:
            return before
        if (pod := self._our_pods.get(uid)) is None:
            return before  # it has ended, or is another scheduler's
        match self.of_waiting(pod):
            case NoQueue():
                return next(iter(self.selecting(pod.metadata.namespace)), NONE)
            case queue:
                return queue

    def bound(self, uid: str, queue: str) -> None:
        """Remember the queue in which we have bound a pod."""
        if queue:
            self._bound[uid] = queue

    def forget(self, uid: str) -> None:
        """The pod has ended; what its leases hold still counts where they say."""
        self._bound.pop(uid, None)

    def queue_changed(self, old: GpuQueue | None, new: GpuQueue | None) -> list[str]:
        """Return the namespaces whose pods may belong to another queue now."""
        if (queue := new or old) is None:
            return []
        had_queues, name = bool(len(self._queues)), queue.metadata.name
        before = self._queues.set(name, new)
        self._overlaps = None
        if had_queues != bool(len(self._queues)):  # labels of pods count from the first queue to the last
            self._ranked.clear()
            return sorted({each.metadata.namespace for each in self._our_pods.values()})
        if old is not None and new is not None and before == new.spec.namespace_selector:
            return []
        return [each for each in self._ranked if self._rank_again(each, name)]

    def _rank_again(self, namespace: str, queue: str) -> bool:
        """Return True if a queue that changed selects this namespace, or did before."""
        known = self._ranked[namespace]
        selects = self._queues.is_selected(queue, self._labels(namespace))
        if not selects and queue not in known:
            return False
        others = [each for each in known if each != queue]
        self._ranked[namespace] = self._queues.ranked([*others, queue] if selects else others)
        return True

    def namespace_changed(self, old: Namespace | None, new: Namespace | None) -> str:
        """Return the namespace if its pods may belong to another queue now; empty if not."""
        seen = new or old
        if seen is None or (
            old is not None and new is not None and old.metadata.labels == new.metadata.labels
        ):
            return ""
        before, self._overlaps = self._ranked.pop(seen.metadata.name, None), None
        if new is None or before is None or before == self.selecting(new.metadata.name):
            return ""
        return new.metadata.name

    def counted_in(self, queue: str) -> list[str]:
        """Return the bound pods that were bound in this queue."""
        return [uid for uid in self._our_pods if (self._bound.get(uid) or self._recorded(uid)) == queue]

    def overlaps(self) -> dict[str, str]:
        """Return what is said of the queues that select a namespace of pods which others select, too."""
        if self._overlaps is None:
            self._overlaps = self._find_overlaps()
        return self._overlaps

    def _find_overlaps(self) -> dict[str, str]:
        found: dict[str, tuple[str, str, int]] = {}
        for namespace, queues in self._ranked.items():
            for each in queues if len(queues) > 1 else ():
                seen, first, more = found.get(each, (namespace, queues[0], -1))
                least = min((seen, first), (namespace, queues[0]))
                found[each] = (*least, more + 1)
        return {
            name: queue_status.overlap(at, name, first, more) for name, (at, first, more) in found.items()
        }

    def _labels(self, namespace: str) -> Mapping[str, str]:
        found = self._namespaces.get(namespace)
        return found.metadata.labels if found else {}


def _said(named: str, namespace: str, mine: tuple[str, ...]) -> str:
    head = (
        f"label {names.QUEUE} names {claims.shortened(named)}, and no queue of this name selects namespace "
    )
    if not mine:
        return f"{head}{namespace}, nor does any other; remove the label"
    more = f" and {len(mine) - MOST_SAID} more" if len(mine) > MOST_SAID else ""
    return f"{head}{namespace}; name one of {', '.join(mine[:MOST_SAID])}{more}, or remove the label"
