"""Requests that smaller ones pass forever: in the cluster manager's order, by a virtual clock."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from gpu_orchestrator.core.request import GangTerms, Request
from gpu_orchestrator.engine.events import RequestAdded
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from tests.support.builders import node, request
from tests.support.virtual_play import Play

ON = ReservationRules(most=4, holds=1, hold_after_s=300.0, hold_s=600.0, only_passed=True)
UNTIL, TIMEOUT_S, REAL_S = 300.0, 300.0, 10.0
Small = Callable[[int], Request]


def small(number: int, **more: Any) -> Request:
    return request(f"s{number}", 1, **{"run_s": TIMEOUT_S, "tenant": "many", **more})


def small_of_two_owners(number: int) -> Request:
    return small(number, tenant=("many", "one")[number % 2])


def part(number: int) -> Request:
    return small(number, shared=True, memory_mib=20_000)


def short(number: int) -> Request:
    """Ends within the time for which a place is first kept, so it is let in."""
    return small(number, run_s=(60.0, TIMEOUT_S)[number % 5 == 0])


LOADS: dict[Small, float] = {part: 6.5}
"""How many come for each GPU and time of a task, where that is not 1.2."""


def play(
    rules: ReservationRules, stream: Small, large: list[Request], workers: int = 1, begun: int = 0
) -> Play:
    """Let small ones come without a pause, a little more than the workers can do, and the large one once all
    is busy. `begun` others of its owner each have a worker from the beginning."""
    found = Play(
        Random(1),
        [node(f"w{each}", 8, memory_mib=80_000) for each in range(workers + begun)],
        rules,
        order=FairBands(),
        explains=False,
    )
    for number in range(begun):
        found.real_s[f"l{number}"] = UNTIL
        found.at(0.0, RequestAdded(request(f"l{number}", 8, run_s=3600.0, tenant="one")))
    every_s = REAL_S / (workers * 8) / LOADS.get(stream, 1.2)
    for number in range(int(UNTIL / every_s)):
        asked = stream(number)
        found.real_s[asked.key] = REAL_S * found.rng.uniform(0.5, 1.0)
        found.at(number * every_s, RequestAdded(asked))
    for asked in large:
        found.real_s[asked.key] = 100.0
    found.at(3 * REAL_S, *map(RequestAdded, large))
    found.run(UNTIL)
    return found


def one(gpus: int = 8, **more: Any) -> list[Request]:
    return [request("big", gpus, **{"run_s": 3600.0, "tenant": "one", **more})]


def gang(members: int, gpus: int) -> list[Request]:
    terms = GangTerms("g", members)
    return [request(f"g-{at}", gpus, run_s=3600.0, tenant="one", gang=terms) for at in range(members)]


@pytest.mark.parametrize(
    ("stream", "large", "workers"),
    [
        pytest.param(small, one(), 1, id="single tasks"),
        pytest.param(small, one(tenant="many"), 1, id="of one owner"),
        pytest.param(small_of_two_owners, one(), 1, id="its owner has small ones as well"),
        pytest.param(part, one(), 1, id="parts of GPUs"),
        pytest.param(part, one(1), 1, id="parts beside one whole GPU"),
        pytest.param(part, one(4, shared=True, memory_mib=75_000), 1, id="a large part beside small ones"),
        pytest.param(short, one(), 1, id="those that may be let in"),
        pytest.param(small, gang(4, 4), 2, id="gang"),
        pytest.param(small_of_two_owners, gang(2, 8), 3, id="gang whose owner has small ones as well"),
    ],
)
def test_small_ones_pass_the_large_forever_unless_a_place_is_kept(
    stream: Small, large: list[Request], workers: int
) -> None:
    off = play(OFF, stream, large, workers)
    assert not any(each.key in off.began for each in large), "nothing to mend"
    on = play(ON, stream, large, workers)
    begin = {on.began.get(each.key, UNTIL) for each in large}
    assert len(begin) == 1, "together"
    assert begin.pop() <= 3 * REAL_S + 100.0, "within a bound"


def test_the_turn_of_one_that_was_passed_does_not_move_away() -> None:
    """Its owner goes on having more than the others, who would have a turn before it again and again."""
    assert play(ON, small, one(), begun=3).began["big"] <= 3 * REAL_S + 100.0
