"""Who is evicted for a pod of higher priority while pods, budgets and nodes change."""

import asyncio
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import pytest

from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.pod import PodStatus
from gpu_orchestrator.api.podgroup import PodGroup
from gpu_orchestrator.apps.scheduler.controllers.preemption import RETRY_S
from gpu_orchestrator.apps.scheduler.controllers.release import EndedPod
from gpu_orchestrator.apps.scheduler.cycle import preemptible
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.victims import Evictable, result_of
from gpu_orchestrator.engine.events import QueueUpdated
from tests.support.builders import whole
from tests.support.preemption_scene import QueueScene, Scene, budget, ends_in
from tests.support.scheduler_objects import claim, node, pod, pod_group

pytestmark = pytest.mark.looptime

T = TypeVar("T")


async def test_budget_that_allows_more_is_seen_although_the_cluster_is_the_same() -> None:
    scene = Scene()
    scene.server.budgets = [budget("keep", 0)]
    await scene.controller.check()
    scene.server.budgets = []
    await scene.controller.check()
    assert scene.server.evicted == []  # it rests
    await asyncio.sleep(RETRY_S)
    await scene.controller.check()
    assert len(scene.server.evicted) == 1


async def test_nobody_is_evicted_for_a_pod_that_has_gone_while_budgets_were_read() -> None:
    scene = Scene()
    scene.server.on_list = lambda: scene.world.pod_gone("high")
    await scene.controller.check()
    assert (scene.server.evicted, scene.server.nominated) == ([], [])


async def test_nobody_is_evicted_where_others_have_ended_while_budgets_were_read() -> None:
    """Their devices are not free yet, and will be soon."""
    scene = Scene()

    def ends() -> None:
        scene.world.pod_gone("low-0")
        scene.ended = [EndedPod("uid-low-0", "a", "default/low-0", 0.0)]

    scene.server.on_list = ends
    await scene.controller.check()
    assert (scene.server.evicted, scene.server.nominated) == ([], ["a"])
    scene.world.coordinator.freed("uid-low-0")
    await scene.controller.check()
    assert scene.state() == "in flight"


async def test_nomination_ends_when_its_node_is_closed() -> None:
    """Other schedulers keep the room while the pod shows the node."""
    scene = Scene()
    await scene.controller.check()
    assert scene.server.nominated == ["a"]
    scene.world.node(node("a", 2, unschedulable=True))
    await scene.controller.check()
    assert scene.server.nominated == ["a", None]
    assert "room/uid-high" not in scene.world.coordinator.engine.cluster.held_on("a")


@pytest.mark.parametrize(
    ("seconds", "evicted"),
    [
        pytest.param(30, 0, id="soon"),
        pytest.param(86_400, 1, id="its owner chose a grace period of a day"),
        pytest.param(-3600, 1, id="its owner keeps it by a finalizer"),
    ],
)
async def test_pod_that_was_deleted_is_waited_for_if_it_ends_soon(seconds: float, evicted: int) -> None:
    scene = Scene()
    scene.world.pod(scene.low(0, deletionTimestamp=ends_in(seconds)))
    await scene.controller.check()
    assert scene.server.evicted == ["low-1"][:evicted]


async def test_many_requests_that_find_no_victims_do_not_keep_another_from_preempting() -> None:
    scene = Scene()
    for at in range(20):
        scene.world.pod(
            pod(f"greedy-{at}", gpus=3 + at, priority=99, preemptionPolicy="PreemptLowerPriority")
        )
    for _ in range(3):
        await scene.controller.check()
    assert len(scene.server.evicted) == 1


def test_member_that_never_ends_does_not_keep_its_gang_from_being_evicted() -> None:
    stuck = {"deletionTimestamp": ends_in(-3600)}
    members = [
        pod(f"m{at}", node="a", gang="g", gang_size=3, gpus=1, meta=stuck if at == 2 else None)
        for at in range(3)
    ]
    (found,) = evictables(members)
    assert {each.key for each in found.placements} == {"uid-m0", "uid-m1"}


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        pytest.param(
            pod_group("g", 2, disruptionMode="PodGroup", priority=7), [{"uid-m0", "uid-m1"}], id="whole"
        ),
        pytest.param(pod_group("g", 2, priority=7), [{"uid-m0"}, {"uid-m1"}], id="each alone"),
    ],
)
def test_pods_of_a_group_are_evicted_as_it_says_and_by_its_priority(
    group: PodGroup, wanted: list[set[str]]
) -> None:
    members = [pod(f"m{at}", node="a", gpus=1, schedulingGroup={"podGroupName": "g"}) for at in range(2)]
    found = evictables(members, group)
    assert [{each.key for each in one.placements} for one in found] == wanted
    assert {each.priority for each in found} == {7}


