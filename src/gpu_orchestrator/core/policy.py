"""What a policy is: an allocator (which devices a node would offer) and a strategy (which offer is best).

The core knows only these forms; the named ones live in `policies`. An opinion sees all offers at once and
gives each a number, higher is better, that depends on that offer alone, and there on nothing but the node and
how much of it is free, not on who holds the rest: this is what lets answers be remembered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from gpu_orchestrator.core.columns import Floats
from gpu_orchestrator.core.topology import Topology, best_link, positions_of

if TYPE_CHECKING:
    from gpu_orchestrator.core.offers import Offers

Opinion = Callable[["Offers"], Floats]


class Rng(Protocol):
    """Chance, as an argument: a `random.Random` or a numpy `Generator`."""

    def random(self) -> float: ...


class Choice(NamedTuple):
    """What an allocator chooses from: `free` (a mask of positions), `gpus` of them wanted. For shares
    `room` holds what is free of each position, (milli, MiB); for whole devices it is empty."""

    topology: Topology
    free: int
    gpus: int
    asked_gbps: int = 0
    prefer_ids: tuple[int, ...] = ()
    room: tuple[tuple[int, int], ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        return positions_of(self.free)

    @property
    def best_gbps(self) -> float:
        """The best weakest link these devices can have."""
        return best_link(self.topology, self.free, self.gpus)

    @property
    def floor_gbps(self) -> float:
        """What every pair must have: what was asked, or if that cannot be had, the best there is."""
        return min(self.asked_gbps, self.best_gbps)


class Allocator(Protocol):
    """Positions to offer, `choice.gpus` of `choice.free`, every pair linked with at least
    `choice.floor_gbps`."""

    def __call__(self, choice: Choice, /) -> tuple[int, ...]: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Strategy:
    """Weighted opinions; among equals the first node wins, or chance decides."""

    name: str
    opinions: tuple[tuple[float, Opinion], ...] = ()
    ties: Literal["first", "random"] = "first"


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """One is itself and equal to no other, so keep the one you have: answers are remembered by it."""

    strategy: Strategy
    allocate: Allocator
