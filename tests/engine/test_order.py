"""In what order requests are looked at, and how long they rest."""

import pytest

from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.backoff import Backoff
from gpu_orchestrator.engine.line import Line, Turns, Waiting
from gpu_orchestrator.engine.order import FairBands, Order, PriorityThenTime
from gpu_orchestrator.policies.registry import Registry
from tests.builders import request

POLICY = Registry().policy()


def served(order: Order, *arrivals: tuple[float, Request]) -> list[str]:
    """Keys in the order in which they are served if all wait."""
    turns = Turns()
    line = Line(turns)
    for number, (since, asked) in enumerate(arrivals):
        place = order.lane(asked), order.flow(asked), order.rank(asked, since)
        line.push(Waiting(asked, POLICY, since, number, *place))
    keys = []
    while (waiting := line.pop()) is not None:
        turns.charge(waiting.flow, order.cost(waiting.request))
        keys.append(waiting.request.key)
    assert len(line) == 0
    return keys


def of(tenant: str, count: int, *, priority: int = 0, gpus: int = 1) -> list[tuple[float, Request]]:
    return [(float(i), request(f"{tenant}{i}", gpus, tenant=tenant, priority=priority)) for i in range(count)]


def test_priority_then_time() -> None:
    asked = [(2.0, request("b")), (1.0, request("a")), (3.0, request("c", priority=1)), (1.0, request("d"))]
    assert served(PriorityThenTime(), *asked) == ["c", "a", "d", "b"]


def test_bands_are_strict_however_long_one_waited() -> None:
    old, new = (0.0, request("old", priority=74)), (1e9, request("new", priority=75))
    assert served(FairBands(), old, new) == ["new", "old"]


def test_inside_a_band_waiting_counts_like_priority() -> None:
    """At ten seconds a point, five points are worth fifty seconds."""
    low, high = (0.0, request("low", priority=10)), (49.0, request("high", priority=15))
    assert served(FairBands(), low, high) == ["high", "low"]
    assert served(FairBands(), low, (51.0, high[1])) == ["low", "high"]


def test_tenants_take_turns() -> None:
    assert served(FairBands(), *of("u", 4), *of("v", 2)) == ["u0", "v0", "u1", "v1", "u2", "u3"]


def test_a_turn_costs_what_it_takes() -> None:
    assert served(FairBands(), *of("u", 2, gpus=4), *of("v", 5)) == ["u0", "v0", "v1", "v2", "v3", "u1", "v4"]


def test_a_tenant_that_was_away_saved_nothing_up() -> None:
    turns = Turns()
    for _ in range(100):
        turns.charge("busy", 1.0)
    assert turns.start("away") == turns.start("busy") - 1.0


def test_who_left_a_line_is_passed_over() -> None:
    turns = Turns()
    line = Line(turns)
    crowd = [
        Waiting(asked, POLICY, since, i, 0, "", (since,)) for i, (since, asked) in enumerate(of("u", 200))
    ]
    for each in crowd:
        line.push(each)
    for each in crowd[:150]:
        line.remove(each)
    assert len(line) == 50
    first = line.pop()
    assert first is crowd[150]


@pytest.mark.parametrize(
    ("attempt", "delay_s"),
    [
        pytest.param(0, 1, id="first failure"),
        pytest.param(1, 2, id="doubles"),
        pytest.param(3, 8, id="doubles again"),
        pytest.param(4, 10, id="never more than the most"),
        pytest.param(10_000, 10, id="however many"),
        pytest.param(-3, 1, id="negative attempt"),
    ],
)
def test_backoff(attempt: int, delay_s: float) -> None:
    assert Backoff().delay(attempt) == delay_s
