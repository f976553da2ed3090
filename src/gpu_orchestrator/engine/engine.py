"""Turn events into actions: keep the cluster's state and the queue, decide what can be decided.

                              ┌────────────── woken ◀── parked ◀──┐ refused
    RequestAdded ──▶ active ──┴─▶ decide ─────────────────────────┤
                       ▲                                          ▼ Place
                       └── rested ◀── resting ◀── PlaceFailed ── in flight ── Placed ──▶ held ──▶ removed

A request is in exactly one of these states until it is held or removed. The scheduler, the operator and the
task dispatcher each run one: they differ in where events come from and who performs the actions.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, why_not
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import current
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    LimitChanged,
    NodeRemoved,
    NodeUpdated,
    Place,
    Placed,
    PlaceFailed,
    PlacementObserved,
    Refuse,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.order import Order, PriorityThenTime
from gpu_orchestrator.engine.queue import Queue, Waiting
from gpu_orchestrator.engine.unschedulable import Unschedulable

State = Literal["active", "parked", "resting", "in flight", "held"]


class Engine:
    """`policy_of` may raise for a request it does not understand: then `handle` raises and has taken nothing
    in, and `handle_all` refuses that request and takes in the rest. A policy that breaks while it decides
    refuses its request, which rests and is tried again. `max_in_flight` bounds what is decided and not yet
    done, so that what arrives later can still go first; `max_decisions` bounds one call, so that a host stays
    responsive: `deadline` then says "now"."""

    def __init__(
        self,
        policy_of: Callable[[Request], Policy],
        rng: Rng,
        *,
        order: Order | None = None,
        backoff: Backoff | None = None,
        max_in_flight: int = 1_000_000,
        max_decisions: int = 1_000_000,
    ) -> None:
        self._policy_of, self._rng = policy_of, rng
        self._order = order or PriorityThenTime()
        self._backoff = backoff or Backoff()
        self._max_in_flight, self._max_decisions = max_in_flight, max_decisions
        self._cache = Cache()
        self._fair_share = FairShare()
        self._active = Queue(self._fair_share)
        self._unschedulable = Unschedulable(self._fair_share)
        self._resting: list[tuple[float, int, Waiting]] = []
        self._waiting: dict[str, Waiting] = {}
        self._in_flight: dict[str, Waiting] = {}
        self._left: dict[str, RequestAdded | None] = {}
        self._last: Waiting | None = None
        self._numbers = count()

    @property
    def cluster(self) -> Cluster:
        """What the engine believes; copy it to try something out."""
        return self._cache.cluster

    @property
    def has_waiting(self) -> bool:
        """Whether any request waits, in whatever state."""
        return bool(self._waiting)

    def prepare(self) -> None:
        """In a quiet moment: look at what changed since the last decision, so that the next one like it need
        not."""
        if self._last is None:
            return
        try:
            current(self._last.request.shape, self.cluster, self._last.policy)
        except Exception:  # a policy that breaks refuses its requests in `_decide`
            self._last = None

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event and return what is to be done. Call with `Tick()` when `deadline` has come.
        Raises what `policy_of` raises, before anything has changed."""
        actions: list[Action] = []
        self._fair_share.pass_time(now)
        self._hear(event, now, actions)
        return self._act(now, actions)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Action]:
        """Take in what happened at once, in order, and decide afterwards: who waits is looked at once for all
        that became free, not once for each. A request that `policy_of` does not understand is refused and
        does not wait; the other events count all the same. An event that cannot be at all raises after they
        were heard, and before anything is decided."""
        actions: list[Action] = []
        failed: Exception | None = None
        self._fair_share.pass_time(now)
        for event in events:
            try:
                self._hear(event, now, actions)
            except Exception as error:  # `policy_of` is not ours; whatever it raises is about this one alone
                if isinstance(event, RequestAdded):
                    actions.append(Refuse(event.request, self._broken(error)))
                else:
                    failed = failed or error
        if failed is not None:
            raise failed
        return self._act(now, actions)

    def _act(self, now: float, actions: list[Action]) -> list[Action]:
        self._wake_rested(now)
        self._decide_what_can_be(now, actions)
        return actions

    def deadline(self, now: float) -> float | None:
        """When to call again at the latest, if nothing happens before; None for "when something happens"."""
        if len(self._in_flight) < self._max_in_flight and self._active.has_turn():
            return now
        self._skip_departed()
        return max(self._resting[0][0], now) if self._resting else None

    def why(self, key: str) -> Refusal | None:
        """Why a waiting request does not fit as things are now; None if it does, or does not wait."""
        if (waiting := self._waiting.get(key)) is None:
            return None
        try:
            return why_not(waiting.request.shape, self.cluster, waiting.policy)
        except Exception as error:  # the same policy refuses it in `_decide`, in the same words
            return self._broken(error)

    def state_of(self, key: str) -> State | None:
        """Where a request is; None if the engine does not know it."""
        if key in self._in_flight:
            return "in flight"
        if (waiting := self._waiting.get(key)) is None:
            return "held" if self._cache.holds(key) else None
        if waiting.rests_until is not None:
            return "resting"
        return "active" if waiting.queue is self._active else "parked"

    def waiting(self, key: str) -> Request | None:
        """The request that waits under this key, in whatever state."""
        waiting = self._waiting.get(key)
        return None if waiting is None else waiting.request

    def counts(self) -> dict[State, int]:
        """How many requests are in each place."""
        resting = len(self._waiting) - len(self._active) - len(self._unschedulable)
        return {
            "active": len(self._active),
            "parked": len(self._unschedulable),
            "resting": resting,
            "in flight": len(self._in_flight),
            "held": len(self._cache) - len(self._cache.assumed),
        }

    def _hear(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:
            case NodeUpdated(node):
                if self._cache.set_node(node):
                    self._helped(node.name, observed=True)
            case NodeRemoved(name):
                self._cache.remove_node(name)
            case RequestAdded():
                self._ask(event, now, actions)
            case RequestRemoved(key):
                self._leave(key)
            case PlacementObserved(placement, request):
                self._hold(placement, request)
            case Placed(key):
                self._placed(key, now, actions)
            case PlaceFailed(key):
                self._place_failed(key, now, actions)
            case LimitChanged(flow, most):
                self._turned(self._fair_share.allow(flow, most))
            case Tick():
                pass

    def _ask(self, event: RequestAdded, now: float, actions: list[Action]) -> None:
        request, key = event.request, event.request.key
        if key in self._in_flight:
            self._ask_in_flight(event, self._in_flight[key])
            return
        known = self._waiting.get(key)
        if self._cache.holds(key) or (known is not None and known.request == request):
            return
        waiting = self._enter(request, known.since if known else now if event.since is None else event.since)
        if known is not None:
            self._dequeue(known)
        self._wait(waiting)
        if not self._join_sleepers(waiting, actions):
            self._active.push(waiting)

    def _ask_in_flight(self, event: RequestAdded, flying: Waiting) -> None:
        """Its placing is under way. If it had left, it comes back after that; else what it wants now counts
        if the placing fails."""
        newer = self._enter(event.request, flying.since)
        if event.request.key in self._left:
            self._left[event.request.key] = event
        elif newer.request != flying.request:
            newer.attempts = flying.attempts
            self._in_flight[event.request.key] = newer

    def _enter(self, request: Request, since: float) -> Waiting:
        order = self._order
        return Waiting(
            request,
            self._policy_of(request),
            since,
            next(self._numbers),
            order.lane(request),
            order.flow(request),
            order.rank(request, since),
        )

    def _join_sleepers(self, waiting: Waiting, actions: list[Action]) -> bool:
        """Who asks for what is known not to fit needs no decision of its own."""
        if (group := self._unschedulable.asleep(waiting)) is None:
            return False
        self._unschedulable.join(group, waiting)
        actions.append(Refuse(waiting.request, group.refusal))
        return True

    def _leave(self, key: str) -> None:
        if key in self._in_flight:
            self._left[key] = None
        elif (waiting := self._waiting.get(key)) is not None:
            self._dequeue(waiting)
        else:
            self._release(key)

    def _release(self, key: str) -> None:
        self._turned(self._fair_share.let_go(key))
        self._helped(self._cache.release(key))

    def _hold(self, placement: Placement, request: Request | None) -> None:
        key = placement.key
        self._in_flight.pop(key, None)
        self._left.pop(key, None)
        if (waiting := self._waiting.get(key)) is not None:
            self._dequeue(waiting)
        if request is not None:
            self._turned(self._fair_share.take(key, self._order.flow(request), self._order.cost(request)))
        self._helped(self._cache.hold(placement))

    def _placed(self, key: str, now: float, actions: list[Action]) -> None:
        if self._in_flight.pop(key, None) is None:
            return
        self._cache.confirm(key)
        if key in self._left:
            self._release(key)
            self._come_back(key, now, actions)

    def _place_failed(self, key: str, now: float, actions: list[Action]) -> None:
        waiting = self._in_flight.pop(key, None)
        if waiting is None:
            return
        freed = self._cache.forget(key)
        self._turned(self._fair_share.let_go(key))
        if key in self._left:
            self._come_back(key, now, actions)
        else:
            self._wait(waiting)
            self._rest(waiting, now)
        self._helped(freed)

    def _come_back(self, key: str, now: float, actions: list[Action]) -> None:
        asked_again = self._left.pop(key)
        if asked_again is not None:
            self._ask(asked_again, now, actions)

    def _wait(self, waiting: Waiting) -> None:
        self._waiting[waiting.request.key] = waiting
        self._fair_share.joins(waiting.flow)

    def _wait_no_more(self, waiting: Waiting) -> None:
        del self._waiting[waiting.request.key]
        self._fair_share.leaves(waiting.flow)

    def _dequeue(self, waiting: Waiting) -> None:
        self._wait_no_more(waiting)
        waiting.rests_until = None
        if waiting.queue is self._active:
            self._active.remove(waiting)
            self._call_next(waiting)
        elif waiting.queue is not None:
            self._unschedulable.leave(waiting)

    def _helped(self, node: str | None, *, observed: bool = False) -> None:
        """Something became free on a node: wake whoever fits there now."""
        if node is not None:
            for group in self._unschedulable.helped_by(self.cluster, node, observed=observed):
                self._activate(self._unschedulable.wake(group))

    def _turned(self, changed: bool) -> None:
        """A flow became full or ceased to be: others are first now."""
        if changed:
            for waiting in self._unschedulable.wake_all():
                self._active.push(waiting)

    def _call_next(self, waiting: Waiting) -> None:
        self._activate(self._unschedulable.next_like(waiting))

    def _activate(self, waiting: Waiting | None) -> None:
        if waiting is not None:
            self._active.push(waiting)

    def _rest(self, waiting: Waiting, now: float) -> None:
        waiting.rests_until = now + self._backoff.delay(waiting.attempts)
        waiting.attempts += 1
        heappush(self._resting, (waiting.rests_until, next(self._numbers), waiting))

    def _wake_rested(self, now: float) -> None:
        self._skip_departed()
        while self._resting and self._resting[0][0] <= now:
            waiting = heappop(self._resting)[2]
            waiting.rests_until = None
            self._active.push(waiting)
            self._skip_departed()

    def _skip_departed(self) -> None:
        while self._resting and self._resting[0][2].rests_until != self._resting[0][0]:
            heappop(self._resting)

    def _decide_what_can_be(self, now: float, actions: list[Action]) -> None:
        for _ in range(self._max_decisions):
            if len(self._in_flight) >= self._max_in_flight or (waiting := self._active.pop()) is None:
                return
            if not self._join_sleepers(waiting, actions):
                actions.append(self._decide(waiting, now))

    def _decide(self, waiting: Waiting, now: float) -> Action:
        request = waiting.request
        try:
            answer, cost = self._judge(waiting)
        except Exception as error:  # policy and order are not ours: others go on, and this one is not lost
            self._rest(waiting, now)
            self._call_next(waiting)
            return Refuse(request, self._broken(error))
        if isinstance(answer, Refusal):
            self._unschedulable.sleep(waiting, answer, self.cluster)
            return Refuse(request, answer)
        self._wait_no_more(waiting)
        self._in_flight[request.key] = waiting
        self._fair_share.charge(waiting.flow, cost)
        self._turned(self._fair_share.take(request.key, waiting.flow, cost))
        self._call_next(waiting)
        return Place(request, answer)

    def _judge(self, waiting: Waiting) -> tuple[Placement | Refusal, float]:
        """The answer, already set aside, and what it costs. All that may raise is asked before."""
        self._last = waiting
        cost = self._order.cost(waiting.request)
        answer = decide(waiting.request, self.cluster, waiting.policy, self._rng)
        if isinstance(answer, Placement):
            self._cache.assume(answer)
        return answer, cost

    def _broken(self, error: Exception) -> Refusal:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Refusal(len(self.cluster), error=f"could not be judged: {said}")
