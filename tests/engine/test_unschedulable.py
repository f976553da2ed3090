"""What very many parked shapes cost: an event looks at a bounded number of them, and the order is kept."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import first_obstacle
from gpu_orchestrator.engine import unschedulable
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Action,
    Event,
    NodeUpdated,
    Place,
    Placed,
    Refuse,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request

MANY = 300


def engine_with(*nodes: Node, **options: Any) -> Engine:
    made = Engine(Registry().policy_of, random.Random(1), **options)
    for each in nodes:
        made.handle(NodeUpdated(each), 0.0)
    return made


def different(number: int, gpus: int = 8, **more: Any) -> Request:
    """Return a request unlike the others: each asks for another amount of memory."""
    return request(f"r{number}", gpus, resources={"memory": number + 1}, **more)


def with_memory(name: str, **more: Any) -> Node:
    return node(name, 8, resources={"memory": 10**6}, **more)


def park_many(engine: Engine, count: int = MANY) -> None:
    for number in range(count):
        engine.handle(RequestAdded(different(number)), float(number))
    assert engine.counts()["parked"] == count


def take_in(engine: Engine, event: Event, now: float) -> list[Action]:
    actions = engine.handle(event, now)
    while engine.deadline(now) == now:
        actions += engine.handle(Tick(), now)
    return actions


def placed(actions: list[Action]) -> list[str]:
    return [action.request.key for action in actions if isinstance(action, Place)]


@pytest.mark.parametrize("wave", [1, 7, 512])
def test_parked_shapes_get_each_node_in_the_order_in_which_they_came(
    monkeypatch: pytest.MonkeyPatch, wave: int
) -> None:
    monkeypatch.setattr(unschedulable, "WAVE", wave)
    engine = engine_with(with_memory("a"))
    engine.handle(RequestAdded(request("first", 8)), 0.0)
    engine.handle(Placed("first"), 0.0)
    park_many(engine, 40)
    holder = "first"
    for number in range(10):
        assert placed(take_in(engine, RequestRemoved(holder), 100.0)) == [f"r{number}"]
        holder = f"r{number}"
        engine.handle(Placed(holder), 100.0)


def test_shapes_woken_in_vain_are_not_judged_again() -> None:
    """One of them takes the node; that the others do not fit shows in the numbers."""
    engine = engine_with(with_memory("a"))
    engine.handle(RequestAdded(request("first", 8)), 0.0)
    engine.handle(Placed("first"), 0.0)
    park_many(engine)
    before = engine.cluster.standings.rows_judged
    assert placed(take_in(engine, RequestRemoved("first"), 1000.0)) == ["r0"]
    judged = (engine.cluster.standings.rows_judged - before) / engine.cluster.inventory.size
    assert judged <= 2
    assert engine.counts()["parked"] == MANY - 1


def test_event_on_a_node_checks_one_wave_and_the_next_ticks_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unschedulable, "WAVE", 10)
    checked = list[int]()

    def check(filters: tuple[Filter, ...], cluster: Cluster, row: int) -> Filter | None:
        checked.append(row)
        return first_obstacle(filters, cluster, row)

    monkeypatch.setattr("gpu_orchestrator.engine.unschedulable.first_obstacle", check)
    engine = engine_with(with_memory("a"), max_decisions=1)
    for number in range(MANY):  # by the numbers each fits on the node, but no node has such a label
        engine.handle(RequestAdded(different(number, 1, labels={"zone": str(number)})), float(number))
    engine.handle(NodeUpdated(with_memory("a", labels={"zone": "nowhere"})), 1000.0)
    assert 10 <= len(checked) <= 20
    take_in(engine, Tick(), 1000.0)
    assert len(checked) == MANY
    engine.handle(RequestAdded(request("small", 1)), 1001.0)
    engine.handle(Placed("small"), 1001.0)
    take_in(engine, RequestRemoved("small"), 1002.0)
    assert len(checked) == MANY, "the node has not changed: it still cannot take them"
    assert placed(take_in(engine, NodeUpdated(with_memory("a", labels={"zone": "7"})), 1003.0)) == ["r7"]


def test_standings_of_fitting_shapes_outlive_many_that_fit_nowhere() -> None:
    engine = engine_with(with_memory("a"), with_memory("b"))
    for number in range(20):
        engine.handle(RequestAdded(request(f"hot{number}", 0, resources={"memory": 1000 + number})), 0.0)
    for number in range(1000):
        engine.handle(RequestAdded(different(number, 64)), 1.0)
    before = engine.cluster.standings.rows_judged
    for number in range(20):
        engine.handle(RequestAdded(request(f"again{number}", 0, resources={"memory": 1000 + number})), 2.0)
    assert engine.cluster.standings.rows_judged == before


def test_shapes_judged_between_ticks_are_bounded_and_none_is_forgotten() -> None:
    engine = engine_with(with_memory("a"), max_rows=1)
    size = engine.cluster.inventory.size
    actions = list[Action]()
    for number in range(5):
        actions += engine.handle(RequestAdded(different(number, 64)), 0.0)
    assert (len(actions), engine.cluster.standings.rows_judged) == (1, size)
    assert engine.deadline(0.0) == 0.0
    for ticks in range(1, 5):
        actions += engine.handle(Tick(), 0.0)
        assert engine.cluster.standings.rows_judged == size * (1 + ticks)
    assert [each.request.key for each in actions if isinstance(each, Refuse)] == [f"r{n}" for n in range(5)]
    assert engine.deadline(0.0) is None
