"""Turn events into actions: keep the cluster's state and the queue, decide what can be decided.

                              ┌──────── its turn ◀──── parked ◀──┐ refused
    RequestAdded ──▶ active ──┴─▶ decide ────────────────────────┤
                       ▲                                          ▼ Place
                       └── rested ◀── resting ◀── PlaceFailed ── in flight ── Placed ──▶ held ──▶ removed

A request is in exactly one of these states until it is held or removed. The scheduler, the operator and the
task dispatcher each run one: they differ in where events come from and who performs the actions.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import count, islice
from math import inf

from gpu_orchestrator.core.answer import Placement, Refusal, not_judged
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide, decide_among, why_not
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.core.standing import current
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.events import Action, Event, Place, PlaceGang, Refuse, RequestAdded
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.gangs import Gangs, PartlyStarted, judge
from gpu_orchestrator.engine.in_flight import InFlight
from gpu_orchestrator.engine.model_choice import Go, ModelChoice, Stay
from gpu_orchestrator.engine.model_rechecks import ModelRechecks
from gpu_orchestrator.engine.models import ModelRules, Models
from gpu_orchestrator.engine.order import Order, PriorityThenTime
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.scheduling_queue import SchedulingQueue, State


class Engine:
    """`policy_of` may raise for a request that it cannot serve: `handle` then raises and changes nothing, and
    `handle_all` refuses that request and takes in the other events. A policy that raises while it decides
    refuses its request, which rests and is tried again. `max_in_flight` bounds decisions that are not yet
    carried out, so that a later request can still go first. `max_decisions` bounds one call, and `max_rows`
    the rows of nodes judged for new shapes from one `Tick` to the next: `deadline` then returns "now".
    `explains` is False if nobody reads why a request is refused: a new shape for which no node has enough by
    the numbers is then parked without a closer look. `why` always explains."""

    def __init__(
        self,
        policy_of: Callable[[Request], Policy],
        rng: Rng,
        *,
        order: Order | None = None,
        backoff: Backoff | None = None,
        max_in_flight: int = 1_000_000,
        max_decisions: int = 1_000_000,
        max_rows: float = inf,
        explains: bool = True,
        models: ModelRules = ModelRules(),  # noqa: B008 - a frozen value
    ) -> None:
        self._policy_of, self._rng = policy_of, rng
        self._order = order or PriorityThenTime()
        self._max_decisions, self._max_rows, self._rows_at_tick = max_decisions, max_rows, 0
        self._explains = explains
        self._cache = Cache()
        self._fair_share = FairShare()
        self.models = Models(models, self._cache)
        self._queue = SchedulingQueue(self._fair_share, backoff or Backoff(), self.models.line)
        self._gangs = Gangs(backoff or Backoff())
        self._choice = ModelChoice(self.models, self._fair_share, self.cluster, rng)
        self._rechecks = ModelRechecks()
        self._now = 0.0
        self._in_flight = InFlight(max_in_flight)
        self._left: dict[str, RequestAdded | None] = {}
        self._last: Waiting | None = None
        self._first: list[str] = []
        self._numbers = count()

    @property
    def cluster(self) -> Cluster:
        """The cluster as the engine believes it to be; copy it to try something out."""
        return self._cache.cluster

    @property
    def has_waiting(self) -> bool:
        """True if any request is active, parked or resting."""
        return len(self._queue) > 0 or self._gangs.has_waiting

    def prepare(self) -> None:
        """Update the standing of the last decided shape, so that the next decision like it is faster. Call
        it when there is nothing else to do."""
        if self._last is None:
            return
        try:
            current(self._last.request.shape, self.cluster, self._last.policy)
        except Exception:  # a policy that breaks refuses its requests in `_decide`
            self._last = None

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event and return the actions to perform. Call with `Tick()` when `deadline` has come.
        Raises what `policy_of` raises, before anything has changed."""
        actions: list[Action] = []
        self._pass_time(now)
        self._take_in(event, now, actions)
        return self._act(now, actions)

    def handle_all(self, batch: Iterable[Event], now: float) -> list[Action]:
        """Take in several events, in order, and decide afterwards: waiting requests are tried once for all
        that became free, not once for each event. A request for which `policy_of` raises is refused and does
        not wait; the other events still count. Any other event that fails raises after all events were taken
        in, and before anything is decided."""
        actions = self.take_in(batch, now)
        return self._act(now, actions)

    def take_in(self, batch: Iterable[Event], now: float) -> list[Action]:
        """Take in several events as `handle_all` does, and decide nothing yet. For the start, which hands
        over a long queue in parts: nothing is placed before all that may come first is known."""
        actions: list[Action] = []
        failed: Exception | None = None
        self._pass_time(now)
        for event in batch:
            try:
                self._take_in(event, now, actions)
            # `policy_of` may be a plugin: what it raises concerns this request alone.
            except Exception as error:
                if isinstance(event, RequestAdded):
                    actions.append(Refuse(event.request, not_judged(len(self.cluster), error)))
                else:
                    failed = failed or error
        if failed is not None:
            raise failed
        return actions

    def _pass_time(self, now: float) -> None:
        self._now = now
        self._fair_share.pass_time(now)

    def _act(self, now: float, actions: list[Action]) -> list[Action]:
        self._queue.activate_rested(now)
        for model in self._rechecks.due(now):
            self._open_model(model)
        self._queue.wake_for_others(self.cluster)
        for gang in self._gangs.helped(self.cluster, now):
            self._queue.push(self._gangs.enqueue(gang))
        self._decide_active(now, actions)
        actions.extend(Refuse(*each) for each in self._gangs.short_too_long(now, len(self.cluster)))
        return actions

    def deadline(self, now: float) -> float | None:
        """Return when to call again if nothing happens before; None if only an event can change anything."""
        if self._queue.is_behind or (not self._in_flight.is_full and self._queue.has_next()):
            return now
        times = self._queue.rested_at(), self._rechecks.next_at(), self._gangs.next_at(now)
        known = [at for at in times if at is not None]
        return max(min(known), now) if known else None

    def takes_long(self, key: str) -> None:
        """Do not count this request against `max_in_flight`."""
        self._in_flight.takes_long(key)

    def why(self, key: str) -> Refusal | None:
        """Return why a waiting request does not fit now; None if it fits or does not wait."""
        if self._gangs.get(key) is not None:
            return self._gangs.refusal(key, len(self.cluster))
        if (waiting := self._queue.get(key)) is None:
            return None
        try:
            return why_not(waiting.request.shape, self.cluster, waiting.policy)
        except Exception as error:  # `_decide` refuses the request with the same words
            return not_judged(len(self.cluster), error)

    def state_of(self, key: str) -> State | None:
        """Return the state of a request; None if the engine does not know it."""
        if key in self._in_flight:
            return "in flight"
        if (waiting := self._queue.get(key)) is not None:
            return self._queue.state_of(waiting)
        if self._gangs.get(key) is not None:
            return "active" if self._gangs.stage(key) == "queued" else "parked"
        return "held" if self._cache.holds(key) else None

    def waiting(self, key: str) -> Request | None:
        """Return the request that waits under this key, be it active, parked or resting."""
        waiting = self._queue.get(key) or self._gangs.get(key)
        return None if waiting is None else waiting.request

    def partly_started(self) -> list[PartlyStarted]:
        """Return the gangs that hold places and began without enough members."""
        return self._gangs.partly_started(self._in_flight)

    def preloads(self, most: int, but: Collection[str] = ()) -> list[Place]:
        """Return where models that waiting requests name, and that are loaded nowhere, could be loaded now.
        Look at `most` of them at most, and at these not: `but`. The requests go on waiting; the copies are
        expected from now on."""
        found: list[Place] = []
        cold = (
            each for each in self.models.line.models() if each not in but and not self.models.nodes_of(each)
        )
        for model in islice(cold, most):
            waiting = self.models.line.of(model)[0][1]
            if waiting.rests_until is None and (placement := self._choice.ahead(waiting)) is not None:
                self.models.expect(model, placement, self._now)
                found.append(Place(waiting.request, placement))
        return found

    def waiting_under(self, key: str) -> tuple[Request, Policy] | None:
        """Return a single request that waits, with its policy."""
        waiting = self._queue.get(key)
        return None if waiting is None else (waiting.request, waiting.policy)

    def counts(self) -> dict[State, int]:
        """Return how many requests are in each state."""
        counts = self._queue.counts()
        for state, members in self._gangs.counts().items():
            counts[state] += members
        return {
            **counts,
            "in flight": len(self._in_flight),
            "held": len(self._cache) - len(self._cache.assumed),
        }

    def _take_in(self, event: Event, now: float, actions: list[Action]) -> None:
        match event:  # the most frequent first
            case events.RequestAdded():
                self._add(event, now, actions)
            case events.Placed(key):
                self._placed(key, now, actions)
            case events.RequestRemoved(key):
                self._remove(key)
            case events.RoomReady(room, key):
                self._remove(room)
                self._first.append(key)
            case events.NodeUpdated(node):
                if self._cache.set_node(node):
                    self._wake(node.name, observed=True)
            case events.NodeRemoved(name):
                self._cache.remove_node(name)
                self.models.forget(name)
            case events.PlacementObserved() | events.CopiesObserved() | events.MemberObserved():
                self._observe(event, now)
            case events.PlaceFailed(key):
                self._place_failed(key, now, actions)
            case events.LimitChanged(flow, most):
                self._queue.limits_changed(self._fair_share.allow(flow, most))
            case events.Tick():
                self._rows_at_tick = self.cluster.rows_judged

    def _observe(
        self, event: events.PlacementObserved | events.CopiesObserved | events.MemberObserved, now: float
    ) -> None:
        match event:
            case events.PlacementObserved(placement, request):
                self._hold(placement, request)
            case events.CopiesObserved(node, copies, most):
                self.models.observe(node, copies, most, now)
                self._wake(node if node in self.cluster else None)
            case events.MemberObserved(key, node, gang):
                self._observe_member(key, node, gang, now)

    def _observe_member(self, key: str, node: str, gang: GangTerms, now: float) -> None:
        if (speaker := self._gangs.observed(key, node, gang, now)) is not None:
            self._queue.push(speaker)

    def _add(self, event: RequestAdded, now: float, actions: list[Action]) -> None:
        request, key = event.request, event.request.key
        if key in self._in_flight:
            self._add_in_flight(event, self._in_flight[key])
            return
        known = self._queue.get(key) or self._gangs.get(key)
        if self._cache.holds(key) or (known is not None and known.request == request):
            return
        waiting = self._enter(request, known.since if known else now if event.since is None else event.since)
        if known is not None:
            self._take_out(known)
        if request.gang is not None:
            if (speaker := self._gangs.enter(waiting, request.gang, now)) is not None:
                self._queue.push(speaker)
        elif (refusal := self._queue.add(waiting, self.cluster)) is not None:
            actions.append(Refuse(request, refusal))
            model = request.shape.model
            if model and self._rechecks.are_enough(model, self.models.line.count(model)):
                self._open_model(model)

    def _take_out(self, waiting: Waiting) -> None:
        """Take out a request from wherever it waits."""
        if waiting.request.gang is None:
            self._queue.remove(waiting)
        elif (speaker := self._gangs.leave(waiting.request.key, self._now)) is not None:
            self._queue.remove(speaker)

    def _add_in_flight(self, event: RequestAdded, flying: Waiting) -> None:
        """A request came again while it is being placed. If it was removed meanwhile, it is added again
        afterwards; otherwise the new version counts if the placing fails."""
        newer = self._enter(event.request, flying.since)
        if event.request.key in self._left:
            self._left[event.request.key] = event
        elif newer.request != flying.request:
            newer.attempts = flying.attempts
            self._in_flight[event.request.key] = newer

    def _enter(self, request: Request, since: float) -> Waiting:
        policy, order = self._policy_of(request), self._order
        place = order.lane(request), order.flow(request), order.rank(request, since)
        return Waiting(request, policy, since, next(self._numbers), *place)

    def _remove(self, key: str) -> None:
        if key in self._in_flight:
            self._left[key] = None
        elif (waiting := self._queue.get(key) or self._gangs.get(key)) is not None:
            self._take_out(waiting)
        else:
            self._release(key)

    def _release(self, key: str) -> None:
        self._gangs.ends(key)
        self._queue.limits_changed(self._fair_share.let_go(key))
        self.models.ended(key, self._now)
        self._wake(self._cache.release(key))

    def _hold(self, placement: Placement, request: Request | None) -> None:
        key = placement.key
        self._in_flight.land(key)
        self._left.pop(key, None)
        if (waiting := self._queue.get(key) or self._gangs.get(key)) is not None:
            self._take_out(waiting)
        if request is not None:
            if request.gang is not None:
                self._observe_member(key, placement.node, request.gang, self._now)
            flow, cost = self._order.flow(request), self._order.cost(request)
            self._queue.limits_changed(self._fair_share.take(key, flow, cost))
            if request.shape.model:
                self.models.began(request, placement, self._now, is_observed=True)
        self._wake(self._cache.hold(placement))

    def _placed(self, key: str, now: float, actions: list[Action]) -> None:
        if self._in_flight.land(key) is None:
            return
        self._cache.confirm(key)
        self._gangs.confirm(key, has_ended=key in self._left)
        if key in self._left:
            self._release(key)
            self._add_again(key, now, actions)

    def _place_failed(self, key: str, now: float, actions: list[Action]) -> None:
        waiting = self._in_flight.land(key)
        if waiting is None:
            return
        freed = self._cache.forget(key)
        self._queue.limits_changed(self._fair_share.let_go(key))
        self.models.ended(key, now, has_run=False)
        self._gangs.ends(key)
        if key in self._left:
            self._add_again(key, now, actions)
        elif waiting.request.gang is not None:
            self._gangs.rest(waiting, waiting.request.gang, now, self._rng)
        else:
            self._queue.add_resting(waiting, now)
        self._wake(freed)

    def _add_again(self, key: str, now: float, actions: list[Action]) -> None:
        added_again = self._left.pop(key)
        if added_again is not None:
            self._add(added_again, now, actions)

    def _wake(self, node: str | None, *, observed: bool = False) -> None:
        """Something became free on a node: offer it to the requests that fit there now."""
        if node is not None:
            self._gangs.something_freed()
            self._queue.wake_for(self.cluster, node, observed=observed)
            if self.models:
                for copy in self.models.idle(node):
                    self._open_model(copy.model)

    def _open_model(self, model: str) -> None:
        """Judge the requests for this model again: a copy of it may be free, or waiting for one too long."""
        self._queue.open(self.models.line.groups(model))

    def _decide_active(self, now: float, actions: list[Action]) -> None:
        queue, cluster = self._queue, self._cache.cluster
        while self._first:
            if (waiting := queue.pop_this(self._first.pop())) is not None:
                actions.append(self._decide(waiting, now))
        judged_most = self._rows_at_tick + self._max_rows
        for _ in range(self._max_decisions):
            if self._in_flight.is_full or cluster.rows_judged >= judged_most:
                return
            if (waiting := queue.pop(cluster)) is None:
                return
            if waiting.request.gang is not None:
                self._decide_gang(waiting, now, actions)
                continue
            model = waiting.request.shape.model
            refusal = queue.join_parked(waiting, cluster)
            if refusal is None and not (model and self.models.is_pinned(model)):
                refusal = queue.park_by_numbers(waiting, cluster, explained=self._explains)
            if refusal is not None:
                actions.append(Refuse(waiting.request, refusal))
            elif model:
                actions.append(self._decide_model(waiting, now))
            else:
                actions.append(self._decide(waiting, now))

    def _decide(self, waiting: Waiting, now: float) -> Action:
        request, queue = waiting.request, self._queue
        try:
            answer, cost = self._judge(waiting)
        except Exception as error:  # policy and order may be plugins: the others go on, this one is retried
            queue.rest(waiting, now)
            queue.settle(waiting)
            return Refuse(request, not_judged(len(self.cluster), error))
        if isinstance(answer, Refusal):
            queue.park(waiting, answer, self.cluster)
            return Refuse(request, answer)
        queue.leave(waiting)
        return self._placed_by(waiting, answer, cost, waiting)

    def _placed_by(self, chosen: Waiting, answer: Placement, cost: float, asked: Waiting) -> Place:
        """Count the placement of a request. `asked` is what the queue returned."""
        place = self._in_flight_with(chosen, answer, cost)
        self._queue.settle(asked)
        return place

    def _in_flight_with(self, waiting: Waiting, answer: Placement, cost: float) -> Place:
        key = waiting.request.key
        self._in_flight[key] = waiting
        self._fair_share.charge(waiting.flow, cost)
        self._queue.limits_changed(self._fair_share.take(key, waiting.flow, cost))
        return Place(waiting.request, answer)

    def _decide_gang(self, speaker: Waiting, now: float, actions: list[Action]) -> None:
        gang = self._gangs.spoken_for(speaker)
        self._queue.leave(speaker)
        if gang.is_short:  # members ended that it had counted on
            self._gangs.dequeue(gang, now)
            return
        answer = judge(gang, self.cluster, self._order.cost, self._rng, self._gangs.steps(now))
        if isinstance(answer, Refusal):
            self._gangs.park(gang, answer, now)
            if answer.error:
                self._gangs.recheck(gang)
        else:
            for waiting, placement, _ in answer:
                self._cache.assume(placement)
                self._gangs.starts(waiting.request.key, placement.node)
            actions.append(PlaceGang(gang.terms.name, tuple(self._in_flight_with(*each) for each in answer)))
            self._gangs.placed(gang, now)
        if gang.refusal is not None:
            actions.extend(Refuse(each, gang.refusal) for each in self._gangs.untold(gang))

    def _decide_model(self, waiting: Waiting, now: float) -> Action:
        """Decide a request that names a model; another one, whose model is loaded, may go before it."""
        queue = self._queue
        try:
            choice = self._choice.choose(waiting, now)
            if isinstance(choice, Go):
                cost = self._order.cost(choice.waiting.request)
                self._cache.assume(choice.placement)
        except Exception as error:
            queue.rest(waiting, now)
            queue.settle(waiting)
            return Refuse(waiting.request, not_judged(len(self.cluster), error))
        if isinstance(choice, Stay):
            queue.park(waiting, choice.refusal, self.cluster)
            self._rechecks.note(waiting.request.shape.model, choice.until, choice.count)
            return Refuse(waiting.request, choice.refusal)
        chosen = choice.waiting
        if chosen is waiting:
            queue.leave(waiting)
        else:
            queue.remove(chosen)
            queue.put_back(waiting)
        self.models.evicted(choice.placement.node, choice.evicted)
        self.models.began(chosen.request, choice.placement, now)
        return self._placed_by(chosen, choice.placement, cost, waiting)

    def _judge(self, waiting: Waiting) -> tuple[Placement | Refusal, float]:
        """Decide, set the placement aside, and return the answer and its cost. Everything that may raise
        comes before the state changes."""
        self._last = waiting
        cost = self._order.cost(waiting.request)
        asked, rows = (waiting.request, self.cluster, waiting.policy, self._rng), self._queue.fitting
        answer = decide(*asked) if rows is None else decide_among(rows, *asked)
        if isinstance(answer, Placement):
            if self.models:
                answer = self._choice.spare(waiting, answer) or answer
            self._cache.assume(answer)
        return answer, cost
