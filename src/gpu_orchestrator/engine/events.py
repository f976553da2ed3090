"""The events that the engine takes in, and the actions that it returns.

The caller turns what it observes into events and performs the actions. It reports the outcome of a `Place` as
`Placed` or `PlaceFailed`, which are events like any other.
"""

from dataclasses import dataclass

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.copies import Copy
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import GangTerms, Request


@dataclass(frozen=True, slots=True)
class NodeUpdated:
    """The node's current state, be it new, changed or the same."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    name: str


@dataclass(frozen=True, slots=True)
class CopiesObserved:
    """The copies of models that a node has now; it keeps at most `most` of them, 0 if that is not known."""

    node: str
    copies: tuple[Copy, ...]
    most: int = 0


@dataclass(frozen=True, slots=True)
class RequestAdded:
    """A request that wants a place. `since` is when it began to wait, if that was before now."""

    request: Request
    since: float | None = None


@dataclass(frozen=True, slots=True)
class RequestRemoved:
    """The request was removed; release anything it held."""

    key: str


@dataclass(frozen=True, slots=True)
class PlacementObserved:
    """What a key holds in reality, placed by us or by others. If the `request` is given, the placement counts
    against its flow and its queue; without it, against this `queue`, empty for none. `ends_at` is when it
    ends at the latest, if that is declared."""

    placement: Placement
    request: Request | None = None
    queue: str = ""
    ends_at: float | None = None


@dataclass(frozen=True, slots=True)
class MemberObserved:
    """A member of a gang has started, placed by us or by others. `node` is where it runs, empty if it has
    ended since. It counts until it is removed. `is_marked`: it carries the mark that its gang has begun."""

    key: str
    node: str
    gang: GangTerms
    is_marked: bool = False


@dataclass(frozen=True, slots=True)
class RoomReady:
    """What was kept under the keys `rooms` for this request, or for its gang, is free now: it is decided
    before all others."""

    rooms: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Placed:
    key: str


@dataclass(frozen=True, slots=True)
class PlaceFailed:
    """The decision could not be carried out: release what was set aside, and let the request rest."""

    key: str


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """A flow may hold at most `most` placements at once; None means no limit. It keeps what it already
    holds."""

    flow: str
    most: int | None


@dataclass(frozen=True, slots=True)
class QueueUpdated:
    """What is declared of a queue now. A queue may come before its parent."""

    terms: QueueTerms


@dataclass(frozen=True, slots=True)
class QueueRemoved:
    """The queue is gone. What is used in it stays counted; its requests wait until it is there again."""

    name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed, nothing else."""


Event = (
    NodeUpdated
    | NodeRemoved
    | CopiesObserved
    | RequestAdded
    | RequestRemoved
    | PlacementObserved
    | MemberObserved
    | RoomReady
    | Placed
    | PlaceFailed
    | LimitChanged
    | QueueUpdated
    | QueueRemoved
    | Tick
)


@dataclass(frozen=True, slots=True)
class Place:
    """Carry out this placement and report the outcome. Until then it is set aside. `in_between`: the place is
    kept for another request, and this one has it because it declares that it ends before."""

    request: Request
    placement: Placement
    in_between: bool = False


@dataclass(frozen=True, slots=True)
class PlaceGang:
    """Carry out all of these or none, and report the outcome of each."""

    gang: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request does not fit now. It waits and is tried again when that could have changed."""

    request: Request
    refusal: Refusal


Action = Place | PlaceGang | Refuse
