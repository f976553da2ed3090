"""Who is evicted for a gang, all of which must start together."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from math import inf
from typing import Any

import pytest

from gpu_orchestrator.adapters.breath import SLICE_S
from gpu_orchestrator.apps.scheduler.actions import Bound, Failed
from gpu_orchestrator.apps.scheduler.controllers import preemption
from gpu_orchestrator.apps.scheduler.controllers.preemption import RETRY_S
from tests.support.preemption_scene import QueueScene, Scene, budget, ends_in
from tests.support.scheduler_objects import node, pod

pytestmark = pytest.mark.looptime


def a_scene(
    members: int = 2, *, low: int = 3, clock: Callable[[], float] | None = None, **more: Any
) -> Scene:
    """A node with as many GPUs as pods that hold them, and a gang of high priority, a GPU each."""
    scene = Scene(gpus=low, pods=0, clock=clock)
    for at in range(low):
        scene.world.pod(scene.low(at, bound=False))
        scene.world.coordinator.done(Bound(scene.world.executor.jobs[at]))
        scene.world.pod(scene.low(at))
    for at in range(members):
        scene.world.pod(member(at, **{"gang_size": members, **more}))
    return scene


def member(at: int, **more: Any) -> Any:
    terms = {"priority": 10, "gang": "g", "preemptionPolicy": "PreemptLowerPriority", **more}
    return pod(terms.pop("name", f"m{at}"), gpus=1, **terms)


def states(scene: Scene, *names: str) -> list[str | None]:
    return [scene.world.coordinator.engine.state_of(f"uid-{name}") for name in names]


def rooms(scene: Scene) -> list[str]:
    return sorted(
        key for key in scene.world.coordinator.engine.cluster.held_on("a") if key.startswith("room/")
    )


async def test_as_many_go_as_the_gang_needs_and_it_starts_when_all_have_ended() -> None:
    scene = a_scene(2)
    await scene.controller.check()
    assert len(scene.server.evicted) == 2
    assert scene.server.nominated == ["a", "a"]
    first, second = scene.server.evicted
    for name in (first, second):
        assert states(scene, "m0", "m1") == ["parked", "parked"]
        scene.world.pod_gone(name)
        scene.world.coordinator.freed(f"uid-{name}")
        await scene.controller.check()
    assert states(scene, "m0", "m1") == ["in flight", "in flight"]
    assert len(scene.server.evicted) == 2
    assert rooms(scene) == []


async def test_others_do_not_get_what_the_victims_leave() -> None:
    """One that came before the gang, with the same priority, waits for the GPU that is freed first, too."""
    scene = a_scene(2)
    await scene.controller.check()
    scene.world.pod(pod("other", gpus=1, priority=10, preemptionPolicy="Never"))
    gone = scene.server.evicted[0]
    scene.world.pod_gone(gone)
    scene.world.coordinator.freed(f"uid-{gone}")
    await scene.controller.check()
    assert states(scene, "other") == ["parked"]


async def test_nobody_goes_if_a_budget_keeps_one_of_those_that_must() -> None:
    scene = a_scene(3)
    scene.server.budgets = [budget("keep", 2)]
    await scene.controller.check()
    assert scene.server.evicted == []
    scene.server.budgets = [budget("keep", 3)]
    await asyncio.sleep(RETRY_S)
    await scene.controller.check()
    assert len(scene.server.evicted) == 3


async def test_gang_with_a_member_that_may_not_preempt_waits() -> None:
    scene = a_scene(1, gang_size=2)
    scene.world.pod(member(1, gang_size=2, preemptionPolicy="Never"))
    await scene.controller.check()
    assert scene.server.evicted == []


async def test_only_those_are_evicted_for_that_must_start_together() -> None:
    scene = a_scene(3, gang_size=3, gang_min=2)
    await scene.controller.check()
    assert len(scene.server.evicted) == 2


async def test_room_is_let_go_when_a_member_is_deleted() -> None:
    scene = a_scene(2)
    await scene.controller.check()
    assert rooms(scene) == ["room/uid-m0", "room/uid-m1"]
    scene.world.pod_gone("m1")
    await scene.controller.check()
    assert rooms(scene) == []
    assert scene.server.nominated == ["a", "a", None]


async def test_member_that_is_replaced_costs_no_more_evictions() -> None:
    """The victims have long grace periods: nobody else would wait for them."""
    scene = a_scene(2, low=6)
    await scene.controller.check()
    evicted = [int(each.removeprefix("low-")) for each in scene.server.evicted]
    for at in evicted:
        scene.world.pod(scene.low(at, deletionTimestamp=ends_in(600)))
    for again in range(2):
        scene.world.pod_gone("m1" if not again else "again0")
        await scene.controller.check()
        scene.world.pod(member(1, name=f"again{again}", gang_size=2))
        await scene.controller.check()
        assert (len(scene.server.evicted), len(rooms(scene))) == (2, 2)


async def test_room_is_let_go_when_its_node_is_closed() -> None:
    scene = a_scene(2)
    await scene.controller.check()
    scene.world.node(node("a", 3, unschedulable=True))
    await scene.controller.check()
    assert (rooms(scene), scene.server.nominated) == ([], ["a", "a", None, None])


async def test_running_members_are_not_evicted_for_those_that_join_them() -> None:
    """The running one has a lower priority than the other one, and is the only one that could go."""
    scene = Scene(gpus=1, pods=0)
    scene.world.pod(member(0, gang_size=2, gang_min=1, priority=1))
    scene.world.coordinator.done(Bound(scene.world.executor.gangs[0][0]))
    running = member(0, gang_size=2, gang_min=1, priority=1, node="a", allocated="a:0", phase="Running")
    scene.world.pod(running)
    scene.world.pod(member(1, gang_size=2, gang_min=1, priority=10))
    await scene.controller.check()
    assert states(scene, "m1") == ["parked"]
    assert scene.server.evicted == []


async def test_new_leader_waits_for_what_ends_and_evicts_no_more() -> None:
    scene = a_scene(2)
    for at in range(2):
        scene.world.pod(scene.low(at, deletionTimestamp=ends_in(30)))
    await scene.controller.check()
    assert (scene.server.evicted, rooms(scene)) == ([], ["room/uid-m0", "room/uid-m1"])


async def test_gang_that_would_not_fit_evicts_nobody() -> None:
    scene = a_scene(4)
    await scene.controller.check()
    assert scene.server.evicted == []


@pytest.mark.parametrize(
    ("members", "evicted"),
    [
        pytest.param(2, ["web-0", "web-1"], id="what it is guaranteed"),
        pytest.param(3, [], id="more than it is guaranteed"),
    ],
)
async def test_queue_of_gangs_has_back_what_it_is_guaranteed(
    monkeypatch: pytest.MonkeyPatch, members: int, evicted: list[str]
) -> None:
    scene = QueueScene(monkeypatch)
    for at in range(members):
        meta = {"labels": {"queue": "ml"}}
        made = pod(f"m{at}", gpus=1, gang="g", gang_size=members, meta=meta, preemptionPolicy="Never")
        scene.scene.world.pod(made)
    await scene.controller.check()
    assert scene.server.evicted == evicted
    for name in evicted:
        scene.scene.world.pod_gone(name)
        scene.coordinator.freed(f"uid-{name}")
    await scene.controller.check()
    wanted = "in flight" if evicted else "parked"
    assert states(scene.scene, *(f"m{at}" for at in range(members))) == [wanted] * members


async def test_gang_whose_places_could_not_be_taken_rests_and_evicts_nobody() -> None:
    """Its bind fails each time, and there is room: to keep that at once would try it again each second."""
    scene = a_scene(0, low=1)
    scene.world.node(node("a", 3))
    for at in range(2):
        scene.world.pod(member(at, gang_size=2))
    for job in scene.world.executor.gangs[0]:
        scene.world.coordinator.done(Failed(job, "refused"))
    await scene.controller.check()
    assert (states(scene, "m0", "m1"), rooms(scene)) == (["parked", "parked"], [])
    assert len(scene.world.executor.gangs) == 1


async def test_gang_whose_places_others_took_meanwhile_evicts_them_when_it_has_rested() -> None:
    scene = a_scene(0, low=1)
    scene.world.node(node("a", 3))
    for at in range(2):
        scene.world.pod(member(at, gang_size=2))
    for at in (1, 2):
        scene.world.pod(scene.low(at, bound=False))
    for job in scene.world.executor.gangs[0]:
        scene.world.coordinator.done(Failed(job, "refused"))
    for at, job in enumerate(scene.world.executor.jobs[1:], 1):
        scene.world.coordinator.done(Bound(job))
        scene.world.pod(scene.low(at))
    await scene.controller.check()
    assert scene.server.evicted == []
    scene.world.now += 60.0
    scene.world.coordinator.tick()
    await scene.controller.check()
    assert len(scene.server.evicted) == 2


@pytest.mark.parametrize("first", ["may", "asks"])
async def test_equal_gangs_may_evict_each_as_its_own_members_may(first: str) -> None:
    """Of two gangs of one kind, one has a member that may not preempt: not the one that is looked at."""
    scene = a_scene(0, low=4)
    for name in sorted(("may", "asks"), key=lambda each: each != first):
        for at in range(2):
            more = {"preemptionPolicy": "Never"} if (name, at) == ("asks", 1) else {}
            scene.world.pod(member(at, name=f"{name}{at}", gang=name, gang_size=2, **more))
    await scene.controller.check()
    assert len(scene.server.evicted) == 2
    assert rooms(scene) == ["room/uid-may0", "room/uid-may1"]


async def test_gang_whose_members_are_in_two_queues_evicts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that must start are in one queue, but the gang is refused as a whole: its room would stay empty,
    be taken by others, and be made again."""
    scene = QueueScene(monkeypatch)
    for at, queue in enumerate(("ml", "ml", "web")):
        meta = {"labels": {"queue": queue}}
        made = pod(f"m{at}", gpus=1, gang="g", gang_size=3, gang_min=2, meta=meta, preemptionPolicy="Never")
        scene.scene.world.pod(made)
    await scene.controller.check()
    assert scene.server.evicted == []


