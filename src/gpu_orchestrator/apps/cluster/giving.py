"""How a task is given to a worker: on which devices, what the store is asked, what the worker is told."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from gpu_orchestrator.adapters.store.values import Assignment
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.cluster import fleet
from gpu_orchestrator.apps.cluster.ledger import Ledger
from gpu_orchestrator.apps.cluster.means import Means
from gpu_orchestrator.apps.cluster.translate import Memory, Seen, Spot
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.engine.events import Event, Place, Placed, PlaceFailed, RequestRemoved

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided, and the worker as it was then: it may leave before the store has answered."""

    place: Place
    worker: Seen
    spot: Spot


@dataclass(frozen=True, slots=True)
class Giving:
    """Between what was decided and what workers are told stands the store, which has the last word."""

    means: Means
    tasks: Ledger

    def plans(self, places: Iterable[Place], workers: Mapping[str, Seen]) -> list[Plan]:
        """Of those whose worker is still there."""
        found = ((place, workers.get(place.placement.node)) for place in places)
        return [Plan(place, worker, spot_of(place, worker)) for place, worker in found if worker is not None]

    def asked(self, plans: Iterable[Plan]) -> list[Assignment]:
        """What the store is to write down before any worker is told."""
        return [assignment_of(each, self._attempt(each.place), self.means.memory) for each in plans]

    def answered(self, plans: Sequence[Plan], answers: Sequence[Sequence[str]]) -> Iterator[Event]:
        """Tell the workers what the store let them have."""
        for plan, answer in zip(plans, answers, strict=True):
            yield from self._answered(plan, answer)

    def _attempt(self, place: Place) -> int:
        known = self.tasks.get(place.request.key)
        return known.attempt if known else -1

    def _answered(self, plan: Plan, answer: Sequence[str]) -> Iterator[Event]:
        key, known = plan.place.request.key, self.tasks.get(plan.place.request.key)
        if len(answer) == 1 or known is None:
            if answer[0] == "task moved on":
                yield RequestRemoved(key)
            yield PlaceFailed(key)
            return
        known.attempt += 1
        assign = message_of(key, known.attempt, known.spec, plan.spot, answer[0], answer[1])
        self.means.deliver(plan.worker, assign)
        yield Placed(key)
        waited_s = self.means.now() - known.created_s
        asyncio.get_running_loop().call_soon(self._tell, plan.place.placement, waited_s, answer[1])

    def _tell(self, placement: Placement, waited_s: float, correlation: str) -> None:
        """Once the task is on its way."""
        self.means.metrics.dispatched(waited_s)
        log.debug(
            "task_scheduled",
            task_id=placement.key,
            worker_id=placement.node,
            estimated_duration=round(self.means.metrics.average_s, 3),
            correlation_id=correlation,
        )


def spot_of(place: Place, worker: Seen) -> Spot:
    placement, shape = place.placement, place.request.shape
    if not placement.devices:
        return Spot((), placement.memory_mib, exclusive=False)
    uuids = {each.index: each.uuid for each in worker.hello.devices}
    given = tuple(session.Given(index, uuids.get(index, "")) for index in placement.devices)
    exclusive = bool(shape.gpus) and shape.exclusive
    return Spot(given, 0 if exclusive else placement.memory_mib, exclusive)


def assignment_of(plan: Plan, attempt: int, memory: Memory) -> Assignment:
    """`attempt` counts the runs begun so far."""
    place, worker, spot = plan.place, plan.worker, plan.spot
    milli = fleet.milli_of(spot, worker, memory)
    return Assignment(
        place.request.key, attempt, place.placement.node, worker.epoch, fleet.encode(spot), milli
    )


def message_of(
    task: str, attempt: int, spec: TaskSpec, spot: Spot, parameters: str, correlation: str
) -> session.Assign:
    return session.Assign(
        task,
        attempt,
        spec.task_type,
        msgspec.Raw(parameters),
        model_name=spec.model_name,
        devices=spot.devices,
        memory_mib=spot.memory_mib,
        exclusive=spot.exclusive,
        soft_limit_s=spec.soft_limit_s,
        timeout_s=spec.timeout_s,
        correlation_id=correlation,
    )
