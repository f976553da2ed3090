"""Turn events into actions: keep the cluster's state and the queue, decide what can be decided.

                              ┌──────── its turn ◀──── parked ◀──┐ refused
    RequestAdded ──▶ active ──┴─▶ decide ────────────────────────┤
                       ▲                                          ▼ Place
                       └── rested ◀── resting ◀── PlaceFailed ── in flight ── Placed ──▶ held ──▶ removed

A request is in exactly one of these states until it is held or removed. The scheduler, the operator and the
task dispatcher each run one: they differ in where events come from and who performs the actions.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import chain, islice
from math import inf

from gpu_orchestrator.core.answer import Refusal, not_judged
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import why_not
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.queue_usage import QueueUsage
from gpu_orchestrator.core.queues import Full, Queues
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import current
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.decisions import Bounds, Decisions
from gpu_orchestrator.engine.events import Action, Event, Place, Refuse, RequestAdded
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.gang_members import PartlyStarted, WaitingGang, waiting_gang
from gpu_orchestrator.engine.gangs import Gangs
from gpu_orchestrator.engine.in_flight import InFlight
from gpu_orchestrator.engine.intake import Intake
from gpu_orchestrator.engine.kept import Kept
from gpu_orchestrator.engine.model_choice import ModelChoice
from gpu_orchestrator.engine.models import ModelRules, Models
from gpu_orchestrator.engine.order import Order, PriorityThenTime
from gpu_orchestrator.engine.parts import Parts
from gpu_orchestrator.engine.passing import Passing
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota, refused
from gpu_orchestrator.engine.quota_holds import QuotaHolds
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from gpu_orchestrator.engine.reservations import Reservations
from gpu_orchestrator.engine.scheduling_queue import SchedulingQueue, State


class Engine:
    """`policy_of` may raise for a request that it cannot serve: `handle` then raises and changes nothing, and
    `handle_all` refuses that request and takes in the other events. A policy that raises while it decides
    refuses its request, which rests and is tried again. `max_in_flight` bounds decisions that are not yet
    carried out, so that a later request can still go first. `max_decisions` bounds one call, and `max_rows`
    the rows of nodes judged for new shapes from one `Tick` to the next: `deadline` then returns "now".
    `explains` is False if nobody reads why a request is refused: a new shape for which no node has enough by
    the numbers is then parked without a closer look. `why` always explains. `reservations` says how many
    places are kept for the first requests that do not fit: none, unless it is given."""

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
        reservations: ReservationRules = OFF,
    ) -> None:
        self._cache, self._gangs = Cache(), Gangs(backoff or Backoff())
        self.models = Models(models, self._cache)
        self._quota = Quota(self._cache)
        self._fair_share = FairShare(self._quota.queues)
        self._queue = SchedulingQueue(self._fair_share, backoff or Backoff(), self.models.line, self._quota)
        self._in_flight = InFlight(max_in_flight)
        self._parts = Parts(
            policy_of,
            rng,
            order or PriorityThenTime(),
            self._cache,
            self._fair_share,
            self._quota,
            self.models,
            self._queue,
            self._gangs,
            self._in_flight,
        )
        self._rechecks = self._parts.rechecks
        self._choice = ModelChoice(self.models, self._fair_share, self.cluster, rng)
        self._reservations = Reservations(self._parts, reservations)
        self._quota_holds = QuotaHolds(self._parts, self._reservations)
        self._passing = Passing(self._parts, self._reservations)
        self._reserves, self._places = self._reservations.are_on, self._reservations.kept
        self._intake = Intake(self._parts, self._reservations, self._passing, explains=explains)
        bounds = Bounds(max_decisions, max_rows, explains)
        self._decisions = Decisions(self._parts, self._choice, bounds, self._passing)

    @property
    def cluster(self) -> Cluster:
        """The cluster as the engine believes it to be; copy it to try something out. Places that are kept
        count as taken."""
        return self._cache.cluster

    def unkept(self, key: str) -> Cluster:
        """Return a copy of the cluster without the places that are kept for others of later turns than this
        request or its gang, and without its own."""
        twin = self.cluster.copy()
        if self._passing and (waiting := self._queue.get(key) or self._gangs.last(key)) is not None:
            for room in (room for each in self._passing.before(waiting) for room in each.rooms):
                if room.node in twin:
                    twin.release(room)
        return twin

    def kept(self) -> list[Kept]:
        """Return the places that are kept now, the first in turn first; only to be read."""
        return self._reservations.in_turn()

    def quota_holds(self) -> int:
        """Return for how many requests and gangs quota is kept."""
        return len(self._quota_holds.kept)

    @property
    def has_waiting(self) -> bool:
        """True if any request is active, parked or resting."""
        return len(self._queue) > 0 or self._gangs.has_waiting

    @property
    def queues(self) -> Queues:
        """The queues with quota, as they are used now; only to be read."""
        return self._quota.queues

    def gpu_models(self) -> tuple[str, ...]:
        """Return the models of GPUs that the nodes have."""
        return self._quota.models()

    def queue_usages(self) -> dict[str, QueueUsage]:
        """Return what each queue with quota uses, borrows and lends."""
        waiting = chain(self._queue.requests(), self._gangs.requests())
        return self._quota.usages(Counter(each.queue for each in waiting))

    def prepare(self) -> None:
        """Update the standing of the last decided shape, so that the next decision like it is faster. Call
        it when there is nothing else to do."""
        last = self._decisions.last
        if last is None:
            return
        try:
            current(last.request.shape, self.cluster, last.policy)
        except Exception:  # a policy that breaks refuses its requests when they are decided
            self._decisions.last = None

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event and return the actions to perform. Call with `Tick()` when `deadline` has come.
        Raises what `policy_of` raises, before anything has changed."""
        actions: list[Action] = []
        self._pass_time(now)
        self._intake.take_in(event, now, actions)
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
                self._intake.take_in(event, now, actions)
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
        self._parts.now = now
        self._fair_share.pass_time(now)

    def _act(self, now: float, actions: list[Action]) -> list[Action]:
        self._queue.activate_rested(now)
        for model in self._rechecks.due(now):
            self._parts.open_model(model)
        self._queue.wake_for_others(self.cluster)
        for gang in self._gangs.helped(self.cluster, self._quota, now):
            self._queue.push(self._gangs.enqueue(gang))
        if self._places and not self._in_flight.is_full:
            self._passing.offer()
        self._decisions.decide_active(now, actions)
        if self._reserves:
            self._quota_holds.tend(now, actions)
            self._reservations.tend(now, actions)
        actions.extend(Refuse(*each) for each in self._gangs.short_too_long(now, len(self.cluster)))
        return actions

    def deadline(self, now: float) -> float | None:
        """Return when to call again if nothing happens before; None if only an event can change anything."""
        if self._queue.is_behind or (not self._in_flight.is_full and self._queue.has_next()):
            return now
        times = (
            self._queue.rested_at(),
            self._rechecks.next_at(),
            self._gangs.next_at(now),
            self._reservations.next_at(now) if self._reserves else None,
            self._quota_holds.next_at(now) if self._reserves else None,
            self._passing.next_at(now) if self._places and not self._in_flight.is_full else None,
        )
        known = [at for at in times if at is not None]
        return max(min(known), now) if known else None

    def late(self, by_s: float) -> list[tuple[str, Kept]]:
        """Return who runs longer than declared by at least this much, each with the place that is kept where
        it runs."""
        return self._reservations.late(by_s)

    def takes_long(self, key: str) -> None:
        """Do not count this request against `max_in_flight`."""
        self._in_flight.takes_long(key)

    def why(self, key: str) -> Refusal | None:
        """Return why a waiting request does not fit now; None if it fits or does not wait."""
        if (waiting := self._gangs.get(key)) is not None:
            return self._with_note(waiting, self._gangs.refusal(key, len(self.cluster)))
        if (waiting := self._queue.get(key)) is None:
            return None
        try:
            found = self._quota_refusal(waiting) or why_not(waiting.asked.shape, self.cluster, waiting.policy)
            return self._with_note(waiting, found)
        except Exception as error:  # `decisions` refuses the request with the same words
            return not_judged(len(self.cluster), error)

    def is_kept_out(self, key: str) -> bool:
        """Return True if the queue of a waiting request has room for it, and that is kept for one that waits
        longer."""
        request = self.waiting(key)
        return request is not None and self._quota_holds.keeps_out(request)

    def note(self, key: str) -> str:
        """Return what places that are kept have to do with a waiting request; empty if nothing."""
        waiting = self._queue.get(key) or self._gangs.get(key)
        return self._note(waiting) if waiting else ""

    def _note(self, waiting: Waiting) -> str:
        of_place = self._passing.note(waiting) if self._passing else ""
        return of_place or self._quota_holds.note(waiting)

    def _quota_refusal(self, waiting: Waiting) -> Refusal | None:
        verdict = self._quota.judge(waiting.request) if waiting.request.queue else None
        return refused(verdict, len(self.cluster)) if isinstance(verdict, Full) else None

    def _with_note(self, waiting: Waiting, refusal: Refusal | None) -> Refusal | None:
        note = self._note(waiting) if refusal else ""
        return replace(refusal, kept=note) if refusal and note else refusal

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

    def gang_of(self, key: str) -> WaitingGang | None:
        """Return the gang of a member that waits, if enough of them do and there was no room for them, as it
        would be decided now."""
        gang = self._gangs.of(key)
        if gang is None or key not in gang.waiting or gang.is_short:
            return None
        if gang.has_many_kinds or gang.needs_judging:
            return None
        return waiting_gang(gang, self.cluster)

    def partly_started(self) -> list[PartlyStarted]:
        """Return the gangs that hold places and began without enough members."""
        return self._gangs.partly_started(self._in_flight)

    def to_mark(self) -> list[str]:
        """Return the members of gangs that are to carry the mark that their gang has begun, for the next
        scheduler. Tell `marked` of each that does."""
        return self._gangs.to_mark()

    def marked(self, key: str) -> None:
        self._gangs.marked(key)

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
                self.models.expect(model, placement, self._parts.now)
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
            "held": len(self._cache) - len(self._cache.assumed) - self._reservations.rooms,
        }
