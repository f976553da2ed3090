"""PodGroups in the coordinator, and the conditions that are written of them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.controllers.pod_groups import PREEMPTED, PodGroupController
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod, pod_group
from tests.support.scripted_transport import Scripted, answer

GROUP = {"podGroupName": "g"}


def member(name: str, gpus: int = 8, **more: Any) -> Pod:
    return pod(name, gpus=gpus, schedulingGroup=GROUP, **more)


def gangs(world: World) -> list[list[str]]:
    return [[job.pod.metadata.name for job in jobs] for jobs in world.executor.gangs]


def test_members_wait_for_their_group_and_are_bound_together() -> None:
    world = World(node("a"), node("b"))
    world.pod(member("m1"))
    world.pod(member("m2"))
    assert world.executor.refused["m1"] == "PodGroup default/g does not exist; create it"
    world.pod_group(pod_group("g", 2))
    assert gangs(world) == [["m1", "m2"]]


def test_members_of_a_group_without_a_gang_are_bound_one_by_one() -> None:
    world = World(node("a"))
    world.pod_group(pod_group("g", None))
    world.pod(member("m1"))
    world.pod(member("m2"))
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["m1"]
    assert gangs(world) == []


def test_more_members_than_must_start_join_later() -> None:
    world = World(node("a"), node("b"))
    world.pod_group(pod_group("g", 2))
    for name in ("m1", "m2", "m3"):
        world.pod(member(name))
    assert gangs(world) == [["m1", "m2"]]
    for job in world.executor.gangs[0]:
        world.bind(job)
    assert "0 of 1 members fit together" in world.executor.refused["m3"]
    world.node(node("c"))
    world.now += 9.0
    world.coordinator.tick()
    assert gangs(world) == [["m1", "m2"], ["m3"]]


def test_group_and_gang_of_one_name_are_two() -> None:
    world = World(node("a"), node("b"))
    world.pod_group(pod_group("g", 2))
    world.pod(member("m1"))
    world.pod(pod("n1", gpus=8, gang="g", gang_size=2))
    assert gangs(world) == []
    world.pod(member("m2"))
    assert gangs(world) == [["m1", "m2"]]


def test_priority_of_the_group_counts_in_place_of_the_pods() -> None:
    world = World(node("a"))
    world.pod(pod("first", gpus=8, priority=5))
    world.pod_group(pod_group("g", 1, priority=9))
    world.pod(pod("other", gpus=8, priority=7))
    world.pod(member("m1", priority=1))
    waiting = world.coordinator.engine.waiting("uid-m1")
    assert waiting is not None
    assert waiting.priority == 9


def test_members_found_bound_count_when_their_group_is_shown_later() -> None:
    world = World(node("a"), node("b"), opened=False)
    world.pod(member("m1", node="a", allocated="a:0,1,2,3,4,5,6,7", phase="Running"))
    world.pod(member("m2"))
    world.coordinator.open()
    world.pod_group(pod_group("g", 2))
    assert gangs(world) == [["m2"]]


def test_pod_says_why_groups_cannot_be_read() -> None:
    world = World(node("a"), no_groups="the API server does not serve podgroups")
    world.pod(member("m1"))
    said = "the pod is in PodGroup default/g, and the API server does not serve podgroups"
    assert world.executor.refused["m1"] == said


# --- conditions -------------------------------------------------------------------------------------------


async def written(
    world: World, *happens: Callable[[PodGroupController], None], reason: str = ""
) -> list[Any]:
    """Return the conditions that are written of the group when this happens, as (type, status, reason,
    message)."""
    transport = Scripted(*[answer({"metadata": {"name": "g"}})] * 9)
    controller = PodGroupController(
        Client(transport),
        world.coordinator.stores,
        Pacer(asyncio.get_running_loop().time),
        scheduler_name="gpu-scheduler",
        reason=lambda uid: (reason, False),
        now=lambda: "2026-01-01T00:00:00Z",
    )
    for each in happens:
        each(controller)
    controller.queue.close()
    await controller.run()
    bodies = [json.loads(request.body or b"") for request in transport.requests]
    found = [each for body in bodies for each in body["status"]["conditions"]]
    return [(each["type"], each["status"], each["reason"], each["message"]) for each in found]


def shown(world: World, *, status: Any = None) -> Callable[[PodGroupController], None]:
    (change,) = world.pod_groups.put(pod_group("g", 2, status=status, disruptionMode="PodGroup"))
    return lambda controller: controller.on_pod_group(*change)


def conditions(**of: tuple[str, str, str]) -> dict[str, Any]:
    names = ("status", "reason", "message")
    return {
        "conditions": [
            {
                "type": kind,
                "lastTransitionTime": "2025-01-01T00:00:00Z",
                **dict(zip(names, each, strict=True)),
            }
            for kind, each in of.items()
        ]
    }


BOUND: dict[str, Any] = {"node": "a", "phase": "Running"}


def world_with(*pods: Pod) -> World:
    world = World(node("a"))
    for each in pods:
        world.pods.put(each)
    return world


async def test_group_is_scheduled_once_enough_pods_have_nodes() -> None:
    world = world_with(member("m1", **BOUND), member("m2", **BOUND), member("m3"))
    wanted = ("PodGroupScheduled", "True", "Scheduled", "2 pods have got nodes")
    assert await written(world, shown(world)) == [wanted]


async def test_group_that_waits_says_why() -> None:
    world = world_with(member("m1", **BOUND), member("m2"))
    wanted = ("PodGroupScheduled", "False", "Unschedulable", "gang g: 1 of 2")
    assert await written(world, shown(world), reason="gang g: 1 of 2") == [wanted]


async def test_scheduled_group_stays_scheduled() -> None:
    said = conditions(PodGroupScheduled=("True", "Scheduled", "2 pods have got nodes"))
    world = world_with(member("m1"))
    assert await written(world, shown(world, status=said), reason="no room") == []


async def test_same_words_are_written_once() -> None:
    said = conditions(PodGroupScheduled=("False", "Unschedulable", "no room"))
    said["conditions"][0]["observedGeneration"] = 1
    world = world_with(member("m1"))
    assert await written(world, shown(world, status=said), reason="no room") == []


async def test_evicted_group_is_a_target_of_disruption_until_its_pods_run_again() -> None:
    world = world_with(member("m1", **BOUND))
    said = conditions(PodGroupScheduled=("True", "Scheduled", "2 pods have got nodes"))
    evicted = await written(
        world, shown(world, status=said), lambda it: it.preempted(member("m1"), "for another")
    )
    assert evicted == [("DisruptionTarget", "True", PREEMPTED, "for another")]
    world = world_with(member("m3", **BOUND), member("m4", **BOUND))
    target = (
        said["conditions"] + conditions(DisruptionTarget=("True", PREEMPTED, "for another"))["conditions"]
    )
    again = await written(world, shown(world, status={"conditions": target}))
    assert again == [("DisruptionTarget", "False", "Scheduled", "its pods run again")]


@pytest.mark.parametrize("name", ["kube-scheduler", ""])
async def test_groups_of_other_schedulers_are_left_alone(name: str) -> None:
    theirs = [member(each, schedulerName=name, **BOUND) for each in ("m1", "m2")]
    world = world_with(*theirs)
    assert await written(world, shown(world), reason="no room") == []