async def test_no_more_go_when_the_gang_changes_while_they_are_evicted() -> None:
    scene = a_scene(3)
    scene.server.on_evict = lambda: scene.world.pod_gone("m2")
    await scene.controller.check()
    assert len(scene.server.evicted) == 1
    assert rooms(scene) == []


async def test_others_run_while_many_gangs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pod goes for any of them: to look at each takes longer than the loop may wait."""
    monkeypatch.setattr(preemption, "LONGEST_PASS_S", inf)
    moments = count(0.0, SLICE_S)
    scene = a_scene(0, low=1, clock=lambda: next(moments))
    for gang in range(20):
        for at in range(2):
            scene.world.pod(member(at, name=f"g{gang}-{at}", gang=f"g{gang}", gang_size=2, priority=gang + 1))

    assert await beats_in(scene.controller.check()) >= 20
    assert scene.server.evicted == []


async def test_others_run_while_the_rooms_of_a_large_gang_are_looked_at() -> None:
    moments = count(0.0, SLICE_S)
    scene = a_scene(20, low=20, clock=lambda: next(moments))
    await scene.controller.check()
    assert len(rooms(scene)) == 20
    assert await beats_in(scene.controller.check()) >= 10
    assert len(rooms(scene)) == 20


async def beats_in(work: Coroutine[Any, Any, None]) -> int:
    """Return how often others could run meanwhile."""
    beats = count()

    async def beat() -> None:
        while True:
            next(beats)
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    await work
    beating.cancel()
    return next(beats)
