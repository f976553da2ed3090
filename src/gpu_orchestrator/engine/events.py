"""What the engine hears, and what it wants done.

Whoever runs it turns the world's news into events and performs the actions; the outcome of a `Place` comes
back as `Placed` or `PlaceFailed`, by the same door as everything else.
"""

from dataclasses import dataclass

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import Request


@dataclass(frozen=True, slots=True)
class NodeUpdated:
    """A node as it is now, new or changed or neither."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class RequestAdded:
    """Somebody wants something. `since` is when they began to wait, if that was before now."""

    request: Request
    since: float | None = None


@dataclass(frozen=True, slots=True)
class RequestRemoved:
    """Whoever that was: it waits no longer, and what it held is free."""

    key: str


@dataclass(frozen=True, slots=True)
class PlacementObserved:
    """The truth about what a key holds, whoever gave it. With the `request` it came from, it counts against
    the flow of that."""

    placement: Placement
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    key: str


@dataclass(frozen=True, slots=True)
class PlaceFailed:
    """What was decided could not be done; what was set aside is free again, and the request rests a while."""

    key: str


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """A flow may hold at most so many things at once; None for any number. What it has it keeps."""

    flow: str
    most: int | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but time."""


Event = (
    NodeUpdated
    | NodeRemoved
    | RequestAdded
    | RequestRemoved
    | PlacementObserved
    | Placed
    | PlaceFailed
    | LimitChanged
    | Tick
)


@dataclass(frozen=True, slots=True)
class Place:
    """Do this, and tell how it went. Until then it is set aside."""

    request: Request
    placement: Placement


@dataclass(frozen=True, slots=True)
class Refuse:
    """It does not fit now; it waits and is looked at again when that could have changed."""

    request: Request
    refusal: Refusal


Action = Place | Refuse
