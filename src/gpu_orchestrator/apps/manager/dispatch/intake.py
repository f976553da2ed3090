"""Turns what the store says of tasks, workers and limits into events for the engine.

The dispatcher calls it and hands the events on; `pending` keeps them in order until then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpu_orchestrator.adapters.store.records import NewTask, Queued, UnfinishedTask
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.task_table import TaskTable, TrackedTask
from gpu_orchestrator.apps.manager.dispatch.timer import Delayed
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.models import copies_of
from gpu_orchestrator.apps.manager.fleet.nodes import (
    WorkerState,
    gang_terms,
    node_of,
    request_of,
    spec_and_shape,
)
from gpu_orchestrator.apps.manager.fleet.past_attempts import deaths_of, hints
from gpu_orchestrator.apps.manager.tasks.service_times import Kind
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine


@dataclass(slots=True)
class Intake:
    deps: DispatcherDeps
    engine: Engine
    tasks: TaskTable
    workers: dict[str, WorkerState] = field(default_factory=dict)
    pending: list[events.Event] = field(default_factory=list)
    delayed: Delayed = field(default_factory=Delayed)
    _limits: dict[str, int | None] = field(default_factory=dict)

    def take(self) -> list[events.Event]:
        """Return the pending events, and begin with none."""
        taken, self.pending = self.pending, []
        return taken

    @property
    def has_requests(self) -> bool:
        return any(isinstance(each, events.RequestAdded) for each in self.pending)

    # --- tasks -------------------------------------------------------------------------------------------

    def submitted(self, new: Sequence[NewTask]) -> None:
        """Take in new tasks that the store has not seen yet."""
        now = self.deps.now()
        for each in new:
            if each.not_before_ms or each.needs or each.gang:
                continue  # the store tells when it may begin, and of a gang once it has all of it
            spec, shape = spec_and_shape(each.spec, self.deps.models.memory_mib)
            self._update_limit(spec.tenant)
            self.tasks[each.id] = TrackedTask(spec, 0, now)
            asked = Request(each.id, shape, spec.priority, spec.tenant, run_s=spec.timeout_s)
            self.pending.append(events.RequestAdded(asked, now))

    def queued(self, item: Queued | UnfinishedTask) -> None:
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
            self.delayed.add(item.after_ms / 1000, item.id, item.attempt)
        elif item.deaths:
            self.enqueue(item.id)
        else:
            terms = gang_terms(item.id, spec)
            asked = Request(item.id, shape, spec.priority, spec.tenant, gang=terms, run_s=spec.timeout_s)
            self.pending.append(events.RequestAdded(asked, since_s))

    def active(self, each: UnfinishedTask) -> None:
        """Take in an attempt that was running when this term began. A member of a gang holds its devices as
        any other task: the store says when the gang is to begin again, and that is all of it. It began before
        now, so it ends before its timeout, counted from now."""
        spec = task.decode(each.spec)
        self._update_limit(spec.tenant)
        self.tasks[each.id] = TrackedTask(
            spec, each.attempt, each.created_ms / 1000, deaths_of(each.deaths), waits=False
        )
        placement = rows.placement_of(each.id, each.worker, rows.read_grant(each.place))
        asked = request_of(each.id, spec, sizes=self.deps.models.memory_mib)
        ends_at = self.deps.now() + spec.timeout_s
        self.pending.append(events.PlacementObserved(placement, asked, ends_at=ends_at))

    def enqueue(self, name: str) -> None:
        """Ask for a place for a waiting task, as it is now."""
        known = self.tasks[name]
        learnt = hints(known.spec, known.deaths, self.workers, self.deps.memory)
        asked = request_of(name, known.spec, learnt, self.deps.models.memory_mib)
        if known.spec.gang is not None:
            asked = replace(asked, gang=gang_terms(name, known.spec))
        self.pending.append(events.RequestAdded(asked, since=known.created_s))

    def begin_delayed(self) -> None:
        """Ask for places for the tasks whose pause is over."""
        for name, attempt in self.delayed.due(self.deps.now()):
            if (known := self.tasks.get(name)) and known.attempt == attempt:
                self.enqueue(name)

    def ended(self, name: str, attempt: int, gpu_ms: int) -> None:
        known = self.tasks.get(name)
        if known is None or known.attempt != attempt:
            return
        if known.began_s:
            kind = Kind(known.spec.task_type, known.spec.model)
            self.deps.service_times.ended(kind, self.deps.now() - known.began_s)
        self.forget(name)
        self._add_usage(known.spec.tenant, gpu_ms / 1000)

    def forget(self, name: str) -> None:
        self.tasks.discard(name)
        self.pending.append(events.RequestRemoved(name))

    def no_place(self, name: str) -> None:
        """Note that a placement came to nothing: its worker is gone, or nothing more may start."""
        self.tasks.set_waits(name, True)
        self.pending.append(events.PlaceFailed(name))

    # --- limits ------------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Update the limits of all owners: their keys may have changed, or a new day may have started."""
        for owner in list(self._limits):
            self._update_limit(owner)

    def _update_limit(self, owner: str) -> None:
        """Tell the engine how many tasks of this owner may run, if that changed."""
        most = self.deps.quotas.most(owner)
        if owner in self._limits and self._limits[owner] == most:
            return
        if self._limits.get(owner) != most:
            self.pending.append(events.LimitChanged(owner, most))
        self._limits[owner] = most

    def _add_usage(self, owner: str, gpu_s: float) -> None:
        """Add GPU time to the owner's usage at once, before the leader reads it from the store again. Else
        tasks could start that exceed the day's budget."""
        if gpu_s:
            used_s = self.deps.quotas.used_s
            used_s[owner] = used_s.get(owner, 0.0) + gpu_s
            self._update_limit(owner)

    # --- workers -----------------------------------------------------------------------------------------

    def worker(self, name: str, row: Row | None) -> None:
        """Take in a worker as it is now; None if it is gone."""
        if row is not None:
            self.workers[name] = rows.worker_state_of(row)
            self.observe(name)
        elif self.workers.pop(name, None) is not None:
            self.pending.append(events.NodeRemoved(name))

    def observe(self, name: str) -> None:
        worker, cluster = self.workers[name], self.engine.cluster
        if worker.left:  # it would be in every refusal from now on
            self.pending.append(events.NodeRemoved(name))
            return
        held = cluster.held_on(name).values() if name in cluster else ()
        reserved = rows.reserved_on(worker, self.deps.memory, held)
        self.pending.append(events.NodeUpdated(node_of(worker, self.deps.memory, reserved)))
        if worker.hello.model_types:
            copies = copies_of(worker.copies, worker.reported_s) if worker.online else ()
            self.pending.append(events.CopiesObserved(name, copies, worker.hello.most_models))
            self.deps.reported(worker)
