"""In what order requests are looked at, and how long they rest."""

import pytest

from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.line import Line, Waiting
from gpu_orchestrator.engine.order import LARGE_MIB, FairBands, Order, PriorityThenTime
from gpu_orchestrator.engine.turns import BEGINNING_S, Turns
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


def test_a_tenant_of_twice_the_weight_gets_twice_as_many_turns() -> None:
    weighted = FairBands(weight_of=lambda tenant: 2.0 if tenant == "v" else 1.0)
    first = served(weighted, *of("u", 30), *of("v", 30))[:30]
    assert sum(key.startswith("v") for key in first) == 20


@pytest.mark.parametrize(
    ("asked", "cost"),
    [
        pytest.param(request("r", 2), 2.0, id="whole devices"),
        pytest.param(request("r", 2, share=250), 0.5, id="shares"),
        pytest.param(request("r", 1, memory_mib=LARGE_MIB // 4, shared=True), 0.25, id="memory"),
        pytest.param(request("r", 1, share=500, memory_mib=LARGE_MIB // 4), 0.5, id="the larger of both"),
        pytest.param(request("r", 1, memory_mib=LARGE_MIB * 4, shared=True), 1.0, id="never above a device"),
        pytest.param(request("r", 0), 0.01, id="no device counts a little"),
    ],
)
def test_what_holding_costs(asked: Request, cost: float) -> None:
    assert FairBands().cost(asked) == pytest.approx(cost)


def test_holding_counts_as_time_passes_while_others_wait() -> None:
    turns = Turns()
    turns.pass_time(100.0)
    turns.take("a", "u", 2.0)
    turns.joins("v")
    turns.pass_time(103.0)
    assert (turns.start("u"), turns.start("v")) == (6.0, 0.0)
    turns.let_go("a")
    turns.pass_time(110.0)
    assert turns.start("u") == 6.0, "what it let go of counts no longer"
    turns.pass_time(90.0)
    assert turns.start("u") == 6.0, "a clock that goes back counts nothing"


@pytest.mark.parametrize(("most", "counted"), [(None, True), (1, False)])
def test_what_nobody_else_could_have_is_free(most: int | None, counted: bool) -> None:
    turns = Turns()
    turns.pass_time(0.0)
    turns.take("a", "u", 1.0)
    turns.joins("u")
    turns.pass_time(365 * 86_400.0)
    assert turns.start("u") == 0.0, "only it waits itself"
    turns.take("b", "v", 1.0)
    turns.allow("v", most)
    turns.joins("v")
    turns.pass_time(365 * 86_400.0 + 5)
    assert turns.start("u") == (5.0 if counted else 0.0), "a full flow wants nothing"
    turns.leaves("v")
    turns.pass_time(366 * 86_400.0)
    assert turns.start("u") == (5.0 if counted else 0.0)


def test_a_full_flow_is_passed_over_until_it_lets_go() -> None:
    turns = Turns()
    line = Line(turns)
    order = FairBands()
    for number, (since, asked) in enumerate([*of("u", 2), *of("v", 1)]):
        line.push(Waiting(asked, POLICY, since, number, 0, order.flow(asked), order.rank(asked, since)))
    assert turns.allow("u", 1) is False
    assert turns.take("held", "u", 1.0) is True
    first = line.pop()
    assert first is not None
    assert first.request.key == "v0"
    assert line.pop() is None
    assert (len(line), line.has_turn()) == (2, False)
    assert turns.let_go("held") is True
    second = line.pop()
    assert second is not None
    assert second.request.key == "u0"


def test_an_empty_line_remembers_nobody() -> None:
    turns = Turns()
    line, order = Line(turns), FairBands()
    for number in range(100):
        asked = request(f"p{number}", tenant=f"tenant-{number}")
        line.push(Waiting(asked, POLICY, 0.0, number, 0, order.flow(asked), order.rank(asked, 0.0)))
        assert line.pop() is not None
        turns.charge(order.flow(asked), 1.0)
        assert line.pop() is None
        assert not line.lanes


def test_a_tenant_that_was_away_saved_nothing_up() -> None:
    turns = Turns()
    for _ in range(100):
        turns.charge("busy", 1.0)
    assert turns.start("away") == pytest.approx(turns.start("busy") - BEGINNING_S)


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
