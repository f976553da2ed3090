"""Thousands of pods may wait for one claim, template or volume: they are checked a few at a time."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from gpu_orchestrator.adapters.breath import SLICE_S
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.apps.scheduler.actions import Failed
from tests.support.scheduler_harness import World, watch_judgements
from tests.support.scheduler_objects import claim, node, pod, volume, volume_claim

MANY = 40
NAMES = sorted(f"p{number}" for number in range(MANY))
ALONE = ("ReadWriteOncePod",)


def slow_world() -> World:
    """A world without GPUs, in which every few steps take as long as the event loop may be used."""
    looks = count()
    return World(node("a", 0), clock=lambda: next(looks) * SLICE_S / 20)


def mounts(name: str, *, gpus: int = 1, **more: Any) -> Pod:
    mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return pod(name, gpus=gpus, volumes=mounted, **more)


def tick(world: World) -> None:
    """Tick more often than is needed to check every pod."""
    for _ in range(MANY):
        world.coordinator.tick()


def toggled_claim(world: World, turn: int) -> None:
    world.claim(claim("c", reserved_for="someone" if turn % 2 else ""))


def toggled_template(world: World, turn: int) -> None:
    world.claim(claim("c", deleting=bool(turn % 2)))


def toggled_volume_claim(world: World, turn: int) -> None:
    world.volume_claim(volume_claim("data", "v", phase="Lost" if turn % 2 else "Bound"))


def toggled_volume(world: World, turn: int) -> None:
    labels, reference = {"turn": str(turn)}, {"namespace": "default", "name": "data"}
    world.free_volume(volume("v", labels=labels, claimRef=reference))


def toggled_user(world: World, turn: int) -> None:
    if turn % 2:
        world.pod(mounts("user", node="a", schedulerName="other"))
    else:
        world.pod_gone("user")


@pytest.mark.parametrize(
    ("wanting", "toggle"),
    [
        pytest.param(lambda name: pod(name, claim="c"), toggled_claim, id="claim"),
        pytest.param(lambda name: pod(name, claim_template="c"), toggled_template, id="template"),
        pytest.param(mounts, toggled_volume_claim, id="PersistentVolumeClaim"),
        pytest.param(mounts, toggled_volume, id="PersistentVolume"),
        pytest.param(mounts, toggled_user, id="user of a volume for one pod"),
    ],
)
def test_pods_that_want_the_same_are_checked_a_few_per_tick_and_once_for_many_changes(
    wanting: Callable[[str], Pod],
    toggle: Callable[[World, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = slow_world()
    world.claim(claim("c"))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    for name in NAMES:
        world.pod(wanting(name))
    tick(world)
    judged = watch_judgements(monkeypatch)
    toggle(world, 1)
    first = len(judged)
    assert 0 < first < MANY
    assert world.executor.tick_at is not None
    for turn in range(2, 6):
        toggle(world, turn)
    assert len(judged) == first
    tick(world)
    assert set(judged) == set(NAMES)
    assert len(judged) == MANY + first  # those that had been checked before the later changes: once more


def test_decision_about_a_pod_that_is_still_to_be_checked_is_dropped_if_it_is_out_of_date() -> None:
    world = slow_world()
    world.claim(claim("c"))
    for name in NAMES:
        world.pod(pod(name, claim_template="c"))
    tick(world)
    for change in world.claims.drop("default/c"):
        world.coordinator.on_claim(*change)
    world.node(node("b", MANY))
    assert world.executor.jobs == []
    for job in list(world.executor.abandoned):
        world.coordinator.done(Failed(job, "out of date"))
    tick(world)
    assert world.executor.jobs == []
    assert {name: "does not exist" in world.executor.refused[name] for name in NAMES} == dict.fromkeys(
        NAMES, True
    )
    assert world.free("b") == MANY


def test_decision_about_a_pod_that_is_still_to_be_checked_holds_if_it_asks_for_the_same() -> None:
    world = slow_world()
    world.volume(volume_claim("data", "v"), volume("v"))
    for name in NAMES:
        world.pod(mounts(name))
    tick(world)
    toggled_volume(world, 1)
    world.node(node("b", MANY))
    tick(world)
    assert sorted(job.pod.metadata.name for job in world.executor.jobs) == NAMES
    assert world.executor.abandoned == []


def test_end_of_a_pod_that_does_not_use_the_volume_checks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(node("a", 0))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    world.pod(mounts("user", node="a", schedulerName="other"))
    for name in NAMES:
        world.pod(mounts(name))
    judged = watch_judgements(monkeypatch)
    world.pod_gone("p0")
    world.pod(mounts("second", node="a", schedulerName="other"))
    world.pod_gone("second")
    assert judged == []
    assert "serves another pod (user)" in world.executor.refused["p1"]


def test_pod_that_wants_a_volume_for_one_pod_is_judged_without_a_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(node("a", 0))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    world.pod(mounts("user", node="a", schedulerName="other"))
    looked: list[str] = []
    original = world.pods.by

    def by(index: str, value: str) -> list[Pod]:
        looked.append(index)
        return original(index, value)

    monkeypatch.setattr(world.pods, "by", by)
    for name in NAMES:
        world.pod(mounts(name))
    assert looked == []
    assert "serves another pod (user)" in world.executor.refused["p1"]


def test_pods_learn_of_the_next_user_of_their_volume() -> None:
    world = World(node("a", 1))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    for name in ("first", "second"):
        world.pod(mounts(name, node="a", schedulerName="other"))
    world.pod(mounts("p"))
    assert "serves another pod (first)" in world.executor.refused["p"]
    world.pod_gone("first")
    assert "serves another pod (second)" in world.executor.refused["p"]
    world.pod_gone("second")
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["p"]


def test_volume_is_free_again_when_its_user_could_not_be_bound_or_ended_meanwhile() -> None:
    world = World(node("a", 1))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    for name in ("p", "q", "r"):
        world.pod(mounts(name))
    assert "serves another pod (p)" in world.executor.refused["q"]
    world.pod_gone("p")
    world.coordinator.done(Failed(world.executor.jobs[0], "ended"))
    world.coordinator.done(Failed(world.executor.jobs[1], "taken"))
    world.pod_gone("q")
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["p", "q", "r"]


def test_volume_of_a_pod_that_another_scheduler_binds_during_our_try_stays_in_use() -> None:
    world = World(node("a", 2), node("b", 2))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    world.pod(mounts("p"))
    (job,) = world.executor.jobs
    world.pod(mounts("p", node="b" if job.placement.node == "a" else "a"))
    world.coordinator.done(Failed(job, "bound by another scheduler"))
    world.pod(mounts("q"))
    assert "serves another pod (p)" in world.executor.refused["q"]
