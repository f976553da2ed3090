"""Gangs in the coordinator: all members are handed over to be bound, or none."""

from typing import Any

from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.actions import Failed
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod


def member(name: str, gpus: int = 8, *, gang: str = "g", size: int = 2, **more: Any) -> Pod:
    return pod(name, gpus=gpus, gang=gang, gang_size=size, **more)


def gangs(world: World) -> list[list[str]]:
    return [[job.pod.metadata.name for job in jobs] for jobs in world.executor.gangs]


def test_members_are_bound_together() -> None:
    world = World(node("a"), node("b"))
    world.pod(member("m1"))
    assert gangs(world) == []
    world.pod(member("m2"))
    assert gangs(world) == [["m1", "m2"]]
    assert world.executor.jobs == []
    for job in world.executor.gangs[0]:
        world.bind(job)
    assert (world.free("a"), world.free("b")) == (0, 0)


def test_gang_that_does_not_fit_leaves_its_room_to_others() -> None:
    world = World(node("a"))
    world.pod(member("m1"))
    world.pod(member("m2"))
    assert gangs(world) == []
    assert "gang default/g: 1 of 2 members fit together" in world.executor.refused["m1"]
    assert world.executor.refused["m1"] == world.executor.refused["m2"]
    world.pod(pod("single", gpus=8))
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["single"]


def test_gangs_of_two_namespaces_have_nothing_to_do_with_each_other() -> None:
    world = World(node("a"), node("b"))
    world.pod(member("m1"))
    world.pod(member("m2", meta={"namespace": "other"}))
    assert gangs(world) == []


def test_claim_of_a_member_is_assigned_when_its_gang_is_placed() -> None:
    world = World(node("a"), node("b"), node("c"))
    world.claim(claim("c", count=8, gangRef="g", gangSize=2))
    world.pod(member("m1"))
    world.pod(pod("m2", claim="c"))
    assert gangs(world) == [["m1", "m2"]]
    world.pod(pod("late", claim="c"))
    assert "serves another pod" in world.executor.refused["late"]


def test_all_members_of_a_gang_that_could_not_be_bound_are_tried_again() -> None:
    world = World(node("a"), node("b"))
    world.pod(member("m1"))
    world.pod(member("m2"))
    for job in world.executor.gangs[0]:
        world.coordinator.done(Failed(job, "a lease was taken"))
    assert (world.free("a"), world.free("b")) == (8, 8)
    world.now += 2.0
    world.coordinator.tick()
    assert gangs(world) == [["m1", "m2"], ["m1", "m2"]]


def test_member_found_bound_after_a_restart_counts() -> None:
    world = World(node("a"), node("b"), opened=False)
    world.pod(member("m1", node="a", allocated="a:0,1,2,3,4,5,6,7", phase="Running"))
    world.pod(member("m2"))
    world.coordinator.open()
    assert gangs(world) == [["m2"]]


def test_member_that_succeeded_counts_for_one_that_takes_the_place_of_another() -> None:
    world = World(node("a"), node("b"), opened=False)
    world.pod(member("done", node="a", phase="Succeeded"))
    world.pod(member("again"))
    world.coordinator.open()
    assert gangs(world) == [["again"]]
    world.pod_gone("done")
    assert world.coordinator.engine.state_of("uid-again") == "in flight"


def test_member_that_failed_does_not_count() -> None:
    world = World(node("a"), node("b"), opened=False)
    world.pod(member("failed", node="a", phase="Failed"))
    world.pod(member("again"))
    world.coordinator.open()
    assert gangs(world) == []


def test_member_without_a_size_is_told_what_to_add() -> None:
    world = World(node("a"))
    world.pod(pod("p", gpus=1, gang="g"))
    assert "add the annotation gpu.scheduling/gang-size" in world.executor.refused["p"]
