"""Turns placements into assignments for the store, and sends those that the store accepted to the workers.

Called by the dispatcher, which writes to the store in between.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import DEBUG
from typing import NamedTuple

import msgspec
import structlog

from gpu_orchestrator.adapters.store.records import Assignment, AssignResult, Moved, NotAssigned
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task_gangs import Gang, Peer, port_of, split
from gpu_orchestrator.apps.manager.dispatch.task_table import TaskTable
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.models import ModelBook
from gpu_orchestrator.apps.manager.fleet.nodes import DeviceGrant, MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.fleet.past_attempts import has_elsewhere
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.engine.events import Event, Place, Placed, PlaceFailed, RequestRemoved

log = structlog.get_logger()

Deliver = Callable[[WorkerState, session.Assign], None]


class PlannedAssignment(NamedTuple):
    """A placement, and the worker as it was at that time: it may leave before the store answers."""

    place: Place
    worker: WorkerState
    grant: DeviceGrant


@dataclass(frozen=True, slots=True)
class Assigner:
    """Sends an assignment to a worker only after the store has accepted it: the store has the last word."""

    tasks: TaskTable
    memory: MemoryPolicy
    metrics: Metrics
    deliver: Deliver
    now: Callable[[], float]
    deliver_filled: Deliver
    models: ModelBook
    workers: Callable[[], Mapping[str, WorkerState]]

    def plans(self, places: Iterable[Place], workers: Mapping[str, WorkerState]) -> list[PlannedAssignment]:
        """Return a plan for each placement whose worker is still known."""
        found = ((place, workers.get(place.placement.node)) for place in places)
        return [
            PlannedAssignment(place, worker, rows.grant_of(place, worker))
            for place, worker in found
            if worker is not None
        ]

    def gang_plans(
        self, places: Sequence[Place], workers: Mapping[str, WorkerState]
    ) -> list[PlannedAssignment]:
        """Return the plans of all members, each with the workers of the others; none if a worker is gone."""
        plans = sorted(self.plans(places, workers), key=lambda each: split(each.place.request.key)[1])
        if len(plans) < len(places):
            return []
        peers = tuple(Peer(each.worker.hello.name, each.worker.hello.address) for each in plans)
        name, _ = split(plans[0].place.request.key)
        port = port_of(name, self._attempt(plans[0].place) + 1)
        return [
            each._replace(grant=msgspec.structs.replace(each.grant, gang=Gang(name, rank, peers, port)))
            for rank, each in enumerate(plans)
        ]

    def assignments(self, plans: Iterable[PlannedAssignment]) -> list[Assignment]:
        """Return the assignments that the store must write before any worker gets one."""
        return [assignment_of(each, self._attempt(each.place), self.memory) for each in plans]

    def deliver_accepted(
        self, plans: Sequence[PlannedAssignment], answers: Sequence[AssignResult]
    ) -> Iterator[Event]:
        """Send the workers the assignments that the store accepted; yield the events for the engine."""
        for plan, answer in zip(plans, answers, strict=True):
            yield from self._deliver_accepted(plan, answer)

    def _attempt(self, place: Place) -> int:
        known = self.tasks.get(place.request.key)
        return known.attempt if known else -1

    def _deliver_accepted(self, plan: PlannedAssignment, answer: AssignResult) -> Iterator[Event]:
        key, known = plan.place.request.key, self.tasks.get(plan.place.request.key)
        if isinstance(answer, NotAssigned) or known is None:
            if isinstance(answer, NotAssigned) and answer.moved is Moved.TASK:
                yield RequestRemoved(key)
            self.tasks.set_waits(key, True)
            yield PlaceFailed(key)
            return
        known.attempt += 1
        assign = rows.message_of(
            key, known.attempt, known.spec, plan.grant, answer.parameters, answer.correlation, self.models
        )
        if known.spec.model and plan.grant.devices:
            devices = tuple(each.index for each in plan.grant.devices)
            worker = plan.worker.hello.name
            has_more = has_elsewhere(known.spec, known.deaths, worker, devices, self.workers())
            assign = msgspec.structs.replace(assign, has_elsewhere=has_more)
        deliver = self.deliver_filled if known.spec.takes_results else self.deliver
        deliver(plan.worker, assign)
        yield Placed(key)
        waited_s = self.now() - known.created_s
        asyncio.get_running_loop().call_soon(self._record, plan, waited_s, answer.correlation)

    def _record(self, plan: PlannedAssignment, waited_s: float, correlation: str) -> None:
        """Count and log an assignment, after it was sent."""
        self.metrics.dispatched(waited_s)
        if not log.is_enabled_for(DEBUG):
            return
        log.debug(
            "task_scheduled",
            task_id=plan.place.placement.key,
            worker_id=plan.place.placement.node,
            devices=[str(each) for each in plan.grant.devices],
            estimated_duration=round(self.metrics.average_s, 3),
            correlation_id=correlation,
        )


def assignment_of(plan: PlannedAssignment, attempt: int, memory: MemoryPolicy) -> Assignment:
    """Return what the store writes for a plan; `attempt` counts the runs so far."""
    place, worker, grant = plan.place, plan.worker, plan.grant
    milli = rows.milli_of(grant, worker, memory)
    return Assignment(
        place.request.key, attempt, place.placement.node, worker.epoch, rows.encode(grant), milli
    )