def test_slice_loses_its_part_of_a_gpu() -> None:
    since = ends_in(-700)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    bound = pod("p", node="a", claim="c")
    bound = msgspec.structs.replace(bound, status=msgspec.convert({"conditions": [scheduled]}, PodStatus))
    of_slice = claim("c", exclusivity="MIG", migProfile="1g.10gb").spec
    (whole_gpu,), (part,) = evictables([bound]), evictables([bound], claimed=of_slice)
    assert whole_gpu.lost_gpu_s == pytest.approx(700, abs=5)
    assert part.lost_gpu_s == pytest.approx(99, abs=5)


def evictables(
    pods: list[Pod], group: PodGroup | None = None, claimed: GpuClaimSpec | None = None
) -> list[Evictable]:
    return result_of(
        preemptible.evictables(
            pods,
            lambda each: (whole(each.metadata.uid, "a", 0),),
            lambda each: claimed,
            lambda each: group,
            (),
            datetime.now(UTC),
        )
    )


async def test_queue_has_back_what_it_is_guaranteed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two of the lowest priority go, although they are not below the pod's; no more than is borrowed."""
    scene = QueueScene(monkeypatch)
    for at in range(3):
        scene.wants(f"ml-{at}")
    await scene.controller.check()
    assert scene.server.evicted == ["web-0", "web-1"]
    for at in range(2):
        scene.scene.world.pod_gone(f"web-{at}")
        scene.coordinator.freed(f"uid-web-{at}")
    await scene.controller.check()
    states = [scene.coordinator.engine.state_of(f"uid-ml-{at}") for at in range(3)]
    assert sorted(str(each) for each in states) == ["in flight", "in flight", "parked"]
    assert scene.server.evicted == ["web-0", "web-1"]


@pytest.mark.parametrize(
    ("more", "gpus", "evicted"),
    [
        pytest.param({"reclaim": "never"}, 1, [], id="the queue reclaims nothing"),
        pytest.param({"reclaim": "lower"}, 1, [], id="none of lower priority"),
        pytest.param({}, 3, [], id="more than it is guaranteed"),
        pytest.param({}, 2, ["web-0", "web-1"], id="two at once"),
    ],
)
async def test_terms_say_whether_others_are_evicted(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], gpus: int, evicted: list[str]
) -> None:
    scene = QueueScene(monkeypatch, **more)
    scene.wants("large", gpus)
    await scene.controller.check()
    assert scene.server.evicted == evicted


async def test_budget_keeps_what_a_queue_borrows(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = QueueScene(monkeypatch)
    scene.server.budgets = [budget("keep", 0)]
    scene.wants("ml-0")
    await scene.controller.check()
    assert scene.server.evicted == []


async def test_room_in_a_queue_above_is_made_on_any_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the queue above may use is used, though GPUs are free; the room waits for the victim's end."""
    scene = QueueScene(monkeypatch)
    scene.coordinator.feed(
        QueueUpdated(QueueTerms("org", limit={"*": 4000})),
        QueueUpdated(QueueTerms("ml", "org", guaranteed={"*": 2000}, reclaim="any")),
        QueueUpdated(QueueTerms("web", "org", guaranteed={"*": 2000})),
    )
    scene.scene.world.node(node("b", 2))
    scene.wants("ml-0")
    await scene.controller.check()
    await scene.controller.check()
    engine = scene.coordinator.engine
    assert (scene.server.evicted, engine.state_of("uid-ml-0")) == (["web-0"], "parked")
    scene.scene.world.pod_gone("web-0")
    scene.coordinator.freed("uid-web-0")
    await scene.controller.check()
    assert engine.state_of("uid-ml-0") == "in flight"


async def test_pod_in_no_queue_evicts_one_of_a_queue_by_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = QueueScene(monkeypatch)
    scene.scene.world.pod(pod("high", gpus=1, priority=10, preemptionPolicy="PreemptLowerPriority"))
    await scene.controller.check()
    assert scene.scene.whys == ["evicted to make room for default/high, which has priority 10"]
