"""All requests that wait: the active queue, the parked groups and those that rest. Kept by the engine.

As in kube-scheduler: `pop` hands out the next request to decide, and the engine then takes it out (`leave`),
parks it (`park`) or lets it rest (`rest`), and says so (`settle`). What becomes free is offered to the parked
requests that fit there, in the same order as if all of them were active.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.queues import Full
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.backoff_queue import BackoffQueue
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.model_line import ModelLine
from gpu_orchestrator.engine.queue import Queue, Waiting
from gpu_orchestrator.engine.quota import Quota
from gpu_orchestrator.engine.turns import Turn
from gpu_orchestrator.engine.unschedulable import Unschedulable

State = Literal["active", "parked", "resting", "in flight", "held"]
"""Where a request is in the engine; the first three are the queue's."""


class SchedulingQueue:
    def __init__(self, fair_share: FairShare, backoff: Backoff, line: ModelLine, quota: Quota) -> None:
        self._fair_share, self._line = fair_share, line
        self._active = Queue(fair_share)
        self._unschedulable = Unschedulable(fair_share, quota)
        self._resting = BackoffQueue(backoff)
        self._waiting: dict[str, Waiting] = {}
        self.fitting: list[int] | None = None
        """The only rows on which the request that `pop` returned fits, if they are known."""

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, key: str) -> Waiting | None:
        return self._waiting.get(key)

    def requests(self) -> Iterator[Request]:
        """Return the requests that wait, gangs by one entry each."""
        return (waiting.request for waiting in self._waiting.values())

    def all(self) -> Iterable[Waiting]:
        """Return what waits, gangs by one entry each."""
        return self._waiting.values()

    def turn(self, waiting: Waiting) -> Turn:
        """Return a value that is smaller the earlier the request's turn is."""
        return self._unschedulable.turn(waiting)

    def parked_in_turn(self) -> Iterator[tuple[Waiting, Refusal]]:
        """Return parked requests with why they wait, in turn: of equal ones of a flow the first alone."""
        return self._unschedulable.in_turn()

    def blocked(self) -> Iterator[Waiting]:
        """Return requests whose queue has no room, the first of those that are alike."""
        return self._unschedulable.blocked()

    def refusal(self, waiting: Waiting) -> Refusal | None:
        """Return why the parked requests like this one were refused; None if none is parked."""
        return self._unschedulable.refusal(waiting)

    def state_of(self, waiting: Waiting) -> State:
        if waiting.rests_until is not None:
            return "resting"
        return "parked" if waiting.is_parked else "active"

    def counts(self) -> dict[State, int]:
        active, parked = len(self._active), len(self._unschedulable)
        return {"active": active, "parked": parked, "resting": len(self._waiting) - active - parked}

    def has_next(self) -> bool:
        """Return True if `pop` may return a request now or soon."""
        return self._active.has_turn() or not self._unschedulable.is_settled

    def rested_at(self) -> float | None:
        """Return when the next resting request becomes active; None if none rests."""
        return self._resting.next_at()

    def add(self, waiting: Waiting, cluster: Cluster) -> Refusal | None:
        """Add a request; if its shape is known not to fit, park it at once and return why."""
        self._enter(waiting)
        refusal = self._unschedulable.join_refused(waiting, cluster, has_room=not waiting.request.queue)
        if refusal is None:
            self._active.push(waiting)
        return refusal

    def push(self, waiting: Waiting) -> None:
        """Add the entry of a gang, which is decided whatever is known of its shapes."""
        self._enter(waiting)
        self._active.push(waiting)

    def add_resting(self, waiting: Waiting, now: float) -> None:
        """Add a request whose placing failed."""
        self._enter(waiting)
        self.rest(waiting, now)

    def pop(self, cluster: Cluster) -> Waiting | None:
        """Return the next request to decide; None if all that may be tried belong to flows at their limit, or
        if parked ones are left to be checked that may come before: call it again soon."""
        first, parked = self._active.pop(), self._unschedulable
        self.fitting = None
        if parked.is_settled:
            return first
        found = parked.next_in_turn(cluster, first)
        if found is None and not parked.is_paused:
            return first
        if first is not None:
            self._active.push(first)
        if found is not None:
            parked.take(found)
            self.fitting = parked.fitting
        return found

    def pop_this(self, key: str) -> Waiting | None:
        """Return this request as `pop` would; None if it does not wait."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return None
        self.fitting = None
        if waiting.is_parked:
            self._unschedulable.take(waiting)
        elif waiting.rests_until is None:
            self._active.remove(waiting)
        waiting.rests_until = None
        return waiting

    def join_parked(self, waiting: Waiting, cluster: Cluster) -> Refusal | None:
        """Park a request whose shape is known not to fit, and return why; None if that is not known. Its
        queue has room."""
        return self._unschedulable.join_refused(waiting, cluster, has_room=True)

    def hold_back(self, waiting: Waiting, full: Full, cluster: Cluster) -> Refusal:
        """Park a request until its queue has room, and return why."""
        return self._unschedulable.hold_back(waiting, full, cluster)

    def park_by_numbers(self, waiting: Waiting, cluster: Cluster, *, explained: bool) -> Refusal | None:
        """Park a request that by the numbers fits nowhere, and return why; None if it must be judged."""
        return self._unschedulable.park_by_numbers(waiting, cluster, explained=explained)

    def park(self, waiting: Waiting, refusal: Refusal, cluster: Cluster) -> None:
        """Park a request that was refused just now, until a node could take it."""
        self._unschedulable.park(waiting, refusal, cluster)

    def rest(self, waiting: Waiting, now: float) -> None:
        """Try this request again after its backoff."""
        self._resting.push(waiting, now)

    def leave(self, waiting: Waiting) -> None:
        """Take out a request that `pop` returned and that is placed now."""
        del self._waiting[waiting.request.key]
        self._fair_share.leaves(waiting.flow)
        if waiting.request.shape.model and not waiting.request.queue:
            self._line.leaves(waiting)

    def put_back(self, waiting: Waiting) -> None:
        """Return a request that `pop` returned to the queue, because another one goes first."""
        self._active.push(waiting)

    def open(self, groups: Iterable[tuple[Shape, Policy]]) -> None:
        """Let parked requests of these shapes be judged again."""
        self._unschedulable.open(groups)

    def settle(self, waiting: Waiting) -> None:
        """The request that `pop` returned is placed or rests now, and is not parked again."""
        self._unschedulable.settle(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Take out a request from wherever it waits."""
        self.leave(waiting)
        waiting.rests_until = None
        if waiting.is_parked:
            self._unschedulable.remove(waiting)
        else:
            self._active.remove(waiting)

    def activate_rested(self, now: float) -> None:
        for waiting in self._resting.pop_rested(now):
            self._active.push(waiting)

    def wake_for(self, cluster: Cluster, node: str, *, observed: bool) -> None:
        """Offer this node to the parked requests that fit there. `observed`: the node itself changed, not
        only what is free on it."""
        self._unschedulable.offer(cluster, node, observed=observed)

    @property
    def is_behind(self) -> bool:
        """True if `wake_for_others` has more to look at."""
        return self._unschedulable.is_behind

    def wake_for_others(self, cluster: Cluster) -> None:
        """Wake parked requests with rules about other pods, which pods on other nodes may have helped."""
        self._unschedulable.open_for_others(cluster)

    def limits_changed(self, changed: bool) -> None:
        """A flow may have reached its limit or dropped below it: parked requests may have a turn now."""
        if changed:
            self._unschedulable.limits_changed()

    def _enter(self, waiting: Waiting) -> None:
        self._waiting[waiting.request.key] = waiting
        self._fair_share.joins(waiting.flow)
        if waiting.request.shape.model and not waiting.request.queue:
            self._line.joins(waiting)
