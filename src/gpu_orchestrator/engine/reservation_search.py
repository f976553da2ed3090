"""Look where a request or a gang that does not fit could start soonest. Called by `Reservations`.

`core/reservation.py` tries it out on copies, which costs too much for every holder of thousands of nodes. So
the nodes are chosen first, by the numbers: those on which enough devices are free the soonest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Ints
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.filters.devices import Kind
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.limits import MOST_NUMBER
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.request import GangTerms, Request, Shape
from gpu_orchestrator.core.reservation import Reservation, soonest
from gpu_orchestrator.core.standing import current
from gpu_orchestrator.engine.ends import Ends

UNKNOWN = 1e11
"""From this moment on, ends are guesses: of holders that declare none, the nearest to being free first."""
MOST_ROWS = 1000
"""Nodes whose holders are read, those that lack least."""
FEW_ROWS = 16
"""Nodes on which it is tried out, for each that a member of a gang needs, twice as many."""
MOST_MOMENTS, MOST_MOMENTS_OF_MANY, MANY = 256, 4, 32
ROOM = "kept/"
"""How the keys begin of what is kept for a request."""
ROOM_MADE = "room/"
"""How keys begin of rooms for those for whom others were evicted. A place that overlapped such a room would
be free when its owner has started, who could not start before it."""


def is_room(key: str) -> bool:
    """Return True for what is kept for a request, which no end frees."""
    return key.startswith((ROOM, ROOM_MADE))


@dataclass(frozen=True, slots=True)
class Asked:
    """Members that are to start together, as they may by the quota of their queue; a single request is a gang
    of one. `policies` has that of each."""

    gang: Gang
    policies: Mapping[str, Policy]


class Found(NamedTuple):
    """`cost` is how many holders were read for it."""

    reservation: Reservation | None
    cost: int


class _Row(NamedTuple):
    at: float
    row: int
    room: int


def search(
    asked: Asked,
    cluster: Cluster,
    ends: Ends,
    now: float,
    rng: Rng,
    *,
    guesses: bool,
    stays: Callable[[str], bool] = is_room,
) -> Found:
    """Return the soonest place. `guesses`: holders without an end are taken to end at some time, after all
    others, except those that `stays` says of a key."""
    gang, policies = asked.gang, asked.policies
    largest = max(gang.members, key=lambda each: _size(each.shape))
    lacking = _lacking(largest.shape, policies[largest.key], cluster)
    if not len(lacking):
        return Found(None, 0)
    kind, cost, rows = Kind(largest.shape, cluster.inventory), 0, list[_Row]()
    held: dict[int, list[tuple[float, Placement]]] = {}
    usable = cluster.inventory.slices if kind.shape.profile else cluster.inventory.usable
    open_ = (usable[lacking] & kind.matching(cluster.inventory, lacking)).tolist()
    for number, row in enumerate(lacking.tolist()):
        held[row] = _ending(cluster, row, ends, now, stays, guess=UNKNOWN + number if guesses else inf)
        cost += len(held[row])
        rows.append(_first_room(_Devices(kind.shape, cluster, row, open_[number]), row, held[row]))
    chosen = _chosen(rows, gang.least)
    # With guesses, the node that lacks least comes first.
    order = {each.row: number for number, each in enumerate(chosen)}
    until: dict[str, float] = {}
    for row, number in order.items():
        for nth, (at, placement) in enumerate(held[row]):
            if at < inf:
                until[placement.key] = at if at < UNKNOWN else UNKNOWN + 1000.0 * number + nth
    placements = [placement for row in order for at, placement in held[row] if at < inf]
    found = soonest(
        gang,
        cluster,
        placements,
        until,
        lambda request: policies[request.key],
        rng,
        MOST_MOMENTS if len(gang.members) <= MANY else MOST_MOMENTS_OF_MANY,
    )
    return Found(found, cost)


def _lacking(shape: Shape, policy: Policy, cluster: Cluster) -> Ints:
    """Return the rows that could take the largest member if enough were free, those that lack least first."""
    rows = current(shape, cluster, policy).eligible()
    lack = _size(shape) - _spare(shape, cluster)[rows]
    if len(rows) > MOST_ROWS:
        nearest = np.argpartition(lack, MOST_ROWS)[:MOST_ROWS]
        rows, lack = rows[nearest], lack[nearest]
    ordered: Ints = rows[np.argsort(lack, kind="stable")]
    return ordered


def _ending(
    cluster: Cluster, row: int, ends: Ends, now: float, stays: Callable[[str], bool], *, guess: float
) -> list[tuple[float, Placement]]:
    """Return what is held of a row with its end, the first end first; of equal ends the largest first."""
    found = list[tuple[float, Placement]]()
    for placement in cluster.usage.held[row].values():
        if stays(placement.key):
            found.append((inf, placement))
        else:
            at = ends.expected(placement.key, now)
            found.append((guess if at is None else at, placement))
    return sorted(found, key=lambda each: (each[0], -len(each[1].devices), each[1].key))


def _first_room(devices: "_Devices", row: int, held: Sequence[tuple[float, Placement]]) -> _Row:
    """Return when the row has room for one by what is free of its devices, and for how many in the end."""
    asked = devices.asked
    at = -inf if devices.fitting >= asked else inf
    for end, placement in held:
        if end == inf:
            break
        devices.release(placement)
        if at == inf and devices.fitting >= asked:
            at = end
    return _Row(at, row, devices.room // asked)


class _Devices:
    """What is free of the devices of one row, as their holders end. `fitting` counts those that have room for
    the shape."""

    def __init__(self, shape: Shape, cluster: Cluster, row: int, usable: list[bool]) -> None:
        inventory, usage = cluster.inventory, cluster.usage
        self._shape, self._usable, self.asked = shape, usable, max(shape.gpus, 1)
        known = inventory.nodes[row]
        self._position = known.topology.position if known else {}
        self._holders: list[int] = usage.holders[row].tolist()
        self._milli: list[int] = usage.free_milli[row].tolist()
        self._mib: list[int] = usage.free_mib[row].tolist()
        self._sizes: list[int] = inventory.memory_mib[row].tolist()
        self.fitting = sum(map(self._fits, range(len(self._usable))))

    def release(self, placement: Placement) -> None:
        for device in placement.devices:
            if (at := self._position.get(device)) is None:
                continue
            before = self._fits(at)
            self._holders[at] -= 1
            self._milli[at] += WHOLE if placement.exclusive else placement.milli
            self._mib[at] += self._sizes[at] if placement.exclusive else placement.memory_mib
            self.fitting += self._fits(at) - before

    @property
    def room(self) -> int:
        """Return how many of these devices could be taken; one counts as often as it could be shared."""
        return sum(map(self._times, range(len(self._usable))))

    def _fits(self, at: int) -> bool:
        shape = self._shape
        if not self._usable[at]:
            return False
        if shape.exclusive:
            return self._holders[at] <= 0
        return self._milli[at] >= shape.milli and self._mib[at] >= shape.memory_mib

    def _times(self, at: int) -> int:
        shape = self._shape
        if not self._fits(at):
            return 0
        if shape.exclusive:
            return 1
        by_milli = self._milli[at] // shape.milli if shape.milli else MOST_NUMBER
        return min(by_milli, self._mib[at] // shape.memory_mib if shape.memory_mib else MOST_NUMBER)


def _chosen(rows: list[_Row], least: int) -> list[_Row]:
    chosen, room = list[_Row](), 0
    for each in sorted(each for each in rows if each.at < inf):
        if len(chosen) >= FEW_ROWS and room >= 2 * least:
            break
        chosen.append(each)
        room += each.room
    return chosen


def _size(shape: Shape) -> int:
    """Return what counts of the shape: thousandths of GPUs, of a share by memory alone MiB."""
    if shape.exclusive:
        return shape.gpus * WHOLE
    return shape.gpus * (shape.milli or shape.memory_mib)


def _spare(shape: Shape, cluster: Cluster) -> Ints:
    """Return how much of that the rows have free."""
    usage, size = cluster.usage, cluster.inventory.size
    if shape.profile:
        return usage.slice_milli[:size].astype(np.int64)
    if shape.exclusive:
        return usage.whole[:size].astype(np.int64) * WHOLE
    if shape.milli:
        return usage.spare_milli[:size].astype(np.int64)
    free: Ints = np.where(cluster.inventory.usable, np.maximum(usage.free_mib, 0), 0)[:size].sum(axis=1)
    return free


def single(request: Request, policy: Policy) -> Asked:
    return Asked(Gang(GangTerms(request.key), (request,), 1), {request.key: policy})
