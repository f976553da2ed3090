"""How a task is given to a worker: on which devices, what the store is asked, what the worker is told."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from gpu_orchestrator.adapters.store.values import Assignment, Given, Moved, NotAssigned
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.cluster import fleet
from gpu_orchestrator.apps.cluster.ledger import Ledger
from gpu_orchestrator.apps.cluster.metrics import Metrics
from gpu_orchestrator.apps.cluster.translate import Memory, Seen, Spot
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, Place, Placed, PlaceFailed, RequestRemoved

log = structlog.get_logger()

Deliver = Callable[[Seen, session.Assign], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided, and the worker as it was then: it may leave before the store has answered."""

    place: Place
    worker: Seen
    spot: Spot


@dataclass(frozen=True, slots=True)
class Giving:
    """Between what was decided and what workers are told stands the store, which has the last word."""

    tasks: Ledger
    memory: Memory
    metrics: Metrics
    deliver: Deliver
    now: Callable[[], float]

    def plans(self, places: Iterable[Place], workers: Mapping[str, Seen]) -> list[Plan]:
        """Of those whose worker is still there."""
        found = ((place, workers.get(place.placement.node)) for place in places)
        return [
            Plan(place, worker, fleet.spot_of(place, worker)) for place, worker in found if worker is not None
        ]

    def asked(self, plans: Iterable[Plan]) -> list[Assignment]:
        """What the store is to write down before any worker is told."""
        return [assignment_of(each, self._attempt(each.place), self.memory) for each in plans]

    def answered(self, plans: Sequence[Plan], answers: Sequence[Given]) -> Iterator[Event]:
        """Tell the workers what the store let them have."""
        for plan, answer in zip(plans, answers, strict=True):
            yield from self._answered(plan, answer)

    def _attempt(self, place: Place) -> int:
        known = self.tasks.get(place.request.key)
        return known.attempt if known else -1

    def _answered(self, plan: Plan, answer: Given) -> Iterator[Event]:
        key, known = plan.place.request.key, self.tasks.get(plan.place.request.key)
        if isinstance(answer, NotAssigned) or known is None:
            if isinstance(answer, NotAssigned) and answer.moved is Moved.TASK:
                yield RequestRemoved(key)
            yield PlaceFailed(key)
            return
        known.attempt += 1
        assign = fleet.message_of(
            key, known.attempt, known.spec, plan.spot, answer.parameters, answer.correlation
        )
        self.deliver(plan.worker, assign)
        yield Placed(key)
        waited_s = self.now() - known.created_s
        asyncio.get_running_loop().call_soon(self._tell, plan.place.placement, waited_s, answer.correlation)

    def _tell(self, placement: Placement, waited_s: float, correlation: str) -> None:
        """Once the task is on its way."""
        self.metrics.dispatched(waited_s)
        log.debug(
            "task_scheduled",
            task_id=placement.key,
            worker_id=placement.node,
            estimated_duration=round(self.metrics.average_s, 3),
            correlation_id=correlation,
        )


def assignment_of(plan: Plan, attempt: int, memory: Memory) -> Assignment:
    """`attempt` counts the runs begun so far."""
    place, worker, spot = plan.place, plan.worker, plan.spot
    milli = fleet.milli_of(spot, worker, memory)
    return Assignment(
        place.request.key, attempt, place.placement.node, worker.epoch, fleet.encode(spot), milli
    )
