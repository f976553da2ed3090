"""Where a request that does not fit now can start soonest, by what is known of the ends of others.

A holder without a declared end is taken to stay. The place found is kept for the request, and others may use
it in between only if they end before.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang, GangRefusal, PolicyOf, decide_gang
from gpu_orchestrator.core.policy import Rng


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
) -> Reservation | None:
    """Return the earliest moment at which the gang fits, and where; None if the known ends do not suffice.
    A single request is a gang of one. Changes nothing.

    The more have ended, the more fits, so the moment is found by halving.
    """
    ending = sorted((each for each in held if each.key in ends), key=lambda each: ends[each.key])
    moments = sorted({ends[each.key] for each in ending})
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
