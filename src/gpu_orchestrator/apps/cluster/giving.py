"""How a task is given to a worker: on which devices, what the store is asked, what the worker is told."""

import msgspec

from gpu_orchestrator.adapters.store.values import Assignment
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.cluster import fleet
from gpu_orchestrator.apps.cluster.translate import Memory, Seen, Spot
from gpu_orchestrator.engine.events import Place


def spot_of(place: Place, worker: Seen) -> Spot:
    placement, shape = place.placement, place.request.shape
    if not placement.devices:
        return Spot((), placement.memory_mib, exclusive=False)
    uuids = {each.index: each.uuid for each in worker.hello.devices}
    given = tuple(session.Given(index, uuids.get(index, "")) for index in placement.devices)
    exclusive = bool(shape.gpus) and shape.exclusive
    return Spot(given, 0 if exclusive else placement.memory_mib, exclusive)


def assignment_of(place: Place, attempt: int, spot: Spot, worker: Seen, memory: Memory) -> Assignment:
    """`attempt` counts the runs begun so far."""
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
