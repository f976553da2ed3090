"""How the devices of a node are linked: pairwise bandwidth, islands, and sets with the best weakest link.

Devices are positions (0..n-1) in ascending order of id; sets of them are bit masks. Everything here is a pure
function of small values and cached: thousands of equal nodes cost one search.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import inf

SEARCH_STEPS = 50_000
"""Search is exhaustive on up to about 16 devices of any wiring; beyond this many steps the next lower
bandwidth is tried instead, so on larger, irregular nodes the chosen set may be linked worse than the best
one."""

MOST_SHARED = 64
"""Devices of a node whose topology is kept for other nodes: those of very large ones would fill memory."""


@dataclass(frozen=True)
class Topology:
    """`bandwidth[i][j]` in GB/s, both directions added; 0 where no fast link is known."""

    ids: tuple[int, ...] = ()
    bandwidth: tuple[tuple[int, ...], ...] = ()
    islands: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.ids, self.bandwidth, self.islands, self.numa)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The distinct bandwidths, best first."""
        pairs = set[int]().union(*(row[:i] for i, row in enumerate(self.bandwidth)))
        return tuple(sorted(pairs, reverse=True))

    @cached_property
    def position(self) -> dict[int, int]:
        return {device_id: position for position, device_id in enumerate(self.ids)}


def from_links(
    ids: Iterable[int],
    links: Mapping[tuple[int, int], int],
    *,
    islands: Mapping[int, int] | None = None,
    numa: Mapping[int, int] | None = None,
) -> Topology:
    """`links` maps pairs of ids to GB/s. Islands that are not given are the connected components of the
    links."""
    order = tuple(sorted(ids))
    bandwidth = _bandwidth(order, links)
    told = islands or {}
    found = _components(bandwidth) if links else range(len(order))
    return _topology(
        order,
        bandwidth,
        tuple([told.get(a, found[i]) for i, a in enumerate(order)]),
        tuple([(numa or {}).get(a, -1) for a in order]),
    )


def _topology(
    ids: tuple[int, ...],
    bandwidth: tuple[tuple[int, ...], ...],
    islands: tuple[int, ...],
    numa: tuple[int, ...],
) -> Topology:
    make = _shared if len(ids) <= MOST_SHARED else Topology
    return make(ids, bandwidth, islands, numa)


@lru_cache(maxsize=1 << 8)
def _shared(
    ids: tuple[int, ...],
    bandwidth: tuple[tuple[int, ...], ...],
    islands: tuple[int, ...],
    numa: tuple[int, ...],
) -> Topology:
    """Return one value for all equal nodes: thousands of them would fill memory, and each would be hashed."""
    return Topology(ids, bandwidth, islands, numa)


def _bandwidth(order: tuple[int, ...], links: Mapping[tuple[int, int], int]) -> tuple[tuple[int, ...], ...]:
    if not links:  # a plugin that shares GPUs may count hundreds of them: do not look at every pair
        return ((0,) * len(order),) * len(order)
    pairs = {frozenset(pair): gbps for pair, gbps in links.items()}
    return tuple(tuple(0 if a == b else pairs.get(frozenset((a, b)), 0) for b in order) for a in order)


def from_islands(
    ids: Iterable[int],
    *,
    islands: Mapping[int, int],
    gbps: Mapping[int, int],
    numa: Mapping[int, int] | None = None,
) -> Topology:
    """For nodes that report each device's island and best bandwidth but no pairs: a pair inside an island has
    the smaller of both."""
    order = tuple(sorted(ids))
    links = {
        (a, b): min(gbps.get(a, 0), gbps.get(b, 0))
        for a in order
        for b in order
        if a < b and islands.get(a, -1) == islands.get(b, -1) >= 0
    }
    return from_links(order, links, islands={a: i for a, i in islands.items() if i >= 0}, numa=numa)


def weakest_link(topology: Topology, positions: Iterable[int]) -> float:
    """Return the least bandwidth of any pair; infinite for fewer than two devices, which have no pair."""
    chosen = tuple(positions)
    return min((topology.bandwidth[a][b] for a in chosen for b in chosen if a < b), default=inf)


@lru_cache(maxsize=1 << 16)
def best_link(topology: Topology, mask: int, count: int) -> float:
    """Return the best weakest link that any `count` devices of `mask` can have; -1 if there are too few
    devices."""
    if mask.bit_count() < count:
        return -1
    if count < 2:
        return inf
    order = positions_of(mask)
    return next((level for level in topology.levels if first_set(topology, order, count, level)), 0)


def first_set(topology: Topology, order: tuple[int, ...], count: int, floor: float) -> tuple[int, ...] | None:
    """Return the first set, in order of preference, of which every pair has at least `floor` GB/s."""
    if len(order) < count:
        return None
    if floor <= 0 or count < 2:
        return tuple(sorted(order[:count]))
    steps = [SEARCH_STEPS]
    found = _extend(_neighbours(topology, floor), order, count, mask_of(order), steps)
    return None if found is None else tuple(sorted(found))


def positions_of(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def mask_of(positions: Iterable[int]) -> int:
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


@lru_cache(maxsize=1 << 12)
def _neighbours(topology: Topology, floor: float) -> tuple[int, ...]:
    """Return for each device the mask of those linked to it with at least `floor`."""
    return tuple(mask_of(j for j, gbps in enumerate(row) if gbps >= floor) for row in topology.bandwidth)


def _extend(
    near: tuple[int, ...], order: tuple[int, ...], count: int, allowed: int, steps: list[int]
) -> tuple[int, ...] | None:
    """Depth-first search for a clique of `count` within `allowed`, earlier positions of `order` first."""
    if count == 0:
        return ()
    for index, position in enumerate(order):
        if allowed.bit_count() < count or steps[0] <= 0:
            return None
        if not allowed >> position & 1:
            continue
        steps[0] -= 1
        rest = _extend(
            near, order[index + 1 :], count - 1, allowed & near[position] & ~(1 << position), steps
        )
        if rest is not None:
            return (position, *rest)
        allowed &= ~(1 << position)
    return None


def _components(bandwidth: tuple[tuple[int, ...], ...]) -> list[int]:
    """Return the island of each device: the number of its connected component, in order of first device."""
    island = [-1] * len(bandwidth)
    for start in range(len(bandwidth)):
        if island[start] >= 0:
            continue
        island[start] = max(island, default=-1) + 1
        reach = [start]
        while reach:
            here = reach.pop()
            for there, gbps in enumerate(bandwidth[here]):
                if gbps > 0 and island[there] < 0:
                    island[there] = island[start]
                    reach.append(there)
    return island
