"""Pods that wait enter the engine in order, a few at a time, and their reasons are kept true at a bounded
cost."""

from typing import Any

import pytest

from gpu_orchestrator.apps.scheduler import scheduler
from gpu_orchestrator.apps.scheduler.actions import Bound
from gpu_orchestrator.apps.scheduler.cycle import pending
from tests.support.scale import Scale
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod


def asking(cpu: int) -> list[dict[str, object]]:
    return [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}]


def bound(world: World) -> list[str]:
    return [job.pod.metadata.name for job in world.executor.jobs]


def test_pods_held_back_before_open_enter_by_priority() -> None:
    world = World(node("a", 1), opened=False)
    world.pod(pod("early", gpus=1))
    world.pod(pod("urgent", gpus=1, priority=9))
    world.coordinator.open()
    assert bound(world) == ["urgent"]


def test_many_pods_enter_a_few_per_tick_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "ENTER_PER_TICK", 2)
    world = World(node("a", 8), opened=False)
    for name in "abcde":
        world.pod(pod(name, gpus=1))
    world.coordinator.open()
    assert bound(world) == ["a", "b"]
    world.pod(pod("later", gpus=1))
    world.pod_gone("c")
    assert bound(world) == ["a", "b"]
    assert world.executor.tick_at is not None
    world.coordinator.tick()
    assert bound(world) == ["a", "b", "d", "e"]
    world.coordinator.tick()
    assert bound(world) == ["a", "b", "d", "e", "later"]
    assert not world.coordinator.pending.has_entering


def test_pod_beyond_the_limit_waits_with_a_reason_and_comes_in_when_another_leaves() -> None:
    world = World(node("a", 8), max_waiting_shapes=2)
    for cpu in (100, 200, 300):
        world.pod(pod(f"p{cpu}", gpus=1, containers=asking(cpu)))
    world.pod(pod("equal", gpus=1, containers=asking(200)))
    why = world.executor.refused["p300"]
    assert why.startswith("2 different GPU requests of namespace default wait already")
    assert "maxWaitingShapes" in why
    assert "1 has too little cpu" in world.executor.refused["equal"]
    world.pod_gone("p100")
    assert world.executor.tick_at is not None
    world.coordinator.tick()
    assert "1 has too little cpu" in world.executor.refused["p300"]


def test_pod_with_an_unknown_strategy_leaves_the_engine() -> None:
    world = World(node("a", 0), max_waiting_shapes=2)
    for cpu in (100, 200, 300):
        world.pod(pod(f"p{cpu}", gpus=1, containers=asking(cpu)))
        world.pod(pod(f"p{cpu}", gpus=1, containers=asking(cpu), strategy="x" * 300))
        assert world.executor.refused[f"p{cpu}"].startswith("unknown strategy 'xxx")
        assert len(world.executor.refused[f"p{cpu}"]) < 250
    assert sum(world.coordinator.engine.counts().values()) == 0
    world.node(node("a", 8))
    assert bound(world) == []
    world.pod(pod("p100", gpus=1))
    assert bound(world) == ["p100"]


def test_long_reason_is_shortened() -> None:
    world = World(node("a", 1))
    world.pod(pod("p", gpus=1, containers=[{"resources": {"requests": {f"example.com/{'x' * 9999}": "1"}}}]))
    assert len(world.executor.refused["p"]) == pending.LONGEST_REASON


def test_pod_beyond_the_limit_that_would_fit_is_bound_when_it_comes_in() -> None:
    world = World(node("a", 8), max_waiting_shapes=1)
    world.pod(pod("unfit", gpus=1, containers=asking(100)))
    world.pod(pod("fits", gpus=1, containers=asking(1)))
    assert bound(world) == []
    world.pod_gone("unfit")
    world.coordinator.tick()
    assert bound(world) == ["fits"]


def test_bound_pod_leaves_its_place_to_the_next() -> None:
    world = World(node("a", 8), max_waiting_shapes=1)
    world.pod(pod("first", gpus=1))
    world.pod(pod("second", gpus=2))
    assert bound(world) == ["first"]
    world.bind(world.executor.jobs[0])
    world.coordinator.tick()
    assert bound(world) == ["first", "second"]


