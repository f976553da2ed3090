"""Pods that are bound, by us or by another scheduler, and pods that have ended: count what they hold, and let
go of it."""

from collections.abc import Callable, Iterable

from gpu_orchestrator.api import gangs
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.actions import BindJob, PodEnded
from gpu_orchestrator.apps.scheduler.cycle.shared import Shared
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.events import Event


class BoundPods:
    """`check` is called with pods that wait for a claim which is free now, `requeue` with pods that may count
    in another queue than before."""

    def __init__(
        self,
        shared: Shared,
        feed: Callable[[Event], None],
        check: Callable[[Iterable[Pod]], None],
        *,
        requeue: Callable[[str], None],
    ) -> None:
        self._shared, self._feed, self._check, self._requeue = shared, feed, check, requeue
        self._our_pods, self._binding, self._pending = shared.our_pods, shared.binding, shared.pending
        self._holdings, self._lease_index = shared.holdings, shared.lease_index
        self._surroundings, self._claim_users = shared.surroundings, shared.claim_users
        self._executor, self._failures = shared.executor, shared.failures

    def observe(self, pod: Pod, *, was_shown: bool, was_bound: bool) -> None:
        """Take in a pod that the watch shows bound. `was_shown`: the watch has shown it before; `was_bound`:
        also bound."""
        uid, known = pod.metadata.uid, self._holdings.get(pod.metadata.uid)
        self._pending.clear_reason(uid)
        self._failures.pop(uid, None)
        if known is not None and not was_bound and self._is_bound_as(known, pod):
            return  # we have just bound it so
        job = self._binding.get(uid)
        if known is None and job is not None and job.placement.node == pod.spec.node_name:
            return  # most likely by this job, which counts its devices until `done` has its outcome
        # Without leases: a pod that comes with a node was not bound by us, unless that was before we started.
        by_annotation = not self._shared.config.uses_leases and (was_shown or not self._shared.is_opened)
        self._count(pod, by_annotation=by_annotation)

    def placed(self, job: BindJob) -> None:
        """Take in that we have bound a pod."""
        uid, placement = job.pod.metadata.uid, job.placement
        self._failures.pop(uid, None)
        self._shared.queues.bound(uid, job.queue)
        if uid in self._our_pods:
            self._pending.clear_reason(uid)
            self._holdings.record(uid, placement, job.queue)
            self._requeue(uid)  # its queue may be gone, or another have come, while it was bound
        else:  # it ended before the bind was answered
            self._holdings.keep_ended(uid, placement, self._lease_index.devices(uid, placement.node))
            self._shared.queues.forget(uid)
            self._executor.release(PodEnded(job.pod, placement))
        self._lease_index.recount(uid)
        self._feed(events.Placed(uid))
        pod = self._our_pods.get(uid)
        if pod is not None and pod.spec.node_name and not self._is_bound_as(placement, pod):
            self._count(pod, by_annotation=not self._shared.config.uses_leases)  # it changed meanwhile

    def not_placed(self, uid: str) -> None:
        """Take in that our bind of a pod has failed: another scheduler may have bound it meanwhile."""
        self._lease_index.recount(uid)
        pod = self._our_pods.get(uid)
        if pod is not None and pod.spec.node_name and uid not in self._holdings:
            self._count(pod, by_annotation=not self._shared.config.uses_leases)
        if uid not in self._holdings:  # if another scheduler has bound it, it keeps its claim
            self.free_claim(uid)

    def ended(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._our_pods.pop(uid, None)
        self._failures.pop(uid, None)
        placement = self._holdings.remove(uid)
        if placement is None:
            self._pending.withdraw(uid)
        self._surroundings.ended(pod)
        self._lease_index.recount(uid)  # before the pod's own count goes: its lease counts from here on
        if placement is not None:
            self._holdings.keep_ended(uid, placement, self._lease_index.devices(uid, placement.node))
            self._pending.withdraw(uid)
            self._holdings.nodes.remove_plugin_pod(uid, placement.node)
            self._holdings.nodes.recount(uid, placement.node)
            self._shared.queues.forget(uid)
        if uid in self._binding:
            return  # `done` decides when its job has an outcome
        if uid in self._lease_index or (placement is not None and placement.devices):
            self._executor.release(PodEnded(pod, placement))
        else:
            self.free_claim(uid)

    def has_succeeded(self, pod: Pod) -> None:
        """Count a pod that did its part as a started member of its gang for as long as it is there: one that
        takes the place of a failed one must not wait for it."""
        self._count_in_gang(pod, "")

    def free_claim(self, uid: str) -> None:
        """End the assignment of the pod's claim and check the pods that wait for it."""
        if claim := self._claim_users.release(uid):
            self._check(self._shared.stores.pods.by("claim", claim))

    def _count(self, pod: Pod, *, by_annotation: bool) -> None:
        # Before the engine gets the event: it may place another pod at once.
        in_use = self._surroundings.use_volumes(pod)
        if pod.metadata.uid not in self._holdings:
            self._claim_users.assign(pod)
        self._holdings.add(pod, by_annotation=by_annotation)
        self._lease_index.recount(pod.metadata.uid)
        self._lease_index.requeue(pod.metadata.uid)
        self._count_in_gang(pod, pod.spec.node_name)
        self._surroundings.check_users(in_use)

    def found_group(self, pods: Iterable[Pod]) -> None:
        """Count bound pods as members of their PodGroup, which was not known before."""
        for pod in pods:
            if pod.spec.node_name and pod.metadata.uid in self._holdings:
                self._count_in_gang(pod, pod.spec.node_name)

    def _count_in_gang(self, pod: Pod, node: str) -> None:
        """Tell the engine that a member of a gang has started. What cannot be read belongs to no gang."""
        stores = self._shared.stores
        claim = stores.claim_of(pod)
        try:
            terms = gangs.terms(pod, claim.spec if claim else None, stores.group_of(pod))
        except BadGpuRequest:
            return
        if terms is not None and pod.spec.scheduler_name == self._shared.config.scheduler_name:
            is_marked = bool(node) and gangs.is_marked(pod)
            self._feed(events.MemberObserved(pod.metadata.uid, node, terms, is_marked))

    def _is_bound_as(self, known: Placement, pod: Pod) -> bool:
        return known.node == pod.spec.node_name and known.neighbour == self._surroundings.neighbour(pod)


def is_same(old: Pod, new: Pod) -> bool:
    """Return True if a bound pod holds the same as before, and other pods' rules see the same of it. What its
    annotations say changes no holding."""
    return (
        bool(new.spec.node_name)
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
    )
