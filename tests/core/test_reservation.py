"""The place where a request can start soonest, by the declared ends of those who are in its way."""

import random

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.core.reservation import Reservation, soonest
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, request, whole

POLICY = Registry().policy()
HELD = whole("a1", "a", 0), whole("a2", "a", 1), whole("b1", "b", 0), whole("b2", "b", 1)


def reserved(*gpus: int, held: tuple[Placement, ...] = HELD, **ends: float) -> Reservation | None:
    world = cluster(node("a", 2), node("b", 2))
    for each in held:
        world.place(each)
    members = tuple(request(f"m{number}", each) for number, each in enumerate(gpus))
    return soonest(
        Gang(GangTerms("g", len(gpus)), members, len(gpus)),
        world,
        held,
        ends,
        lambda _: POLICY,
        random.Random(1),
    )


def test_the_node_whose_last_pod_ends_first() -> None:
    found = reserved(2, a1=10.0, a2=50.0, b1=20.0, b2=30.0)
    assert found is not None
    assert (found.at, [each.node for each in found.placements]) == (30.0, ["b"])


def test_who_declares_no_end_stays() -> None:
    found = reserved(2, a1=10.0, b1=20.0, b2=60.0)
    assert found is not None
    assert (found.at, found.placements[0].node) == (60.0, "b")
    assert reserved(2, a1=10.0, b1=20.0) is None


def test_gang_waits_for_all_its_places() -> None:
    found = reserved(2, 2, a1=10.0, a2=50.0, b1=20.0, b2=30.0)
    assert found is not None
    assert (found.at, {each.node for each in found.placements}) == (50.0, {"a", "b"})


def test_what_never_fits_has_no_reservation() -> None:
    assert reserved(3, a1=10.0, a2=50.0, b1=20.0, b2=30.0) is None
    assert reserved(3, held=()) is None
