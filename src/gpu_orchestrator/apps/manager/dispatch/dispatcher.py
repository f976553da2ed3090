"""The leader's dispatcher: hears news, lets the engine decide, and gives tasks to workers in batches.

It is made anew for every term of leadership from one snapshot of the store, and thrown away in doubt. The
store has the last word on every assignment, so a dispatcher that is wrong about the world does no harm.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

import structlog

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import (
    Ended,
    Gone,
    NewTask,
    Queued,
    Remembered,
    Resync,
    Snapshot,
    Submitted,
    Taken,
    Told,
    Unit,
    Worker,
)
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.tasks import Row, row_of
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.assignment import Assigner, Deliver, PlannedAssignment
from gpu_orchestrator.apps.manager.dispatch.task_table import (
    QueueDepth,
    TaskTable,
    TrackedTask,
    depth_of,
    died_on,
)
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState, node_of, request_of
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.core.answer import Refusal
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.policies.registry import Registry

log = structlog.get_logger()

BATCH = 500
DECISIONS = 200
"""So many in one go; then others get a turn."""


@dataclass(frozen=True, slots=True)
class DispatcherDeps:
    """What a dispatcher works with. `now` is the store's clock in seconds, as known here."""

    store: Store
    deliver: Deliver
    registry: Registry
    memory: MemoryPolicy
    metrics: Metrics
    now: Callable[[], float]
    quotas: Quotas


