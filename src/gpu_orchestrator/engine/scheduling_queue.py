"""All requests that wait: the active queue, the parked groups and those that rest. Kept by the engine.

As in kube-scheduler: `pop` hands out the next request to decide, and the engine then takes it out (`leave`),
parks it (`park`) or lets it rest (`rest`). What becomes free wakes the parked requests that fit there.
"""

from math import inf
from typing import Literal

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.backoff_queue import BackoffQueue
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.queue import Queue, Waiting
from gpu_orchestrator.engine.unschedulable import Unschedulable

LAST = (inf,)
State = Literal["active", "parked", "resting", "in flight", "held"]
"""Where a request is in the engine; the first three are the queue's."""


class SchedulingQueue:
    def __init__(self, fair_share: FairShare, backoff: Backoff) -> None:
        self._fair_share = fair_share
        self._active = Queue(fair_share)
        self._unschedulable = Unschedulable(fair_share)
        self._resting = BackoffQueue(backoff)
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, key: str) -> Waiting | None:
        return self._waiting.get(key)

    def state_of(self, waiting: Waiting) -> State:
        if waiting.rests_until is not None:
            return "resting"
        return "active" if waiting.queue is self._active else "parked"

    def counts(self) -> dict[State, int]:
        active, parked = len(self._active), len(self._unschedulable)
        return {"active": active, "parked": parked, "resting": len(self._waiting) - active - parked}

    def has_next(self) -> bool:
        """Return True if `pop` may return a request now or soon."""
        return self._active.has_turn() or bool(self._unschedulable.waves)

    def rested_at(self) -> float | None:
        """Return when the next resting request becomes active; None if none rests."""
        return self._resting.next_at()

    def add(self, waiting: Waiting) -> Refusal | None:
        """Add a request; if its shape is known not to fit, park it at once and return why."""
        self._enter(waiting)
        refusal = self.join_parked(waiting)
        if refusal is None:
            self._active.push(waiting)
        return refusal

    def add_resting(self, waiting: Waiting, now: float) -> None:
        """Add a request whose placing failed."""
        self._enter(waiting)
        self.rest(waiting, now)

    def pop(self, cluster: Cluster) -> Waiting | None:
        """Return the next request to decide; None if all active ones belong to flows at their limit, or if
        parked ones are left to be checked that may come before: call it again soon."""
        return self._pop_in_order(cluster) if self._unschedulable.waves else self._active.pop()

    def join_parked(self, waiting: Waiting) -> Refusal | None:
        """Park a request whose shape is known not to fit, and return why; None if that is not known."""
        if (group := self._unschedulable.asleep(waiting)) is None:
            return None
        self._unschedulable.join(group, waiting)
        return group.refusal

    def park_again(self, waiting: Waiting, cluster: Cluster) -> Refusal | None:
        """Park a woken request that by the numbers fits nowhere, and return why; None if it must be
        judged."""
        return self._unschedulable.sleep_again(waiting, cluster)

    def park(self, waiting: Waiting, refusal: Refusal, cluster: Cluster) -> None:
        """Park a request that was refused just now, until a node could take it."""
        self._unschedulable.sleep(waiting, refusal, cluster)

    def rest(self, waiting: Waiting, now: float) -> None:
        """Try this request again after its backoff."""
        self._resting.push(waiting, now)

    def leave(self, waiting: Waiting) -> None:
        """Take out a request that `pop` returned and that is placed now."""
        del self._waiting[waiting.request.key]
        self._fair_share.leaves(waiting.flow)

    def remove(self, waiting: Waiting) -> None:
        """Take out a request from wherever it waits."""
        self.leave(waiting)
        waiting.rests_until = None
        if waiting.queue is self._active:
            self._active.remove(waiting)
            self.activate_next(waiting)
        elif waiting.queue is not None:
            self._unschedulable.leave(waiting)

    def activate_next(self, waiting: Waiting) -> None:
        """Activate the next request with the same shape, if its group is awake."""
        self._activate(self._unschedulable.next_like(waiting))

    def activate_rested(self, now: float) -> None:
        for waiting in self._resting.pop_rested(now):
            self._active.push(waiting)

    def wake_for(self, cluster: Cluster, node: str, *, observed: bool) -> None:
        """Wake the parked requests that fit on this node. `observed`: the node itself changed, not only what
        is free on it."""
        for group in self._unschedulable.helped_by(cluster, node, observed=observed):
            self._activate(self._unschedulable.wake(group))

    @property
    def is_behind(self) -> bool:
        """True if `wake_for_others` has more to look at."""
        return self._unschedulable.is_behind

    def wake_for_others(self, cluster: Cluster) -> None:
        """Wake parked requests with rules about other pods, which pods on other nodes may have helped."""
        for group in self._unschedulable.helped_by_others(cluster):
            self._activate(self._unschedulable.wake(group))

    def limits_changed(self, changed: bool) -> None:
        """If a flow reached its limit or dropped below it, let each awake group send its next request."""
        if changed:
            for waiting in self._unschedulable.wake_all():
                self._active.push(waiting)

    def _pop_in_order(self, cluster: Cluster) -> Waiting | None:
        if self._may_be_behind():
            self._wake_more(cluster)
            if self._may_be_behind():
                return None
        found = self._active.pop()
        if found is None and self._unschedulable.waves:
            self._wake_more(cluster)
        return found

    def _may_be_behind(self) -> bool:
        """Return True if parked requests are left to be checked that may come before all active ones."""
        parked = self._unschedulable
        return bool(parked.waves) and (self._active.first() or LAST) > parked.checked_up_to()

    def _wake_more(self, cluster: Cluster) -> None:
        for group in self._unschedulable.helped_more(cluster):
            self._activate(self._unschedulable.wake(group))

    def _enter(self, waiting: Waiting) -> None:
        self._waiting[waiting.request.key] = waiting
        self._fair_share.joins(waiting.flow)

    def _activate(self, waiting: Waiting | None) -> None:
        if waiting is not None:
            self._active.push(waiting)
