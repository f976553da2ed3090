"""What a policy is: an allocator (which devices a node would offer) and a strategy (which offer is best).

The core knows only these interfaces; the named ones live in `policies`. An opinion sees all offers at once
and rates each with a number, higher is better. The number may depend only on that offer's node and on how
much of it is free, not on who holds the rest: this is what allows answers to be cached.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from gpu_orchestrator.core.columns import Floats
from gpu_orchestrator.core.topology import Topology, best_link, positions_of

if TYPE_CHECKING:
    from gpu_orchestrator.core.offers import Offers

Opinion = Callable[["Offers"], Floats]


class Rng(Protocol):
    """A source of random numbers, as an argument: a `random.Random` or a numpy `Generator`."""

    def random(self) -> float: ...


class Choice(NamedTuple):
    """What an allocator chooses from: `gpus` positions of the mask `free`. For shares `room` holds what is
    free at each position, (milli, MiB); for whole devices it is empty."""

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
        """The best weakest link that these devices can have."""
        return best_link(self.topology, self.free, self.gpus)

    @property
    def floor_gbps(self) -> float:
        """The bandwidth every pair must have: what was requested or, if that is impossible, the best there
        is."""
        return min(self.asked_gbps, self.best_gbps)


class Allocator(Protocol):
    """Positions to offer, `choice.gpus` of `choice.free`, every pair linked with at least
    `choice.floor_gbps`."""

    def __call__(self, choice: Choice, /) -> tuple[int, ...]: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Strategy:
    """Weighted opinions. Among equal offers the first node wins, or a random one."""

    name: str
    opinions: tuple[tuple[float, Opinion], ...] = ()
    ties: Literal["first", "random"] = "first"


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A policy equals only itself, so keep the one you have: cached answers are found by it."""

    strategy: Strategy
    allocate: Allocator