@dataclass(slots=True)
class Dispatcher:
    deps: DispatcherDeps
    workers: dict[str, WorkerState] = field(default_factory=dict)
    tasks: TaskTable = field(default_factory=dict)
    in_doubt: Callable[[], None] = lambda: None
    _allowed: dict[str, int | None] = field(default_factory=dict)
    _heard: list[events.Event] = field(default_factory=list)
    _later: list[tuple[float, str, int]] = field(default_factory=list)
    _places: list[events.Place] = field(default_factory=list)
    _assigning: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _has_leisure: bool = False
    _closed: bool = False
    engine: Engine = field(init=False)
    _assigner: Assigner = field(init=False)

    def __post_init__(self) -> None:
        deps = self.deps
        self._assigner = Assigner(self.tasks, deps.memory, deps.metrics, deps.deliver, deps.now)
        self.engine = Engine(
            self.deps.registry.policy_of,
            Random(),  # noqa: S311 - settles ties
            order=FairBands(weight_of=self.deps.quotas.weight),
            backoff=Backoff(first_s=0.1, most_s=2.0),
            max_decisions=DECISIONS,
        )

    def close(self) -> None:
        self._closed = True
        if self._timer:
            self._timer.cancel()
        if self._assigning and self._assigning is not asyncio.current_task():
            self._assigning.cancel()

    # --- what it hears -----------------------------------------------------------------------------------

    def load(self, snapshot: Snapshot, workers: dict[str, WorkerState]) -> None:
        """Everything that is, before anything that happens."""
        self.workers = workers
        for each in snapshot.tasks:
            if each.state != "queued":
                self._remember(each)
        self._decide()
        for name in workers:
            self._observe(name)
        for each in snapshot.tasks:
            if each.state == "queued":
                told = Queued(each.id, each.spec, each.attempt, each.after_ms, each.created_ms, each.deaths)
                self._queued(told)
        self._arrange()

    def hear(self, news: Iterable[Told]) -> None:
        if self._closed:
            return
        for item in news:
            match item:
                case Queued():
                    self._queued(item)
                case Ended(id=name, attempt=attempt, gpu_ms=gpu_ms):
                    if (known := self.tasks.get(name)) and known.attempt == attempt:
                        self._leave(name)
                        self._used(known.spec.tenant, gpu_ms / 1000)
                case Gone(id=name):
                    self._leave(name)
                case Worker(name=name, row=flat):
                    self._changed(name, row_of(flat))
                case Resync():
                    self.in_doubt()
        self._arrange_in_time()

    def recount(self) -> None:
        """What owners may hold at once may have changed: their keys did, or a day is over."""
        for owner in list(self._allowed):
            self._meet(owner)
        self._arrange()

    async def submit(
        self, new: Sequence[NewTask], units: Sequence[Unit] = (), unit_of: Sequence[int] = ()
    ) -> Sequence[Submitted]:
        """Take new tasks, and give those that can go at once in the same write."""
        plans = self._plans(self._choose(new))
        asked = self._assigner.asked(plans)
        try:
            taken, given = await self.deps.store.tasks.submit_and_assign(new, asked, units, unit_of)
        except asyncio.CancelledError:
            if not self._closed:
                self.in_doubt()  # nobody is left to hear what the store made of it
            raise
        self._submitted(new, taken)
        if len(given) != len(plans):
            self.in_doubt()
        elif not self._closed:
            self._heard.extend(self._assigner.answered(plans, given))
        if self._places or self.engine.has_waiting or not _is_idle_talk(self._heard):
            self._arrange()
        return taken

    def _choose(self, new: Sequence[NewTask]) -> list[events.Place]:
        """Where those go that can go at once."""
        now = self.deps.now()
        for each in new:
            spec = task.decode(each.spec)
            self._meet(spec.tenant)
            self.tasks[each.id] = TrackedTask(spec, 0, now)
            self._ask(each.id)
        self._decide()
        ours = {each.id for each in new}
        places = [place for place in self._places if place.request.key in ours]
        self._places = [place for place in self._places if place.request.key not in ours]
        return places

    def _submitted(self, new: Sequence[NewTask], taken: Sequence[Submitted]) -> None:
        """Forget those that were other tasks already, and those that were not taken."""
        for each, known in zip(new, taken, strict=True):
            is_new = isinstance(known, Taken) and known.id == each.id
            if not is_new and not self._closed:
                self._leave(each.id)

    def why(self, name: str) -> Refusal | None:
        return self.engine.why(name)

    def depth(self) -> QueueDepth:
        return depth_of(self.tasks, self.engine.state_of)

    def _queued(self, told: Queued) -> None:
        known = self.tasks.get(told.id)
        if known is not None and known.attempt > told.attempt:
            return
        spec = task.decode(told.spec)
        self._meet(spec.tenant)
        self.tasks[told.id] = TrackedTask(spec, told.attempt, told.created_ms / 1000, died_on(told.deaths))
        after_s = told.after_ms / 1000
        if after_s > self.deps.now():
            heappush(self._later, (after_s, told.id, told.attempt))
        else:
            self._ask(told.id)

    def _meet(self, owner: str) -> None:
        """See to it that the engine knows how many tasks of it may run."""
        most = self.deps.quotas.most(owner)
        if self._allowed.get(owner) != most:
            self._handle(events.LimitChanged(owner, most))
        self._allowed[owner] = most

    def _used(self, owner: str, gpu_s: float) -> None:
        """Heard of before the leader looks again, so that nothing begins that the day has no room for."""
        if gpu_s:
            used_s = self.deps.quotas.used_s
            used_s[owner] = used_s.get(owner, 0.0) + gpu_s
            self._meet(owner)

    def _ask(self, name: str) -> None:
        known = self.tasks[name]
        request = request_of(name, known.spec, avoid=self._avoided(known))
        self._handle(events.RequestAdded(request, since=known.created_s))

    def _avoided(self, known: TrackedTask) -> tuple[str, ...]:
        """Workers on which it died, as long as there is another one online."""
        if known.died_on and any(
            each.online for name, each in self.workers.items() if name not in known.died_on
        ):
            return known.died_on
        return ()

    def _leave(self, name: str) -> None:
        self.tasks.pop(name, None)
        self._handle(events.RequestRemoved(name))

    def _remember(self, each: Remembered) -> None:
        """An attempt that was under way when this term began."""
        spec = task.decode(each.spec)
        self._meet(spec.tenant)
        self.tasks[each.id] = TrackedTask(spec, each.attempt, each.created_ms / 1000, died_on(each.deaths))
        placement = rows.placement_of(each.id, each.worker, rows.read_grant(each.place))
        self._handle(events.PlacementObserved(placement, request_of(each.id, spec)))

    def _changed(self, name: str, row: Row | None) -> None:
        if row is not None:
            self.workers[name] = rows.worker_state_of(row)
            self._decide()  # what is promised must be known before what is free
            self._observe(name)
        elif self.workers.pop(name, None) is not None:
            self._handle(events.NodeRemoved(name))

    def _observe(self, name: str) -> None:
        worker, cluster = self.workers[name], self.engine.cluster
        held = cluster.held_on(name).values() if name in cluster else ()
        reserved = rows.reserved_on(worker, self.deps.memory, held)
        self._handle(events.NodeUpdated(node_of(worker, self.deps.memory, reserved)))

    def _handle(self, event: events.Event) -> None:
        """Gathered, and decided upon in `_arrange`, once for all."""
        self._heard.append(event)

    def _decide(self) -> None:
        heard, self._heard = self._heard, []
        for action in self.engine.handle_all(heard, self.deps.now()):
            if isinstance(action, events.Place):
                self._places.append(action)

    # --- what it does ------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """See to it that everything that was decided is done, and that time is noticed."""
        if self._closed:
            return
        if self._heard:
            self._decide()
        if self._places and self._assigning is None:
            self._assigning = asyncio.get_running_loop().create_task(self._assign_and_arrange())
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if (delay_s := self._next_delay_s()) is not None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _arrange_in_time(self) -> None:
        """At once if somebody waits for a decision; else those come first who wait for an answer."""
        if self.engine.has_waiting or any(isinstance(each, events.RequestAdded) for each in self._heard):
            self._arrange()
        elif not self._has_leisure:
            self._has_leisure = True
            loop = asyncio.get_running_loop()
            # Who waits for what was just heard is woken in the next turn: this is for the one after.
            loop.call_soon(loop.call_soon, self._arrange_at_leisure)

    def _arrange_at_leisure(self) -> None:
        self._has_leisure = False
        try:
            self._arrange()
            if not self._closed:
                self.engine.prepare()
        except Exception:
            log.exception("the dispatcher failed and begins anew")
            self.in_doubt()

    async def _assign_and_arrange(self) -> None:
        try:
            await self._assign_all()
        except StoreError as error:
            log.warning("the dispatcher lost track of the store", error=str(error))
            self.in_doubt()
        except Exception:
            log.exception("the dispatcher failed and begins anew")
            self.in_doubt()
        finally:
            self._assigning = None
        self._arrange()

    def _next_delay_s(self) -> float | None:
        now = self.deps.now()
        due = [self._later[0][0]] if self._later else []
        if (deadline := self.engine.deadline(now)) is not None:
            due.append(deadline)
        return max(min(due) - now, 0.0) if due else None

    def _on_time(self) -> None:
        self._timer = None
        now = self.deps.now()
        while self._later and self._later[0][0] <= now:
            _, name, attempt = heappop(self._later)
            if (known := self.tasks.get(name)) and known.attempt == attempt:
                self._ask(name)
        self._handle(events.Tick())
        self._arrange()

    async def _assign_all(self) -> None:
        while self._places and not self._closed:
            batch, self._places = self._places[:BATCH], self._places[BATCH:]
            if not (plans := self._plans(batch)):
                break
            given = await self.deps.store.tasks.assign(self._assigner.asked(plans))
            if given is None:
                return self.in_doubt()
            self._heard.extend(self._assigner.answered(plans, given))
            self._decide()
        return None

    def _plans(self, places: Sequence[events.Place]) -> list[PlannedAssignment]:
        plans = self._assigner.plans(places, self.workers)
        if len(plans) < len(places):
            planned = {each.place.request.key for each in plans}
            gone = [each.request.key for each in places if each.request.key not in planned]
            self._heard.extend(map(events.PlaceFailed, gone))
        return plans


def _is_idle_talk(heard: Sequence[events.Event]) -> bool:
    """That something is where it was put can be heard with whatever comes next."""
    return all(isinstance(each, events.Placed) for each in heard)
