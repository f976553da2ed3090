"""The leader's dispatcher: receives news, lets the engine decide, and assigns tasks to workers in batches.

The leader creates a new dispatcher for every term from a snapshot of the store, and discards it when its
state may be wrong. The store has the last word on every assignment, so a dispatcher with a wrong state does
no harm.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from random import Random
from time import monotonic

import structlog

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.store.errors import Full, StoreError
from gpu_orchestrator.adapters.store.records import (
    Accepted,
    AssignResult,
    Ended,
    Gone,
    Linked,
    Moved,
    NewsItem,
    NewTask,
    NotAssigned,
    Queued,
    Resync,
    Submitted,
    UnfinishedTask,
    Unit,
    Worker,
)
from gpu_orchestrator.adapters.store.tasks import row_of
from gpu_orchestrator.apps.manager.dispatch.assignment import Assigner, PlannedAssignment
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.gang_assignment import GangAssignment
from gpu_orchestrator.apps.manager.dispatch.intake import Intake
from gpu_orchestrator.apps.manager.dispatch.models import DispatchedModels
from gpu_orchestrator.apps.manager.dispatch.task_table import QueueDepth, TaskTable
from gpu_orchestrator.apps.manager.dispatch.timer import Timer
from gpu_orchestrator.apps.manager.fleet import kept_places
from gpu_orchestrator.apps.manager.fleet.kept_places import KeptPlace
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.order import FairBands

log = structlog.get_logger()

BATCH = 500
PART = 100
"""A long load asks after this many tasks whether others need the process."""
DECISIONS = 200
"""At most this many decisions in one pass; then other work of the process gets a turn."""
ROWS = 10_000
"""At most this many workers judged for new shapes in one pass, for the same reason."""


@dataclass(slots=True)
class Dispatcher:
    deps: DispatcherDeps
    tasks: TaskTable = field(default_factory=TaskTable)
    invalidate: Callable[[], None] = lambda: None
    linked: Callable[[], None] = lambda: None
    """Called when there are links between tasks to be seen to."""
    _places: list[events.Place] = field(default_factory=list)
    _assigning: asyncio.Task[None] | None = None
    _is_deferred: bool = False
    _closed: bool = False
    engine: Engine = field(init=False)
    _assigner: Assigner = field(init=False)
    _gangs: GangAssignment = field(init=False)
    _models: DispatchedModels = field(init=False)
    _intake: Intake = field(init=False)
    _timer: Timer = field(init=False)

    def __post_init__(self) -> None:
        deps = self.deps
        self._assigner = Assigner(
            self.tasks,
            deps.memory,
            deps.metrics,
            deps.deliver,
            deps.now,
            deps.deliver_filled,
            deps.models,
            lambda: self.workers,
        )
        self.engine = Engine(
            self.deps.registry.policy_of,
            Random(),  # noqa: S311 - settles ties
            order=FairBands(weight_of=self.deps.quotas.weight),
            backoff=Backoff(first_s=0.1, most_s=2.0),
            max_decisions=DECISIONS,
            max_rows=ROWS,
            explains=False,
            models=deps.rules,
            reservations=deps.reservations,
        )
        self._gangs = GangAssignment(deps, self.engine, self._assigner)
        self._intake = Intake(deps, self.engine, self.tasks)
        self._models = DispatchedModels(self.engine, deps.models, self.tasks, self._intake.enqueue)
        self._timer = Timer(self._on_timer)

    def close(self) -> None:
        self._closed = True
        self._timer.cancel()
        if self._assigning and self._assigning is not asyncio.current_task():
            self._assigning.cancel()

    @property
    def workers(self) -> dict[str, WorkerState]:
        return self._intake.workers

    def why(self, name: str) -> Refusal | None:
        return self.engine.why(name)

    def kept_places(self) -> list[KeptPlace]:
        """Return the places that are kept for tasks and gangs that smaller ones would pass."""
        return [kept_places.of(each) for each in self.engine.kept()]

    def depth(self) -> QueueDepth:
        return self.tasks.depth

    # --- what it receives --------------------------------------------------------------------------------

    async def load(
        self, pages: AsyncIterable[Sequence[UnfinishedTask]], workers: dict[str, WorkerState]
    ) -> None:
        """Load all unfinished tasks, before any news; those with workers come first. Nothing is placed before
        the last page: the task whose turn is first may be on it."""
        self._intake.workers = workers
        breath, has_nodes = Breath(monotonic), False
        async for page in pages:
            for number, each in enumerate(page):
                if each.state != "queued":
                    self._intake.active(each)
                    continue
                if not has_nodes:
                    self._observe_all()
                    has_nodes = True
                self._intake.queued(each)
                if number % PART == 0:
                    self._take_in()
                    await breath()
        if not has_nodes:
            self._observe_all()
        self._take_in()

    def start(self) -> None:
        """Begin to place what was loaded."""
        self._handle(events.Tick())
        self._run_pass()

    def _observe_all(self) -> None:
        self._take_in()  # free memory depends on what is reserved, so active tasks come first
        for name in self.workers:
            self._intake.observe(name)

    def _take_in(self) -> None:
        self.engine.take_in(self._intake.take(), self.deps.now())

    def handle_news(self, news: Iterable[NewsItem]) -> None:
        if self._closed:
            return
        for item in news:
            match item:
                case Queued():
                    self._intake.queued(item)
                case Ended(id=name, attempt=attempt, gpu_ms=gpu_ms):
                    self._intake.ended(name, attempt, gpu_ms)
                case Gone(id=name):
                    self._intake.forget(name)
                case Worker(name=name, row=flat):
                    if (row := row_of(flat)) is not None:
                        self._decide()  # free memory depends on what is reserved, so decide first
                    self._intake.worker(name, row)
                case Linked():
                    self.linked()
                case Resync():
                    self.invalidate()
        self._schedule_pass()

    def models_changed(self) -> None:
        """Take in what is known of models now."""
        self._models.changed()
        self._run_pass()

    def preload(self) -> None:
        """Have models loaded that waiting tasks name, where there is room."""
        for worker, message in self._models.preloads(self.workers, self.deps.now()):
            self.deps.tell(worker, message)

    def recount(self) -> None:
        """Update the limits of all owners: their keys may have changed, or a new day may have started."""
        self._intake.recount()
        self._run_pass()

    async def submit(
        self, new: Sequence[NewTask], units: Sequence[Unit] = (), unit_of: Sequence[int] = ()
    ) -> Sequence[Submitted]:
        """Queue new tasks, and assign those that fit now in the same write."""
        plans = self._plans(self._place_new(new))
        assignments = self._assigner.assignments(plans)
        try:
            submitted, answers = await self.deps.store.tasks.submit_and_assign(
                new, assignments, units, unit_of
            )
        except asyncio.CancelledError:
            if not self._closed:
                self.invalidate()  # the store's answer is lost with the caller
            raise
        except Full:
            for each in new:  # the store took none of them
                self._intake.forget(each.id)
            raise
        self._forget_rejected(new, submitted)
        if len(answers) != len(plans):
            self.invalidate()
        elif not self._closed:
            for event in self._assigner.deliver_accepted(plans, answers):
                self._handle(event)
        if (
            self._places
            or self._gangs
            or self.engine.has_waiting
            or not _only_confirmations(self._intake.pending)
        ):
            self._run_pass()
        return submitted

    def _place_new(self, new: Sequence[NewTask]) -> list[events.Place]:
        """Return placements for the new tasks that fit now."""
        self._intake.submitted(new)
        self._decide()
        new_ids = {each.id for each in new}
        places = [place for place in self._places if place.request.key in new_ids]
        self._places = [place for place in self._places if place.request.key not in new_ids]
        return places

    def _forget_rejected(self, new: Sequence[NewTask], submitted: Sequence[Submitted]) -> None:
        """Forget tasks that the store did not accept, or that repeat an earlier task."""
        for each, known in zip(new, submitted, strict=True):
            is_new = isinstance(known, Accepted) and known.id == each.id
            if not is_new and not self._closed:
                self._intake.forget(each.id)

    def _handle(self, event: events.Event) -> None:
        """Queue an event; `_run_pass` hands all of them to the engine at once."""
        self._intake.pending.append(event)

    def _decide(self) -> None:
        for action in self.engine.handle_all(self._intake.take(), self.deps.now()):
            if isinstance(action, events.Place):
                self.tasks.set_waits(action.request.key, False, self.deps.now())
                self._places.append(action)
            elif isinstance(action, events.PlaceGang):
                for place in self._gangs.add(action):
                    self.tasks.set_waits(place.request.key, False, self.deps.now())

    # --- what it does ------------------------------------------------------------------------------------

    def _run_pass(self) -> None:
        """Let the engine decide, start assigning its placements, and set the timer for the next deadline."""
        if self._closed:
            return
        self._models.ask_again()
        if self._intake.pending:
            self._decide()
        if (self._places or self._gangs) and self._assigning is None:
            self._assigning = asyncio.get_running_loop().create_task(self._assign_then_run_pass())
        self._timer.set(self._next_delay_s())

    def _schedule_pass(self) -> None:
        """Run a pass now if requests wait; otherwise after pending responses are delivered."""
        if self.engine.has_waiting or self._intake.has_requests:
            self._run_pass()
        elif not self._is_deferred:
            self._is_deferred = True
            loop = asyncio.get_running_loop()
            # Callers that wait for this news wake in the next turn of the loop; this runs in the one after.
            loop.call_soon(loop.call_soon, self._run_deferred_pass)

    def _run_deferred_pass(self) -> None:
        self._is_deferred = False
        try:
            self._run_pass()
            if not self._closed:
                self.engine.prepare()
        except Exception:
            log.exception("the dispatcher failed; loading the tasks again")
            self.invalidate()

    def _next_delay_s(self) -> float | None:
        now = self.deps.now()
        if self._models.has_more:
            return 0.0
        moments = (self._intake.delayed.next_s, self.engine.deadline(now))
        due = [each for each in moments if each is not None]
        return max(min(due) - now, 0.0) if due else None

    def _on_timer(self) -> None:
        self._intake.begin_delayed()
        self._handle(events.Tick())
        self._run_pass()

    # --- what it assigns ---------------------------------------------------------------------------------

    async def _assign_then_run_pass(self) -> None:
        try:
            await self._assign_all()
        except StoreError as error:
            log.warning("the dispatcher lost track of the store", error=str(error))
            self.invalidate()
        except Exception:
            log.exception("the dispatcher failed; loading the tasks again")
            self.invalidate()
        finally:
            self._assigning = None
        self._run_pass()

    async def _assign_all(self) -> None:
        while (self._places or self._gangs) and not self._closed:
            if self._gangs and not await self._assign_gangs():
                return self.invalidate()
            if not self._places:
                continue
            batch, self._places = self._places[:BATCH], self._places[BATCH:]
            if not (plans := self._plans(batch)):
                break
            answers = await self.deps.store.tasks.assign(self._assigner.assignments(plans))
            if answers is None:
                return self.invalidate()
            plans, answers = self._put_back(plans, answers)
            for event in self._assigner.deliver_accepted(plans, answers):
                self._handle(event)
            self._decide()
        return None

    async def _assign_gangs(self) -> bool:
        """Return False if this process does not lead."""
        told = await self._gangs.assign(self.workers)
        for event in told or ():
            self._handle(event)
        self._decide()
        return told is not None

    def _put_back(
        self, plans: list[PlannedAssignment], answers: list[AssignResult]
    ) -> tuple[list[PlannedAssignment], list[AssignResult]]:
        """Put placements back that the store had no room for in its answer; return the others."""
        is_later = [isinstance(each, NotAssigned) and each.moved is Moved.LATER for each in answers]
        if not any(is_later):
            return plans, answers
        self._places = [*(plan.place for plan in compress(plans, is_later)), *self._places]
        is_now = [not later for later in is_later]
        return list(compress(plans, is_now)), list(compress(answers, is_now))

    def _plans(self, places: Sequence[events.Place]) -> list[PlannedAssignment]:
        may_start = places
        if (most := self.deps.most_active()) is not None:  # the others are tried again after a moment
            may_start = places[: max(most - self.engine.counts()["held"], 0)]
        plans = self._assigner.plans(may_start, self.workers)
        if len(plans) < len(places):
            planned = {each.place.request.key for each in plans}
            for each in places:
                if each.request.key not in planned:
                    self._intake.no_place(each.request.key)
        return plans


def _only_confirmations(pending: Sequence[events.Event]) -> bool:
    """Return True if only `Placed` confirmations are pending; they can go with the next batch."""
    return all(isinstance(each, events.Placed) for each in pending)
