"""What very many parked shapes cost: an event looks at a bounded number of them, and the order is kept."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide_among
from gpu_orchestrator.core.filters import Filter
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.core.standing import passing
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
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.engine.unschedulable import Key
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request

MANY = 300
Rows = tuple[list[int], list[int]]
Filters = tuple[Filter, ...]


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

    def check(key: Key, filters: Filters, cluster: Cluster, rows: list[int]) -> Rows:
        checked.extend(rows)
        return passing(key, filters, cluster, rows)

    monkeypatch.setattr("gpu_orchestrator.engine.unschedulable.passing", check)
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


@pytest.mark.parametrize("owners", [1, 7])
def test_completion_costs_one_decision_whatever_number_of_shapes_waits(
    monkeypatch: pytest.MonkeyPatch, owners: int
) -> None:
    """A slot and a device become free: all of them could have it, one gets it, the others are not asked."""
    decided, checked = list[str](), list[int]()

    def count_decision(rows: list[int], asked: Request, *others: Any) -> Placement | Refusal:
        decided.append(asked.key)
        return decide_among(rows, asked, *others)

    def count_check(key: Key, filters: Filters, cluster: Cluster, rows: list[int]) -> Rows:
        checked.extend(rows)
        return passing(key, filters, cluster, rows)

    engine = engine_with(with_memory("a"), with_memory("b"), order=FairBands(), max_decisions=200)
    for number in range(16):
        engine.handle(RequestAdded(request(f"runs{number}", 1)), 0.0)
        engine.handle(Placed(f"runs{number}"), 0.0)
    waiting = [different(number, 1, tenant=f"t{number % owners}") for number in range(MANY)]
    for number, each in enumerate(waiting):
        engine.handle(RequestAdded(each), float(number))
    monkeypatch.setattr("gpu_orchestrator.engine.decisions.decide", None)
    monkeypatch.setattr("gpu_orchestrator.engine.decisions.decide_among", count_decision)
    monkeypatch.setattr("gpu_orchestrator.engine.unschedulable.passing", count_check)
    for number in range(16):
        assert len(placed(take_in(engine, RequestRemoved(f"runs{number}"), 1000.0))) == 1
    assert (len(decided), len(checked)) == (16, 16)
    assert engine.counts()["parked"] == MANY - 16


def test_node_without_memory_for_any_shape_is_offered_to_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of devices counts among the numbers: a slot alone helps nobody."""
    monkeypatch.setattr("gpu_orchestrator.engine.unschedulable.passing", None)
    engine = engine_with(node("a", 2, memory_mib=81_000, resources={"slots": 4}))
    full = request("full", 2, share=1, memory_mib=80_000, resources={"slots": 1})
    engine.handle(RequestAdded(full), 0.0)
    engine.handle(RequestAdded(request("small", 0, resources={"slots": 1})), 0.0)
    for each in ("full", "small"):
        engine.handle(Placed(each), 0.0)
    for number in range(MANY):
        asked = request(f"r{number}", 1, share=1, memory_mib=2_000 + number, resources={"slots": 1})
        engine.handle(RequestAdded(asked), 1.0)
    assert engine.counts()["parked"] == MANY
    assert take_in(engine, RequestRemoved("small"), 2.0) == []


def test_steady_events_on_one_node_do_not_keep_the_last_shapes_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every event changes the node, so all shapes could fit again; a call checks two of forty."""
    monkeypatch.setattr(unschedulable, "WAVE", 2)
    engine = engine_with(with_memory("a", labels={"zone": "none"}))
    for number in range(40):
        engine.handle(RequestAdded(different(number, 1, labels={"zone": str(number)})), float(number))
    found = list[str]()
    for number in range(80):
        changed = with_memory("a", labels={"zone": "39", "seen": str(number)})
        found += placed(engine.handle(NodeUpdated(changed), 100.0 + number))
    assert found == ["r39"]


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


def test_shape_that_fits_nowhere_by_the_numbers_is_parked_without_a_closer_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads why: ten thousand new shapes are not judged on each of a thousand full nodes."""
    engine = engine_with(with_memory("a"), explains=False)
    engine.handle(RequestAdded(request("full", 8)), 0.0)
    engine.handle(Placed("full"), 0.0)
    monkeypatch.setattr("gpu_orchestrator.engine.decisions.decide", None)
    for number in range(MANY):
        (refused,) = engine.handle(RequestAdded(different(number, 1)), 1.0)
        assert isinstance(refused, Refuse)
        assert refused.refusal.message == "0/1 nodes fit: 1 has too little free"
    assert engine.counts()["parked"] == MANY
    why = engine.why("r7")
    assert why is not None
    assert why.nearest is not None, "who asks is told more"
    assert len(placed(take_in(engine, RequestRemoved("full"), 2.0))) == 8
