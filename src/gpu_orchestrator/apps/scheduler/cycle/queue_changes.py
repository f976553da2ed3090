"""GpuQueues that come, change or go, and labels of namespaces: tell the engine, and find the pods that belong
to another queue now. Pods that wait are checked again; what bound pods hold counts in its new queue at
once."""

from collections.abc import Callable, Iterable

from gpu_orchestrator.api import queue_terms
from gpu_orchestrator.api.gpuqueue import GpuQueue
from gpu_orchestrator.api.kubernetes import Namespace, Pod
from gpu_orchestrator.apps.scheduler.cycle.shared import Shared
from gpu_orchestrator.engine.events import Event, QueueRemoved, QueueUpdated


class QueueChanges:
    """`check` is called with pods that wait and may belong to another queue."""

    def __init__(
        self, shared: Shared, feed: Callable[[Event], None], check: Callable[[Iterable[Pod]], None]
    ) -> None:
        self._shared, self._feed, self._check = shared, feed, check
        self._queues = shared.queues

    def on_queue(self, old: GpuQueue | None, new: GpuQueue | None) -> None:
        if (queue := new or old) is None or (old is not None and new is not None and old.spec == new.spec):
            return
        name = queue.metadata.name
        self._feed(QueueUpdated(queue_terms.terms(queue)) if new is not None else QueueRemoved(name))
        namespaces = self._queues.queue_changed(old, new)
        if namespaces or old is None or new is None:
            self._requeue(set(namespaces), name)
        self._check_waiting(namespaces)

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if name := self._queues.namespace_changed(old, new):
            self._requeue({name}, "")
            self._check_waiting([name])

    def requeue(self, uid: str) -> None:
        """Count what a bound pod holds in the queue that it belongs to now."""
        if (pod := self._shared.our_pods.get(uid)) is not None:
            self._shared.holdings.requeue(pod)
        self._shared.lease_index.requeue(uid)

    def _requeue(self, namespaces: set[str], queue: str) -> None:
        """Count the bound pods of these namespaces again, and those that were bound in this queue."""
        bound_in = set(self._queues.counted_in(queue)) if queue else ()
        for uid, pod in list(self._shared.our_pods.items()):
            if pod.spec.node_name and (pod.metadata.namespace in namespaces or uid in bound_in):
                self.requeue(uid)

    def _check_waiting(self, namespaces: Iterable[str]) -> None:
        waiting = self._shared.stores.pods.by
        self._check(
            [pod for each in namespaces for pod in waiting("waiting", each) if self._may_have_moved(pod)]
        )

    def _may_have_moved(self, pod: Pod) -> bool:
        """Return False if the pod waits in its queue already."""
        request = self._shared.pending.request_of(pod.metadata.uid)
        return request is None or request.queue != self._queues.of_waiting(pod)
