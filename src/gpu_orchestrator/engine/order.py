"""In what order requests are looked at. An order is an argument of the engine.

Every request belongs to a lane (higher ones strictly first), within it to a flow (flows take turns by what
they have had), and within that has a rank (lower first). All three are fixed when it arrives: waiting is
counted by ranking early arrivals lower, not by changing ranks.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.request import Request

LARGE_MIB = 80 * 1024
"""So much memory counts as a whole device: before it is placed nobody knows on how large a one."""
LEAST = 0.01


class Order(Protocol):
    def lane(self, request: Request) -> int: ...

    def flow(self, request: Request) -> str: ...

    def rank(self, request: Request, since: float) -> tuple[float, ...]: ...

    def cost(self, request: Request) -> float:
        """What holding it counts against its flow, per second."""
        ...


def even(_: str) -> float:
    """Every flow is worth the same."""
    return 1.0


@dataclass(frozen=True, slots=True)
class PriorityThenTime:
    """The highest priority first, then who came first: as Kubernetes does it."""

    def lane(self, request: Request) -> int:
        return 0

    def flow(self, request: Request) -> str:
        return ""

    def rank(self, request: Request, since: float) -> tuple[float, ...]:
        return -request.priority, since

    def cost(self, request: Request) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class FairBands:
    """Strict bands of priority; inside a band tenants share fairly; a tenant's own requests age.

    `bands` are the priorities at which a new band begins, so with (75, 90) there are three, and nothing below
    75 ever passes something above, however long it waited. One point of priority is worth `point_s` seconds
    of waiting. A tenant of weight 2 gets twice what one of weight 1 gets while both want more.
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
        """GPUs asked for, a part of one by the larger of its share and its memory; what needs none counts a
        little, or it could starve the others."""
        shape = request.shape
        part = (
            shape.milli / WHOLE if shape.exclusive else max(shape.milli / WHOLE, shape.memory_mib / LARGE_MIB)
        )
        return max(shape.gpus * min(part, 1.0), LEAST) / self.weight_of(request.tenant)
