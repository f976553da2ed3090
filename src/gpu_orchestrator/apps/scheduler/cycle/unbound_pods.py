"""Our pods that are not bound: queue each, refuse it with the reason, or clear its leftover leases first."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from gpu_orchestrator.api import claims, deviceenv, podcapacity
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.accounting.pod_queues import NoQueue
from gpu_orchestrator.apps.scheduler.actions import Failed
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.apps.scheduler.cycle.pod_request import Unschedulable
from gpu_orchestrator.apps.scheduler.cycle.rechecks import Rechecks
from gpu_orchestrator.apps.scheduler.cycle.shared import Shared
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import RequestAdded

TOLD_AFTER = 3
"""Failures in a row after which a pod is told why it is not bound. A refusal that will repeat is told at
once."""

log = structlog.get_logger()


class UnboundPods:
    """`feed` sends events to the engine, all before it decides; `since` returns the engine's time at which a
    pod was created. `rechecks` gets the pods whose request others have changed."""

    def __init__(
        self,
        shared: Shared,
        feed: Callable[..., None],
        engine: Engine,
        rechecks: Rechecks,
        *,
        since: Callable[[Pod], float],
    ) -> None:
        self._shared, self._feed, self._engine, self._since = shared, feed, engine, since
        self._rechecks = rechecks
        self._our_pods, self._pending, self._surroundings = (
            shared.our_pods,
            shared.pending,
            shared.surroundings,
        )
        self._clearing: set[str] = set()
        self._uncounted: dict[str, Pod] = {}
        """Pods that request too little capacity, by UID, if that depends on the devices of the cluster."""

    def check_soon(self, pods: Iterable[Pod]) -> None:
        """Check those of these pods that are ours and not bound, a few per tick if they are many."""
        ours = self._our_pods
        self._rechecks.add(pod for pod in pods if pod.metadata.uid in ours and not pod.spec.node_name)

    def recheck_capacity(self) -> None:
        """Check pods again that request too little capacity: their number may be lower beside larger
        devices."""
        waiting, self._uncounted = self._uncounted, {}
        self.check_soon(waiting.values())

    def objection(self, pod: Pod, decided: Request) -> str:
        """Return why a decision is out of date: the pod is still to be checked again, and does not ask for
        the same any longer. Empty if it is not."""
        if pod.metadata.uid not in self._rechecks:
            return ""
        match self._request_of(pod):
            case Unschedulable(why):
                return why
            case now:
                return "" if now == decided else "what it asks for has changed meanwhile"

    def check(self, pod: Pod, *, cleared: bool = False) -> None:
        """Queue the pod, withdraw it, or clear its leftover leases first."""
        uid = pod.metadata.uid
        self._rechecks.discard(uid)
        # The watch may show a pod that we have bound as unbound for a moment longer.
        if uid in self._clearing or self._shared.is_placed(uid):
            return
        if pod.metadata.deletion_timestamp or pod_request.is_gated(pod):
            self._pending.withdraw(uid)
            self._surroundings.withdraw(pod)
        elif self._clears_leftovers and not cleared and uid in self._shared.lease_index:
            self._clearing.add(uid)
            self._pending.withdraw(uid)
            self._shared.executor.clear_leases(pod)
        else:
            self._queue(pod)

    def cleared(self, uid: str) -> None:
        """Queue the pod again: its leftover leases are gone, or are not ours to clear."""
        self._clearing.discard(uid)
        if (pod := self._our_pods.get(uid)) is not None and not pod.spec.node_name:
            self.check(pod, cleared=True)

    def not_placed(self, failed: Failed) -> None:
        """Queue the pod again after its bind has failed, and report a failure that will repeat if the pod is
        tried again. Most others are races, of which a single one says nothing."""
        uid, failures = failed.job.pod.metadata.uid, self._shared.failures
        if (pod := self._our_pods.get(uid)) is None or pod.spec.node_name:
            return
        self.check(pod)
        failures[uid] = failures.get(uid, 0) + 1
        is_tried_again = uid in self._clearing or self._engine.waiting(uid) is not None
        if is_tried_again and (failed.is_permanent or failures[uid] >= TOLD_AFTER):
            self._pending.refuse(uid, f"could not be bound to {failed.job.placement.node}: {failed.why}")

    def withdraw(self, pods: Iterable[Pod]) -> None:
        """Withdraw the requests of these pods together, so that none of them is decided meanwhile."""
        waiting = [pod.metadata.uid for pod in pods if not pod.spec.node_name]
        waiting = [uid for uid in waiting if not self._shared.is_placed(uid) and uid not in self._rechecks]
        if waiting:
            self._feed(*map(events.RequestRemoved, waiting))
            for uid in waiting:
                self._pending.clear_reason(uid)

    @property
    def _clears_leftovers(self) -> bool:
        return self._shared.config.clears_leftovers or not self._shared.is_opened

    def _queue(self, pod: Pod) -> None:
        match self._request_of(pod):
            case Request() as request:
                kept_away = self._surroundings.observe(pod) if self._surroundings.counts_waiting else []
                self.withdraw(kept_away)  # they ask again below, when the pod counts where it is
                self._pending.add(RequestAdded(request, self._since(pod)))
                self._rechecks.add(kept_away)
            case Unschedulable(why):
                self._pending.withdraw(pod.metadata.uid)
                self._pending.refuse(pod.metadata.uid, why)
                self._surroundings.withdraw(pod)

    def _request_of(self, pod: Pod) -> Request | Unschedulable:
        if self._shared.config.requires_env and (why := deviceenv.unconfined(pod.spec)):
            return Unschedulable(why)
        stores = self._shared.stores
        user = self._shared.claim_users.user_of(f"{pod.metadata.namespace}/{claims.claim_name(pod)}")
        try:
            others = self._surroundings.others(pod, user)
            found = pod_request.request_of(
                pod,
                stores.claim_of(pod),
                stores,
                others,
                enforced_run_times=self._shared.config.enforced_run_times,
            )
            if isinstance(found, Request) and stores.has_queues:
                found = self._queued(pod, found)
            if isinstance(found, Request) and (why := self._uncounted_in(pod, found)):
                return Unschedulable(why)
            return found
        except Exception as error:  # the edge of one pod: its owner learns of it, the others go on
            log.exception("pod could not be judged", pod=key(pod))
            return Unschedulable(f"could not be judged: {claims.shortened(repr(error))}")

    def _queued(self, pod: Pod, request: Request) -> Request | Unschedulable:
        """Return the request in its queue, or why it cannot be in the one that it names."""
        match self._shared.queues.of_waiting(pod):
            case NoQueue(why):
                return Unschedulable(why)
            case queue:
                return replace(request, queue=queue) if queue else request

    def _uncounted_in(self, pod: Pod, request: Request) -> str:
        """Return that the pod requests less capacity than its GPUs count for, if that is refused."""
        if not self._shared.config.requires_capacity:
            return ""
        claim, largest_mib = self._shared.stores.claim_of(pod), self._engine.cluster.largest_mib
        why = podcapacity.uncounted(pod, claim, request.shape.resources, largest_mib)
        if why and podcapacity.depends_on_nodes(claim):
            self._uncounted[pod.metadata.uid] = pod
        return why
