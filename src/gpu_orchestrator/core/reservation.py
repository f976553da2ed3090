"""Where a request that does not fit now can start soonest, by what is known of the ends of others.

A holder without an end is taken to stay. The place found is kept for the request, and others may use it in
between only if they end before.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang, GangRefusal, PolicyOf, decide_gang
from gpu_orchestrator.core.policy import Rng

MOST_MOMENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `at` on these places are free, if all who declared an end keep to it."""

    key: str
    at: float
    placements: tuple[Placement, ...]


def soonest(
    gang: Gang,
    cluster: Cluster,
    held: Sequence[Placement],
    ends: Mapping[str, float],
    policy_of: PolicyOf,
    rng: Rng,
    most_moments: int = MOST_MOMENTS,
) -> Reservation | None:
    """Return the earliest moment at which the gang fits, and where; None if the known ends do not suffice.
    A single request is a gang of one. Changes nothing.

    The more have ended, the more fits, so the moment is found by halving. Of more than `most_moments` moments
    some are left out, evenly but for the last: the answer may then be later than the earliest.
    """
    ending = sorted((each for each in held if each.key in ends), key=lambda each: ends[each.key])
    moments = _thinned(sorted({ends[each.key] for each in ending}), most_moments)
    answers: dict[int, tuple[Placement, ...]] = {}

    def fits(at: int) -> bool:
        twin = cluster.copy()
        for placement in ending:
            if ends[placement.key] <= moments[at]:
                twin.release(placement)
        answer = decide_gang(gang, twin, policy_of, rng)
        if isinstance(answer, GangRefusal):
            return False
        answers[at] = answer
        return True

    first = bisect_left(range(len(moments)), True, key=fits)
    if first == len(moments):
        return None
    return Reservation(gang.terms.name, moments[first], answers[first])


def _thinned(moments: list[float], most: int) -> list[float]:
    """Return at most that many of these, the last one among them."""
    step = -(-len(moments) // most) if moments else 1
    return moments[::-1][::step][::-1]
