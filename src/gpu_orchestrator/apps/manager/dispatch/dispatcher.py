"""The leader's dispatcher: receives news, lets the engine decide, and assigns tasks to workers in batches.

The leader creates a new dispatcher for every term from a snapshot of the store, and discards it when its
state may be wrong. The store has the last word on every assignment, so a dispatcher with a wrong state does
no harm.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
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
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row, row_of
from gpu_orchestrator.api import session, task
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.assignment import Assigner, Deliver, PlannedAssignment
from gpu_orchestrator.apps.manager.dispatch.models import DispatchedModels
from gpu_orchestrator.apps.manager.dispatch.task_table import (
    QueueDepth,
    TaskTable,
    TrackedTask,
)
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.models import ModelBook, copies_of
from gpu_orchestrator.apps.manager.fleet.nodes import (
    MemoryPolicy,
    WorkerState,
    node_of,
    request_of,
    spec_and_shape,
)
from gpu_orchestrator.apps.manager.fleet.past_attempts import deaths_of, hints
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.service_times import Kind, ServiceTimes
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.models import ModelRules
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.policies.registry import Registry

log = structlog.get_logger()

BATCH = 500
PART = 100
"""A long load asks after this many tasks whether others need the process."""
DECISIONS = 200
"""At most this many decisions in one pass; then other work of the process gets a turn."""
ROWS = 10_000
"""At most this many workers judged for new shapes in one pass, for the same reason."""


@dataclass(frozen=True, slots=True)
class DispatcherDeps:
    """What a dispatcher needs. `now` returns the store's clock in seconds, as estimated here. `ended` is
    called for each task that ends without an outcome of a worker, such as one that expired."""

    store: Store
    deliver: Deliver
    registry: Registry
    memory: MemoryPolicy
    metrics: Metrics
    now: Callable[[], float]
    quotas: Quotas
    ended: Callable[[str], None] = lambda _: None
    most_active: Callable[[], int | None] = lambda: None
    """How many attempts may be active now, because their results need room; None for any number."""
    deliver_filled: Deliver = lambda _worker, _assign: None
    """As `deliver`, for a task whose parameters take results of others."""
    models: ModelBook = field(default_factory=ModelBook)
    rules: ModelRules = ModelRules()  # noqa: RUF009 - frozen
    reported: Callable[[WorkerState], None] = lambda _: None
    """Called with a worker whose models were reported."""
    preloads: bool = True
    """Whether models are loaded before the turn of the tasks that name them."""
    tell: Callable[[WorkerState, session.Message], None] = lambda _worker, _message: None
    service_times: ServiceTimes = field(default_factory=ServiceTimes)


@dataclass(slots=True)
class Dispatcher:
    deps: DispatcherDeps
    workers: dict[str, WorkerState] = field(default_factory=dict)
    tasks: TaskTable = field(default_factory=TaskTable)
    invalidate: Callable[[], None] = lambda: None
    linked: Callable[[], None] = lambda: None
    """Called when there are links between tasks to be seen to."""
    _limits: dict[str, int | None] = field(default_factory=dict)
    _events: list[events.Event] = field(default_factory=list)
    _delayed: list[tuple[float, str, int]] = field(default_factory=list)
    _places: list[events.Place] = field(default_factory=list)
    _assigning: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _due: float = 0.0
    _is_deferred: bool = False
    _closed: bool = False
    engine: Engine = field(init=False)
    _assigner: Assigner = field(init=False)
    _models: DispatchedModels = field(init=False)

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
        )
        self._models = DispatchedModels(self.engine, deps.models, self.tasks, self._enqueue)

    def close(self) -> None:
        self._closed = True
        if self._timer:
            self._timer.cancel()
        if self._assigning and self._assigning is not asyncio.current_task():
            self._assigning.cancel()

    # --- what it receives --------------------------------------------------------------------------------

    async def load(
        self, pages: AsyncIterable[Sequence[UnfinishedTask]], workers: dict[str, WorkerState]
    ) -> None:
        """Load all unfinished tasks, before any news; those with workers come first. Nothing is placed before
        the last page: the task whose turn is first may be on it."""
        self.workers = workers
        breath, has_nodes = Breath(monotonic), False
        async for page in pages:
            for number, each in enumerate(page):
                if each.state != "queued":
                    self._load_active(each)
                    continue
                if not has_nodes:
                    self._observe_all()
                    has_nodes = True
                self._queued(each)
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
            self._observe(name)

    def _take_in(self) -> None:
        pending, self._events = self._events, []
        self.engine.take_in(pending, self.deps.now())

    def handle_news(self, news: Iterable[NewsItem]) -> None:
        if self._closed:
            return
        for item in news:
            match item:
                case Queued():
                    self._queued(item)
                case Ended(id=name, attempt=attempt, gpu_ms=gpu_ms):
                    if (known := self.tasks.get(name)) and known.attempt == attempt:
                        if known.began_s:
                            kind = Kind(known.spec.task_type, known.spec.model)
                            self.deps.service_times.ended(kind, self.deps.now() - known.began_s)
                        self._forget(name)
                        self._add_usage(known.spec.tenant, gpu_ms / 1000)
                case Gone(id=name):
                    self._forget(name)
                case Worker(name=name, row=flat):
                    self._worker_changed(name, row_of(flat))
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
        for owner in list(self._limits):
            self._update_limit(owner)
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
                self._forget(each.id)
            raise
        self._forget_rejected(new, submitted)
        if len(answers) != len(plans):
            self.invalidate()
        elif not self._closed:
            self._events.extend(self._assigner.deliver_accepted(plans, answers))
        if self._places or self.engine.has_waiting or not _only_confirmations(self._events):
            self._run_pass()
        return submitted

    def _place_new(self, new: Sequence[NewTask]) -> list[events.Place]:
        """Return placements for the new tasks that fit now."""
        now = self.deps.now()
        for each in new:
            if each.not_before_ms or each.needs:
                continue  # the store tells when it may begin
            spec, shape = spec_and_shape(each.spec, self.deps.models.memory_mib)
            self._update_limit(spec.tenant)
            self.tasks[each.id] = TrackedTask(spec, 0, now)
            asked = Request(each.id, shape, spec.priority, spec.tenant)
            self._events.append(events.RequestAdded(asked, now))
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
                self._forget(each.id)

    def why(self, name: str) -> Refusal | None:
        return self.engine.why(name)

    def depth(self) -> QueueDepth:
        return self.tasks.depth

    def _queued(self, item: Queued | UnfinishedTask) -> None:
        known = self.tasks.get(item.id)
        if known is not None and known.attempt > item.attempt:
            return
        spec, shape = spec_and_shape(item.spec, self.deps.models.memory_mib)
        self._update_limit(spec.tenant)
        # Until its first attempt, `after` is when a scheduled task came into the queue: it must not pass the
        # others for the time that it was not there.
        since_ms = item.created_ms if item.attempt else max(item.created_ms, item.after_ms)
        since_s = since_ms / 1000
        self.tasks[item.id] = TrackedTask(spec, item.attempt, since_s, deaths_of(item.deaths))
        if item.after_ms and item.after_ms / 1000 > self.deps.now():
            heappush(self._delayed, (item.after_ms / 1000, item.id, item.attempt))
        elif item.deaths:
            self._enqueue(item.id)
        else:
            asked = Request(item.id, shape, spec.priority, spec.tenant)
            self._events.append(events.RequestAdded(asked, since_s))

    def _update_limit(self, owner: str) -> None:
        """Tell the engine how many tasks of this owner may run, if that changed."""
        most = self.deps.quotas.most(owner)
        if owner in self._limits and self._limits[owner] == most:
            return
        if self._limits.get(owner) != most:
            self._handle(events.LimitChanged(owner, most))
        self._limits[owner] = most

    def _add_usage(self, owner: str, gpu_s: float) -> None:
        """Add GPU time to the owner's usage at once, before the leader reads it from the store again. Else
        tasks could start that exceed the day's budget."""
        if gpu_s:
            used_s = self.deps.quotas.used_s
            used_s[owner] = used_s.get(owner, 0.0) + gpu_s
            self._update_limit(owner)

    def _enqueue(self, name: str) -> None:
        known = self.tasks[name]
        learnt = hints(known.spec, known.deaths, self.workers, self.deps.memory)
        asked = request_of(name, known.spec, learnt, self.deps.models.memory_mib)
        self._handle(events.RequestAdded(asked, since=known.created_s))

    def _forget(self, name: str) -> None:
        self.tasks.discard(name)
        self._handle(events.RequestRemoved(name))

    def _load_active(self, each: UnfinishedTask) -> None:
        """Load an attempt that was running when this term began."""
        spec = task.decode(each.spec)
        self._update_limit(spec.tenant)
        self.tasks[each.id] = TrackedTask(
            spec, each.attempt, each.created_ms / 1000, deaths_of(each.deaths), waits=False
        )
        placement = rows.placement_of(each.id, each.worker, rows.read_grant(each.place))
        asked = request_of(each.id, spec, sizes=self.deps.models.memory_mib)
        self._handle(events.PlacementObserved(placement, asked))

    def _worker_changed(self, name: str, row: Row | None) -> None:
        if row is not None:
            self.workers[name] = rows.worker_state_of(row)
            self._decide()  # free memory depends on what is reserved, so decide first
            self._observe(name)
        elif self.workers.pop(name, None) is not None:
            self._handle(events.NodeRemoved(name))

    def _observe(self, name: str) -> None:
        worker, cluster = self.workers[name], self.engine.cluster
        if worker.left:  # it would be in every refusal from now on
            self._handle(events.NodeRemoved(name))
            return
        held = cluster.held_on(name).values() if name in cluster else ()
        reserved = rows.reserved_on(worker, self.deps.memory, held)
        self._handle(events.NodeUpdated(node_of(worker, self.deps.memory, reserved)))
        if worker.hello.model_types:
            copies = copies_of(worker.copies, worker.reported_s) if worker.online else ()
            self._handle(events.CopiesObserved(name, copies, worker.hello.most_models))
            self.deps.reported(worker)

    def _handle(self, event: events.Event) -> None:
        """Queue an event; `_run_pass` hands all of them to the engine at once."""
        self._events.append(event)

    def _decide(self) -> None:
        pending, self._events = self._events, []
        for action in self.engine.handle_all(pending, self.deps.now()):
            if isinstance(action, events.Place):
                self.tasks.set_waits(action.request.key, False, self.deps.now())
                self._places.append(action)

    # --- what it does ------------------------------------------------------------------------------------

    def _run_pass(self) -> None:
        """Let the engine decide, start assigning its placements, and set the timer for the next deadline."""
        if self._closed:
            return
        self._models.ask_again()
        if self._events:
            self._decide()
        if self._places and self._assigning is None:
            self._assigning = asyncio.get_running_loop().create_task(self._assign_then_run_pass())
        self._set_timer(self._next_delay_s())

    def _set_timer(self, delay_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        due = None if delay_s is None else loop.time() + delay_s
        if self._timer and due is not None and self._due <= due:
            return  # an earlier one stays: steady news would put it off forever
        if self._timer:
            self._timer.cancel()
        self._timer = None if delay_s is None else loop.call_later(delay_s, self._on_timer)
        self._due = due or 0.0

    def _schedule_pass(self) -> None:
        """Run a pass now if requests wait; otherwise after pending responses are delivered."""
        if self.engine.has_waiting or any(isinstance(each, events.RequestAdded) for each in self._events):
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

    def _next_delay_s(self) -> float | None:
        now = self.deps.now()
        if self._models.has_more:
            return 0.0
        due = [self._delayed[0][0]] if self._delayed else []
        if (deadline := self.engine.deadline(now)) is not None:
            due.append(deadline)
        return max(min(due) - now, 0.0) if due else None

    def _on_timer(self) -> None:
        self._timer = None
        now = self.deps.now()
        while self._delayed and self._delayed[0][0] <= now:
            _, name, attempt = heappop(self._delayed)
            if (known := self.tasks.get(name)) and known.attempt == attempt:
                self._enqueue(name)
        self._handle(events.Tick())
        self._run_pass()

    async def _assign_all(self) -> None:
        while self._places and not self._closed:
            batch, self._places = self._places[:BATCH], self._places[BATCH:]
            if not (plans := self._plans(batch)):
                break
            answers = await self.deps.store.tasks.assign(self._assigner.assignments(plans))
            if answers is None:
                return self.invalidate()
            plans, answers = self._put_back(plans, answers)
            self._events.extend(self._assigner.deliver_accepted(plans, answers))
            self._decide()
        return None

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
            gone = [each.request.key for each in places if each.request.key not in planned]
            for key in gone:
                self.tasks.set_waits(key, True)
                self._handle(events.PlaceFailed(key))
        return plans


def _only_confirmations(pending: Sequence[events.Event]) -> bool:
    """Return True if only `Placed` confirmations are pending; they can go with the next batch."""
    return all(isinstance(each, events.Placed) for each in pending)
