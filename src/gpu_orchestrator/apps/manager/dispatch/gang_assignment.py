"""Assigns gangs for the dispatcher: all members of a gang in one write of the store, or none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_orchestrator.adapters.store.records import Assigned, AssignResult, Moved, NotAssigned
from gpu_orchestrator.apps.manager.dispatch.assignment import Assigner, PlannedAssignment
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import Event, Place, PlaceFailed, PlaceGang

BATCH = 500
"""Members of the gangs of one write, but of one gang at least."""


@dataclass(slots=True)
class GangAssignment:
    """Gangs that have places, and are not written yet."""

    deps: DispatcherDeps
    engine: Engine
    assigner: Assigner
    _gangs: list[PlaceGang] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._gangs)

    def add(self, gang: PlaceGang) -> Iterator[Place]:
        """Take in a gang; return the places of its members."""
        self._gangs.append(gang)
        return iter(gang.places)

    async def assign(self, workers: Mapping[str, WorkerState]) -> list[Event] | None:
        """Assign the next gangs; return the events for the engine, or None if this process does not lead."""
        events: list[Event] = []
        planned: list[tuple[PlaceGang, list[PlannedAssignment]]] = []
        size = 0
        while self._gangs and (not size or size + len(self._gangs[0].places) <= BATCH):
            gang = self._gangs.pop(0)
            size += len(gang.places)
            plans = self.assigner.gang_plans(gang.places, workers) if self._may_start(gang) else []
            if plans:
                planned.append((gang, plans))
            else:
                events += self._put_back(gang)
        if not planned:
            return events
        answers = await self.deps.store.tasks.assign_gangs(
            [self.assigner.assignments(plans) for _, plans in planned]
        )
        if answers is None:
            return None
        for (gang, plans), given in zip(planned, answers, strict=True):
            if _is_later(given):
                self._gangs.append(gang)
            else:
                events += self.assigner.deliver_accepted(plans, given)
                self._count(gang, given)
        return events

    def _count(self, gang: PlaceGang, given: list[AssignResult]) -> None:
        known = self.assigner.tasks.get(gang.places[0].request.key)
        if known is not None and isinstance(given[0], Assigned):
            self.deps.metrics.gangs_started.labels("first" if known.attempt == 1 else "again").inc()

    def _may_start(self, gang: PlaceGang) -> bool:
        most = self.deps.most_active()
        return most is None or self.engine.counts()["held"] + len(gang.places) <= most

    def _put_back(self, gang: PlaceGang) -> Iterator[Event]:
        """A worker of its places is gone, or nothing more may start now."""
        for place in gang.places:
            self.assigner.tasks.set_waits(place.request.key, True)
            yield PlaceFailed(place.request.key)


def _is_later(given: list[AssignResult]) -> bool:
    return any(isinstance(each, NotAssigned) and each.moved is Moved.LATER for each in given)