def test_pod_that_asks_for_something_else_gives_up_its_place() -> None:
    world = World(node("a", 8), max_waiting_shapes=1)
    world.pod(pod("p", gpus=1, containers=asking(100)))
    world.pod(pod("q", gpus=1, containers=asking(200)))
    world.pod(pod("p", gpus=1, containers=asking(300)))
    assert "maxWaitingShapes" in world.executor.refused["p"]
    world.coordinator.tick()
    assert "too little cpu" in world.executor.refused["q"]


@pytest.mark.parametrize("ticks_in_flight", [0, 6], ids=["enters when bound", "enters in flight"])
def test_pod_placed_while_its_changed_request_waits_to_enter_keeps_its_device(
    ticks_in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "ENTER_PER_TICK", 1)
    world = World(node("a", 1), max_waiting_shapes=2, uses_leases=False)
    world.pod(pod("blocker", gpus=1))
    world.bind(world.executor.jobs[0])
    world.pod(pod("p", gpus=1, containers=asking(1)))
    for cpu in range(500, 504):
        world.pod(pod(f"p{cpu}", gpus=1, containers=asking(cpu)))
    world.pod_gone("p500")  # another comes in for it, with the next tick
    changed: dict[str, Any] = {"gpus": 1, "containers": asking(2)}
    world.pod(pod("p", **changed))
    assert world.coordinator.pending.has_entering
    world.pod_gone("blocker")
    world.coordinator.freed("uid-blocker")
    assert bound(world) == ["blocker", "p"]
    for _ in range(ticks_in_flight):
        world.coordinator.tick()
    world.coordinator.done(Bound(world.executor.jobs[1]))
    world.pod(pod("p", node="a", allocated="a:0", **changed))
    for _ in range(6):
        world.coordinator.tick()
    assert world.free("a") == 0
    world.pod(pod("other", gpus=1, meta={"namespace": "others"}))
    assert bound(world) == ["blocker", "p"]


def test_refresh_judges_each_shape_once_and_only_after_a_change() -> None:
    world = World(node("a", 8))
    for number in range(40):
        world.pod(pod(f"p{number}", gpus=1, containers=asking(100 + number % 4)))
    refresh = world.coordinator.pending.refresh
    assert len(list(refresh(100))) <= 4
    assert list(refresh(100)) == []
    world.executor.refused.clear()
    world.node(node("a", 8, unschedulable=True))
    assert len(list(refresh(100))) == 4
    assert len(world.executor.refused) == 40


def test_refresh_reaches_every_shape_though_each_call_judges_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MAX_JUDGED", 3)
    world = World(node("a", 8))
    for number in range(9):
        world.pod(pod(f"p{number}", gpus=1, containers=asking(100 + number)))
    world.executor.refused.clear()
    world.node(node("a", 8, unschedulable=True))
    for calls in (1, 2, 3):
        assert len(list(world.coordinator.pending.refresh(100))) == 3
        assert len(world.executor.refused) == 3 * calls


def test_no_turn_of_the_loop_judges_more_than_its_share(scale: Scale) -> None:
    """What blocks the event loop is counted in rows of nodes that are judged between two breaths."""
    nodes, shapes = 5000, scale(test=200, accept=2000)
    world = World(
        *(node(f"n{number}", 8) for number in range(nodes)),
        opened=False,
        max_waiting_shapes=shapes,
        max_decisions=scheduler.MAX_DECISIONS,
        max_rows=scheduler.MAX_ROWS,
    )
    standings = world.coordinator.engine.cluster.standings
    size = world.coordinator.engine.cluster.inventory.size
    most = scheduler.MAX_ROWS + size
    for number in range(shapes):
        world.pod(pod(f"p{number}", gpus=8, containers=asking(1000 + number)))
    before = standings.rows_judged
    world.coordinator.open()
    while world.executor.tick_at is not None:
        assert standings.rows_judged - before <= most
        before = standings.rows_judged
        world.executor.tick_at = None
        world.coordinator.tick()
    assert len(world.executor.refused) == shapes
    world.node(node("n0", 8, unschedulable=True))
    before = standings.rows_judged
    for steps, _ in enumerate(world.coordinator.pending.refresh(100), 1):
        assert standings.rows_judged - before <= steps * size
    assert steps <= pending.MAX_JUDGED
