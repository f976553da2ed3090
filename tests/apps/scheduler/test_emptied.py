"""Gangs for which there is not enough, even if all go that may."""

import pytest

from gpu_orchestrator.apps.scheduler.cycle.emptied import Emptied
from gpu_orchestrator.apps.scheduler.cycle.preemptors import Preemptor
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.core.victims import Evictable
from tests.support.builders import node, request, whole


@pytest.mark.parametrize(
    ("members", "priority", "queue", "may"),
    [
        pytest.param(3, 5, "", True, id="without those of lower priority"),
        pytest.param(4, 5, "", False, id="more than these leave"),
        pytest.param(3, 1, "", False, id="none is of lower priority"),
        pytest.param(4, 0, "ml", True, id="a queue may have what others borrow"),
        pytest.param(5, 9, "ml", False, id="more than there is"),
    ],
)
def test_gang_is_told_by_the_numbers(members: int, priority: int, queue: str, may: bool) -> None:
    """Four GPUs: one is free, two are held with priority 1, and one with priority 5."""
    held = [whole(f"p{at}", "a", at) for at in range(3)]
    cluster = Cluster([node("a", 4)])
    for each in held:
        cluster.place(each)
    evictables = [Evictable(each.key, (each,), at) for each, at in zip(held, (1, 1, 5), strict=True)]
    terms = GangTerms("g", members)
    asked = tuple(request(f"m{at}", 1, priority=priority, queue=queue, gang=terms) for at in range(members))
    preemptor = Preemptor(asked, {}, Gang(terms, asked, members))
    assert Emptied(cluster.copy, evictables).may_hold(preemptor) is may
