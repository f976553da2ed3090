"""Many parked requests with rules about other pods: all are looked at again after a change, and then the
engine rests, though not all that they depend on can be counted at once."""

import random

import pytest

from gpu_orchestrator.core import neighbours
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.pod_rules import Neighbour, PodRules, PodSelector, PodTerm
from gpu_orchestrator.core.request import Expression, Request
from gpu_orchestrator.engine import neighbour_watch, unschedulable
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    NodeUpdated,
    Place,
    PlacementObserved,
    RequestAdded,
    RequestRemoved,
    Tick,
)
from gpu_orchestrator.engine.neighbour_watch import FEW
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request

MANY = 10 * FEW  # more than the cluster keeps standings of


def apart(name: str, *apps: str) -> Request:
    terms = (PodTerm("zone", PodSelector(("team",), (Expression("app", "In", (app,)),))) for app in apps)
    return request(name, 1, rules=PodRules(apart=tuple(terms)))


def observed(name: str, app: str) -> PlacementObserved:
    return PlacementObserved(Placement(name, "office", neighbour=Neighbour("team", {"app": app})), None)


def in_zone(name: str, gpus: int) -> Node:
    return node(name, gpus, labels={"zone": "z"})


def rested(engine: Engine, patience: int = 4) -> list[str]:
    """Tick until the engine rests, and return what it placed."""
    placed: list[str] = []
    for _ in range(patience * MANY // FEW + 2):
        if engine.deadline(0.0) != 0.0:
            return placed
        placed += [each.request.key for each in engine.handle(Tick(), 0.0) if isinstance(each, Place)]
    raise AssertionError("the engine does not rest")


def engine_with_many_kinds(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Park many requests, each kept away by the pod `web` and about another kind of pod besides."""
    monkeypatch.setattr(neighbours, "MOST_KINDS", FEW)
    engine = Engine(Registry().policy_of, random.Random(1))
    for each in (in_zone("gpu", 1), in_zone("office", 0)):
        engine.handle(NodeUpdated(each), 0.0)
    engine.handle(observed("web", "web"), 0.0)
    for number in range(MANY):
        engine.handle(RequestAdded(apart(f"r{number}", f"app{number}", "web")), 0.0)
    assert engine.counts()["parked"] == MANY
    return engine


def test_engine_rests_though_more_kinds_are_asked_for_than_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_with_many_kinds(monkeypatch)
    engine.handle(observed("more", "web"), 0.0)
    assert rested(engine) == []


def test_pod_of_a_kind_that_is_not_counted_any_more_helps_when_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_with_many_kinds(monkeypatch)
    engine.handle(observed("db", "db"), 0.0)
    rested(engine)
    engine.handle(RequestAdded(apart("first", "db")), 0.0)
    for number in range(MANY):  # the kind that `first` is about is forgotten
        engine.handle(RequestAdded(apart(f"s{number}", f"other{number}", "web")), 0.0)
    rested(engine)
    placed = [each for each in engine.handle(RequestRemoved("db"), 0.0) if isinstance(each, Place)]
    assert [each.request.key for each in placed] + rested(engine) == ["first"]


def test_every_request_gets_its_turn_though_pods_come_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_many_kinds(monkeypatch)
    engine.handle(observed("db", "db"), 0.0)
    engine.handle(RequestAdded(apart("last", "db")), 0.0)
    rested(engine)
    actions = engine.handle(RequestRemoved("db"), 0.0)
    for number in range(2 * MANY // FEW):
        actions += engine.handle(observed(f"web{number}", "web"), 0.0)
    assert [each.request.key for each in actions if isinstance(each, Place)] == ["last"]


@pytest.mark.parametrize("event", [NodeUpdated(in_zone("gpu", 2)), observed("more", "web")])
def test_one_call_judges_a_bounded_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, event: NodeUpdated | PlacementObserved
) -> None:
    """A rule looks at all nodes even for one of them, so few requests with rules are looked at per call."""
    engine = engine_with_many_kinds(monkeypatch)
    rows = engine.cluster.inventory.size  # a request is looked at for a fourth of this
    monkeypatch.setattr(neighbour_watch, "FEW_ROWS", rows)
    monkeypatch.setattr(unschedulable, "WAVE_ROWS", rows)
    rested(engine, 8)
    judged, before = [], engine.cluster.rows_judged
    engine.handle(event, 0.0)
    for _ in range(MANY):
        judged.append(engine.cluster.rows_judged - before)
        before += judged[-1]
        if engine.deadline(0.0) != 0.0:
            break
        engine.handle(Tick(), 0.0)
    assert max(judged) <= 6 * rows
    assert sum(judged) >= MANY * rows // 8
