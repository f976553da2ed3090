"""Decide the requests whose turn it is: place them, park them with the reason, or let them rest. Used by the
engine."""

from dataclasses import dataclass, replace
from math import inf

from gpu_orchestrator.core.answer import Placement, Refusal, not_judged
from gpu_orchestrator.core.decide import decide, decide_among
from gpu_orchestrator.core.gang import SEARCH_STEPS
from gpu_orchestrator.core.queues import Full
from gpu_orchestrator.engine.events import Action, Place, PlaceGang, Refuse
from gpu_orchestrator.engine.gang_decision import Chosen, judge, over_limit
from gpu_orchestrator.engine.gang_members import Members, to_decide
from gpu_orchestrator.engine.kept import lifted
from gpu_orchestrator.engine.model_choice import Go, ModelChoice, Stay
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.passing import Passing
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import only_on


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one call: how many decisions, and how many rows of nodes judged for new shapes from one `Tick` to
    the next. `explains` is False if nobody reads why a request is refused."""

    decisions: int = 1_000_000
    rows: float = inf
    explains: bool = True


class Decisions:
    def __init__(self, parts: Parts, choice: ModelChoice, bounds: Bounds, kept: Passing) -> None:
        self._parts, self._choice, self._bounds, self._kept = parts, choice, bounds, kept
        self._reserves, self._places = kept.are_on, kept.places
        self._order, self._cache, self._quota, self._fair_share = (
            parts.order,
            parts.cache,
            parts.quota,
            parts.fair_share,
        )
        self._fair_share = parts.fair_share
        self._models, self._rechecks, self._rng = parts.models, parts.rechecks, parts.rng
        self._queue, self._gangs, self._in_flight = parts.queue, parts.gangs, parts.in_flight
        self.last: Waiting | None = None
        """The request that was decided last."""

    def decide_active(self, now: float, actions: list[Action]) -> None:
        """Decide the requests whose turn it is."""
        queue, cluster = self._queue, self._cache.cluster
        self._decide_first(now, actions)
        self._parts.promised.clear()
        judged_most = self._parts.rows_at_tick + self._bounds.rows
        for _ in range(self._bounds.decisions):
            if self._in_flight.is_full or cluster.rows_judged >= judged_most:
                return
            if (waiting := queue.pop(cluster)) is None:
                return
            if waiting.request.gang is not None:
                self._decide_gang(waiting, now, actions)
                continue
            if (refusal := self._no_room(waiting)) is not None:
                actions.append(Refuse(waiting.request, refusal))
                continue
            model = waiting.request.shape.model if _names_model(waiting) else ""
            if not (self._places and self._kept.passable(waiting)):
                refusal = queue.join_parked(waiting, cluster)
                if refusal is None and not (model and self._models.is_pinned(model)):
                    refusal = queue.park_by_numbers(waiting, cluster, explained=self._bounds.explains)
            if refusal is not None:
                actions.append(self._refused(waiting, refusal))
            elif model:
                actions.append(self._decide_model(waiting, now))
            else:
                actions.append(self._decide(waiting, now))

    def _decide_first(self, now: float, actions: list[Action]) -> None:
        while self._parts.first:
            if (waiting := self._queue.pop_this(self._parts.first.pop())) is None:
                continue
            if waiting.request.gang is not None:
                self._decide_gang(waiting, now, actions, has_room=True)
            else:
                no_room = self._no_room(waiting)
                actions.append(
                    Refuse(waiting.request, no_room) if no_room else self._decide(waiting, now, is_first=True)
                )

    def _no_room(self, waiting: Waiting) -> Refusal | None:
        """Park a request whose queue has no room for it, and return why. One that may start on some models
        only is decided for these."""
        request = waiting.request
        if not request.queue:
            return None
        verdict, narrowed = self._quota.judge(request), None
        if isinstance(verdict, tuple):
            narrowed = replace(request, shape=replace(request.shape, models=verdict))
        if narrowed != waiting.narrowed:
            self._queue.settle(waiting)
            waiting.narrowed = narrowed
        if isinstance(verdict, Full):
            return self._queue.hold_back(waiting, verdict, self._cache.cluster)
        return None

    def _decide(self, waiting: Waiting, now: float, *, is_first: bool = False) -> Action:
        request, queue = waiting.request, self._queue
        try:
            answer, cost = self._judge(waiting, is_first=is_first)
        except Exception as error:  # policy and order may be plugins: the others go on, this one is retried
            queue.rest(waiting, now)
            queue.settle(waiting)
            return Refuse(request, not_judged(len(self._cache.cluster), error))
        if isinstance(answer, Refusal):
            queue.park(waiting, answer, self._cache.cluster)
            return self._refused(waiting, answer)
        queue.leave(waiting)
        return self._placed_by(waiting, answer, cost, waiting)

    def _refused(self, waiting: Waiting, refusal: Refusal) -> Refuse:
        if waiting.narrowed is not None:
            said = only_on(waiting.request.queue, waiting.narrowed.shape.models)
            refusal = replace(refusal, quota=said)
        if self._places and self._bounds.explains and (note := self._kept.note(waiting)):
            refusal = replace(refusal, kept=note)
        return Refuse(waiting.request, refusal)

    def _placed_by(self, chosen: Waiting, answer: Placement, cost: float, asked: Waiting) -> Place:
        """Count the placement of a request. `asked` is what the queue returned."""
        place = self._in_flight_with(chosen, answer, cost)
        self._queue.settle(asked)
        return place

    def _in_flight_with(self, waiting: Waiting, answer: Placement, cost: float) -> Place:
        key = waiting.request.key
        self._in_flight[key] = waiting
        in_between = False
        if self._reserves:
            self._kept.begins(waiting, answer)
            in_between = bool(self._places) and self._kept.enters(waiting, answer)
        self._fair_share.charge(waiting.flow, cost)
        self._queue.limits_changed(self._fair_share.take(key, waiting.flow, cost))
        if waiting.request.queue:
            self._quota.take(key, waiting.request.queue, answer)
        return Place(waiting.request, answer, in_between)

    def _decide_gang(
        self, speaker: Waiting, now: float, actions: list[Action], *, has_room: bool = False
    ) -> None:
        """Decide a gang. `has_room`: room was made for its first members. With the others the answer might be
        no, or one of them would have the place of a more important one, for which others were evicted."""
        gang = self._gangs.spoken_for(speaker)
        self._queue.leave(speaker)
        if gang.is_short:  # members ended that it had counted on
            self._gangs.dequeue(gang, now)
            return
        answer: list[Chosen] | Refusal | None = over_limit(gang, self._fair_share, len(self._cache.cluster))
        if answer is None and has_room:
            made = self._judge_gang(gang, speaker, [SEARCH_STEPS], only_least=True)
            answer = None if isinstance(made, Refusal) else made
        if answer is None:
            answer = self._judge_gang(gang, speaker, self._gangs.steps(now))
        if isinstance(answer, Refusal):
            self._gangs.park(gang, answer, now)
            if answer.error:
                self._gangs.recheck(gang)
        else:
            for waiting, placement, _ in answer:
                self._gangs.starts(waiting.request.key, placement.node)
            actions.append(PlaceGang(gang.terms.name, tuple(self._in_flight_with(*each) for each in answer)))
            self._gangs.placed(gang, now)
            if has_room and gang.waiting:
                self._gangs.recheck(gang)  # there may be room for the others, too
        if gang.refusal is not None:
            note = self._kept.note(speaker) if self._places else ""
            said = replace(gang.refusal, kept=note) if note else gang.refusal
            actions.extend(Refuse(each, said) for each in self._gangs.untold(gang))

    def _judge_gang(
        self, gang: Members, speaker: Waiting, steps: list[int], *, only_least: bool = False
    ) -> list[Chosen] | Refusal:
        """Decide a gang, and set its places aside."""
        cluster = self._cache.cluster
        together = to_decide(gang, cluster)
        if only_least:
            together = replace(together, members=together.members[: together.least])
        asked = gang, together, cluster, self._quota, self._order.cost, self._rng, steps
        answer = judge(*asked)
        if isinstance(answer, Refusal) and self._places:
            run_s = [each.request.run_s for each in gang.waiting.values()]
            ends_s = max(run_s) if all(run_s) else 0.0
            with lifted(self._kept.passable(speaker, ends_s, is_first=only_least), cluster) as places:
                again = judge(*asked) if places else answer
                if not isinstance(again, Refusal):
                    self._assume(again)
                    return again
        if not isinstance(answer, Refusal):
            self._assume(answer)
        return answer

    def _assume(self, chosen: list[Chosen]) -> None:
        for each in chosen:
            self._cache.assume(each.placement)

    def _decide_model(self, waiting: Waiting, now: float) -> Action:
        """Decide a request that names a model; another one, whose model is loaded, may go before it."""
        queue = self._queue
        try:
            choice, cost = self._choose(waiting, now)
        except Exception as error:
            queue.rest(waiting, now)
            queue.settle(waiting)
            return Refuse(waiting.request, not_judged(len(self._cache.cluster), error))
        if isinstance(choice, Stay):
            queue.park(waiting, choice.refusal, self._cache.cluster)
            self._rechecks.note(waiting.request.shape.model, choice.until, choice.count)
            return Refuse(waiting.request, choice.refusal)
        chosen = choice.waiting
        if chosen is waiting:
            queue.leave(waiting)
        else:
            queue.remove(chosen)
            queue.put_back(waiting)
        self._models.evicted(choice.placement.node, choice.evicted)
        self._models.began(chosen.request, choice.placement, now)
        return self._placed_by(chosen, choice.placement, cost, waiting)

    def _choose(self, waiting: Waiting, now: float) -> tuple[Go | Stay, float]:
        """Choose, set the placement aside, and return the choice and its cost. The places that do not keep
        this request out count as free, unless it lets one go first that they keep out."""
        places = self._kept.passable(waiting) if self._places else []
        if places:
            with lifted(places, self._cache.cluster):
                choice = self._choice.choose(waiting, now)
                if isinstance(choice, Stay) or self._kept.lets_in(choice.waiting, choice.placement, places):
                    return choice, self._assumed(choice)
        choice = self._choice.choose(waiting, now)
        return choice, self._assumed(choice)

    def _assumed(self, choice: Go | Stay) -> float:
        if isinstance(choice, Stay):
            return 0.0
        cost = self._order.cost(choice.waiting.request)
        self._cache.assume(choice.placement)
        return cost

    def _judge(self, waiting: Waiting, *, is_first: bool) -> tuple[Placement | Refusal, float]:
        """Decide, set the placement aside, and return the answer and its cost. Everything that may raise
        comes before the state changes."""
        self.last = waiting
        cost = self._order.cost(waiting.request)
        asked, rows = (waiting.asked, self._cache.cluster, waiting.policy, self._rng), self._queue.fitting
        answer = decide(*asked) if rows is None else decide_among(rows, *asked)
        if isinstance(answer, Placement):
            if self._models:
                answer = self._choice.spare(waiting, answer) or answer
            self._cache.assume(answer)
        elif self._places and (places := self._kept.passable(waiting, is_first=is_first)):
            with lifted(places, self._cache.cluster):
                answer = decide(*asked)
                if isinstance(answer, Placement):
                    self._cache.assume(answer)
        return answer, cost


def _names_model(waiting: Waiting) -> bool:
    return bool(waiting.request.shape.model) and not waiting.request.queue
