"""In which order the engine tries requests. An order is an argument of the engine.

Every request belongs to a lane (higher lanes strictly first), within the lane to a flow (flows take turns by
what they have had), and within the flow it has a rank (lower first). All three are fixed when it arrives: a
request ages because later arrivals get higher ranks, not because ranks change.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.core.device import LARGE_MIB, WHOLE
from gpu_orchestrator.core.request import Request

LEAST = 0.01


class Order(Protocol):
    def lane(self, request: Request) -> int: ...

    def flow(self, request: Request) -> str: ...

    def rank(self, request: Request, since: float) -> tuple[float, ...]: ...

    def cost(self, request: Request) -> float:
        """What holding the request costs its flow per second."""
        ...


def even(_: str) -> float:
    """Give every flow the same weight."""
    return 1.0


@dataclass(frozen=True, slots=True)
class PriorityThenTime:
    """Highest priority first, then the earliest, as Kubernetes does. Queues with quota take turns, and those
    in no queue are one more; then this is the order inside each."""

    def lane(self, request: Request) -> int:
        return 0

    def flow(self, request: Request) -> str:
        return request.queue

    def rank(self, request: Request, since: float) -> tuple[float, ...]:
        return -request.priority, since

    def cost(self, request: Request) -> float:
        return gpus_of(request)


@dataclass(frozen=True, slots=True)
class FairBands:
    """Strict priority bands; within a band tenants share fairly, and a tenant's own requests age.

    `bands` are the priorities at which a new band begins: (75, 90) makes three bands, and a request below 75
    never passes one above, however long it waited. One point of priority is worth `point_s` seconds of
    waiting. A tenant of weight 2 gets twice as much as one of weight 1 while both want more.
    """

    bands: tuple[int, ...] = (75, 90)
    point_s: float = 10.0
    weight_of: Callable[[str], float] = even

    def lane(self, request: Request) -> int:
        return bisect_right(self.bands, request.priority)

    def flow(self, request: Request) -> str:
        return request.tenant

    def rank(self, request: Request, since: float) -> tuple[float, ...]:
        return (since - request.priority * self.point_s,)

    def cost(self, request: Request) -> float:
        return gpus_of(request) / self.weight_of(request.tenant)


def gpus_of(request: Request) -> float:
    """Return the GPUs requested, a part of a GPU by the larger of its share and its memory. A request without
    GPUs costs a little, or its flow could starve the others."""
    shape = request.shape
    part = shape.milli / WHOLE if shape.exclusive else max(shape.milli / WHOLE, shape.memory_mib / LARGE_MIB)
    return max(shape.gpus * min(part, 1.0), LEAST)
