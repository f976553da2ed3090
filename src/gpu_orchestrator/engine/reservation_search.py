"""Look where a request or a gang that does not fit could start soonest. Called by `Reservations`.

`core/reservation.py` tries it out on copies, which costs too much for every holder of thousands of nodes. So
the nodes are chosen first, by the numbers: those on which enough devices are free the soonest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Ints
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.gang import Gang
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


def search(asked: Asked, cluster: Cluster, ends: Ends, now: float, rng: Rng, *, guesses: bool) -> Found:
    """Return the soonest place. `guesses`: holders without an end are taken to end at some time, after all
    others."""
    gang, policies = asked.gang, asked.policies
    largest = max(gang.members, key=lambda each: _milli(each.shape))
    lacking = _lacking(largest.shape, policies[largest.key], cluster)
    if not len(lacking):
        return Found(None, 0)
    shape, cost, rows = largest.shape, 0, list[_Row]()
    held: dict[int, list[tuple[float, Placement]]] = {}
    for number, row in enumerate(lacking.tolist()):
        held[row] = _ending(cluster, row, ends, now, guess=UNKNOWN + number if guesses else inf)
        cost += len(held[row])
        rows.append(_first_room(shape, cluster, row, held[row]))
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
    lack = _milli(shape) - _spare(shape, cluster)[rows]
    if len(rows) > MOST_ROWS:
        nearest = np.argpartition(lack, MOST_ROWS)[:MOST_ROWS]
        rows, lack = rows[nearest], lack[nearest]
    ordered: Ints = rows[np.argsort(lack, kind="stable")]
    return ordered


def _ending(
    cluster: Cluster, row: int, ends: Ends, now: float, *, guess: float
) -> list[tuple[float, Placement]]:
    """Return what is held of a row with its end, the first end first; of equal ends the largest first."""
    found = list[tuple[float, Placement]]()
    for placement in cluster.usage.held[row].values():
        at = ends.expected(placement.key, now)
        found.append(
            (guess if at is None and not is_room(placement) else inf if at is None else at, placement)
        )
    return sorted(found, key=lambda each: (each[0], -_held_milli(each[1]), each[1].key))


def _first_room(shape: Shape, cluster: Cluster, row: int, held: Sequence[tuple[float, Placement]]) -> _Row:
    """Return when the row has room for one by the number of its devices, and for how many in the end."""
    asked, free = max(_milli(shape), 1), int(_spare(shape, cluster)[row])
    at = -inf if free >= asked else inf
    for end, placement in held:
        if end == inf:
            break
        free += _held_milli(placement)
        if at == inf and free >= asked:
            at = end
    return _Row(at, row, free // asked)


def _chosen(rows: list[_Row], least: int) -> list[_Row]:
    chosen, room = list[_Row](), 0
    for each in sorted(each for each in rows if each.at < inf):
        if len(chosen) >= FEW_ROWS and room >= 2 * least:
            break
        chosen.append(each)
        room += each.room
    return chosen


def is_room(placement: Placement) -> bool:
    """Return True for what is kept for a request, which no end frees."""
    return placement.key.startswith((ROOM, ROOM_MADE))


ROOM = "kept/"
ROOM_MADE = "room/"
"""How keys begin of rooms for those for whom others were evicted. A place that overlapped such a room would
be free when its owner has started, who could not start before it."""


def _milli(shape: Shape) -> int:
    return shape.gpus * (WHOLE if shape.exclusive else shape.milli)


def _held_milli(placement: Placement) -> int:
    return len(placement.devices) * (WHOLE if placement.exclusive else placement.milli)


def _spare(shape: Shape, cluster: Cluster) -> Ints:
    """Return what the rows have free of what counts for the shape, in milli."""
    usage, size = cluster.usage, cluster.inventory.size
    if shape.profile:
        return usage.slice_milli[:size].astype(np.int64)
    free: Ints = (usage.whole[:size] * WHOLE if shape.exclusive else usage.spare_milli[:size]).astype(
        np.int64
    )
    return free


def single(request: Request, policy: Policy) -> Asked:
    return Asked(Gang(GangTerms(request.key), (request,), 1), {request.key: policy})
