"""Take in events: requests come and go, nodes change, placements are observed, decisions were carried out or
failed. Nothing is decided here. Used by the engine."""

from dataclasses import replace
from itertools import count

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.events import Action, Event, Refuse, RequestAdded
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.passing import Passing
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.reservation_search import ROOM_MADE
from gpu_orchestrator.engine.reservations import Reservations


class Intake:
    def __init__(
        self, parts: Parts, reservations: Reservations, passing: Passing, *, explains: bool = True
    ) -> None:
        self._parts, self._reservations, self._passing = parts, reservations, passing
        self._explains = explains
        self._reserves, self._places = reservations.are_on, reservations.kept
        self._order, self._cache, self._quota, self._fair_share = (
            parts.order,
            parts.cache,
            parts.quota,
            parts.fair_share,
        )
        self._fair_share = parts.fair_share
        self._models, self._rechecks, self._rng = parts.models, parts.rechecks, parts.rng
        self._queue, self._gangs, self._in_flight = parts.queue, parts.gangs, parts.in_flight
        self._left: dict[str, RequestAdded | None] = {}
        """Requests that were removed while they were being placed, and what came again under their key."""
        self._numbers = count()

    def take_in(self, event: Event, now: float, actions: list[Action]) -> None:
        """Take in one event. Raises what `policy_of` raises, before anything has changed."""
        match event:  # the most frequent first
            case events.RequestAdded():
                self._add(event, now, actions)
            case events.Placed(key):
                self._placed(key, now, actions)
            case events.RequestRemoved(key):
                self._remove(key)
            case events.RoomReady(rooms, key):
                for room in rooms:
                    self._remove(room)
                self._decide_first(key)
            case events.NodeUpdated(node):
                self._set_node(node)
            case events.NodeRemoved(name):
                self._cache.remove_node(name)
                self._models.forget(name)
                self._reservations.node_changed(name)
            case events.PlaceFailed(key):
                self._place_failed(key, now, actions)
            case events.Tick():
                self._parts.rows_at_tick = self._cache.cluster.rows_judged
            case _:
                self._observe(event, now)

    def _decide_first(self, key: str) -> None:
        self._parts.promised.add(key)
        if (gang := self._gangs.of(key)) is not None and not gang.is_short:
            if gang.stage == "parked":
                self._queue.push(self._gangs.enqueue(gang))
            self._parts.promised.update(gang.waiting)
            key = gang.speaker.request.key if gang.speaker else key
        self._parts.first.append(key)

    def _observe(self, event: Event, now: float) -> None:
        match event:
            case events.PlacementObserved(placement, request, queue, ends_at):
                self._hold(placement, request, request.queue if request else queue)
                self._reservations.ends_at(placement.key, ends_at)
                if self._places and placement.key.startswith(ROOM_MADE):
                    self._reservations.room_made(placement)
            case events.CopiesObserved(node, copies, most):
                self._models.observe(node, copies, most, now)
                self._wake(node if node in self._cache.cluster else None)
            case events.MemberObserved(key, node, gang, is_marked):
                self._observe_member(key, node, gang, is_marked=is_marked)
            case events.LimitChanged(flow, most):
                self._queue.limits_changed(self._fair_share.allow(flow, most))
                self._gangs.something_freed()
            case events.QueueUpdated(terms):
                self._queues_changed(self._quota.update(terms))
            case events.QueueRemoved(name):
                self._queues_changed(self._quota.remove(name))

    def _queues_changed(self, changed: bool) -> None:
        if changed:
            self._fair_share.rearrange()
            self._gangs.something_freed()

    def _set_node(self, node: Node) -> None:
        cluster = self._cache.cluster
        before = cluster.node(node.name) if node.name in cluster else None
        if self._cache.set_node(node):
            self._quota.node_changed(before, node)
            self._reservations.node_changed(node.name)
            self._wake(node.name, observed=True)

    def _observe_member(self, key: str, node: str, gang: GangTerms, *, is_marked: bool = False) -> None:
        now = self._parts.now
        if (speaker := self._gangs.observed(key, node, gang, now, is_marked=is_marked)) is not None:
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
            self._parts.take_out(known)
        if request.gang is not None:
            if (speaker := self._gangs.enter(waiting, request.gang, now)) is not None:
                self._queue.push(speaker)
            elif (refusal := self._gangs.joins_refused(key)) is not None:
                note = self._passing.note(waiting) if self._places else ""
                actions.append(Refuse(request, replace(refusal, kept=note) if note else refusal))
        elif self._places and self._passing.passable(waiting):
            self._queue.push(waiting)
        elif (refusal := self._queue.add(waiting, self._cache.cluster)) is not None:
            note = self._passing.note(waiting) if self._places and self._explains else ""
            actions.append(Refuse(request, replace(refusal, kept=note) if note else refusal))
            model = request.shape.model
            if model and self._rechecks.are_enough(model, self._models.line.count(model)):
                self._parts.open_model(model)

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
        policy, order = self._parts.policy_of(request), self._order
        place = order.lane(request), order.flow(request), order.rank(request, since)
        return Waiting(request, policy, since, next(self._numbers), *place)

    def _remove(self, key: str) -> None:
        if key in self._in_flight:
            self._left[key] = None
        elif (waiting := self._queue.get(key) or self._gangs.get(key)) is not None:
            self._parts.take_out(waiting)
        else:
            self._release(key)

    def _release(self, key: str) -> None:
        self._gangs.ends(key)
        self._queue.limits_changed(self._fair_share.let_go(key))
        if self._quota.let_go(key):
            self._gangs.something_freed()
        if self._reserves:
            self._reservations.ended(key)
        self._models.ended(key, self._parts.now)
        self._wake(self._cache.release(key))

    def _hold(self, placement: Placement, request: Request | None, queue: str) -> None:
        key = placement.key
        self._in_flight.land(key)
        self._left.pop(key, None)
        if (waiting := self._queue.get(key) or self._gangs.get(key)) is not None:
            self._parts.take_out(waiting)
        if request is not None:
            if request.gang is not None:
                self._observe_member(key, placement.node, request.gang)
            flow, cost = self._order.flow(request), self._order.cost(request)
            self._queue.limits_changed(self._fair_share.take(key, flow, cost))
            if request.shape.model:
                self._models.began(request, placement, self._parts.now, is_observed=True)
        self._quota.take(key, queue, placement)
        self._wake(self._cache.hold(placement))

    def _placed(self, key: str, now: float, actions: list[Action]) -> None:
        if (waiting := self._in_flight.land(key)) is None:
            return
        self._cache.confirm(key)
        if waiting.request.run_s:
            self._reservations.begins(key, waiting.request.run_s)
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
        self._quota.let_go(key)
        if self._reserves:
            self._reservations.ended(key)
        self._models.ended(key, now, has_run=False)
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
            if self._reserves:
                self._reservations.something_freed(node)
            self._gangs.something_freed()
            self._queue.wake_for(self._cache.cluster, node, observed=observed)
            if self._models:
                for copy in self._models.idle(node):
                    self._parts.open_model(copy.model)
