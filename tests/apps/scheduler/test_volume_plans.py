"""Pods whose volumes are bound with them: what the coordinator decides, promises and checks again."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from gpu_orchestrator.adapters.breath import SLICE_S
from gpu_orchestrator.apps.scheduler.actions import Bound, Failed
from gpu_orchestrator.apps.scheduler.cycle import pod_request
from gpu_orchestrator.core.request import Request
from tests.support.scheduler_harness import World, watch_judgements
from tests.support.scheduler_objects import node, pod, storage_class, volume, volume_claim

HOST = "kubernetes.io/hostname"
CLOUD = storage_class("cloud", provisioner="disk.example")


def host(name: str, gpus: int = 4) -> Any:
    return node(name, gpus, labels={HOST: name})


def mounts(name: str, *claims: str, gpus: int = 1) -> Any:
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return pod(name, gpus=gpus, volumes=volumes)


def local(name: str) -> Any:
    return volume_claim(name, of="local", storage="1Gi")


def local_world(*nodes: Any) -> World:
    world = World(*nodes)
    world.storage_class(storage_class("local"))
    return world


def tick(world: World) -> None:
    """Tick more often than is needed to check every pod."""
    for _ in range(60):
        world.coordinator.tick()


def drain(world: World) -> None:
    """Tick until nothing is to be checked."""
    while world.coordinator.volume_plans.has_more:
        world.coordinator.tick()


def test_pod_goes_to_the_node_of_a_free_volume_and_its_job_claims_it() -> None:
    world = local_world(host("a"), host("b"), host("c"))
    world.free_volume(volume("v", "b", of="local"))
    world.volume_claim(local("data"))
    world.pod(mounts("p", "data"))
    (job,) = world.executor.jobs
    assert job.placement.node == "b"
    assert job.volumes is not None
    assert [each.volume.metadata.name for each in job.volumes.uses] == ["v"]


def test_pod_without_waiting_claims_has_no_plan() -> None:
    world = World(host("a"))
    world.volume(volume_claim("data", "v"), volume("v", "a"))
    world.pod(mounts("p", "data"))
    world.pod(pod("q", gpus=1))
    assert [job.volumes for job in world.executor.jobs] == [None, None]


def test_two_pods_decided_at_once_get_two_volumes() -> None:
    world = local_world(host("a"), host("b"))
    world.free_volume(volume("v", "a", of="local"))
    world.free_volume(volume("w", "b", of="local"))
    for name in ("x", "y"):
        world.volume_claim(local(name))
    world.pod(mounts("p", "x"))
    world.pod(mounts("q", "y"))
    used = [job.volumes.uses[0].volume.metadata.name for job in world.executor.jobs if job.volumes]
    assert sorted(used) == ["v", "w"]


def test_volume_of_a_failed_job_is_for_the_next() -> None:
    world = local_world(host("a"))
    world.free_volume(volume("v", "a", of="local"))
    for name in ("x", "y"):
        world.volume_claim(local(name))
    world.pod(mounts("p", "x"))
    world.pod(mounts("q", "y"))
    (job,) = world.executor.jobs
    assert "no free PersistentVolume" in world.executor.refused["q"]
    drain(world)
    world.pod_gone("p")
    world.coordinator.done(Failed(job, "the pod was deleted"))
    drain(world)
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["p", "q"]


@pytest.mark.parametrize("first", ["class", "volume", "claim"])
def test_pod_that_lacks_something_is_placed_when_it_comes(first: str) -> None:
    world = World(host("a"))
    show: dict[str, Callable[[], None]] = {
        "class": lambda: world.storage_class(storage_class("local")),
        "volume": lambda: world.free_volume(volume("v", "a", of="local")),
        "claim": lambda: world.volume_claim(local("data")),
    }
    last = show.pop(first)
    for each in show.values():
        each()
    world.pod(mounts("p", "data"))
    drain(world)
    assert world.executor.jobs == []
    last()
    drain(world)
    assert [job.placement.node for job in world.executor.jobs] == ["a"]


def test_volume_that_becomes_free_is_noticed() -> None:
    world = local_world(host("a"))
    used = {"namespace": "default", "name": "other"}
    world.free_volume(volume("v", "a", of="local", phase="Bound", claimRef=used))
    world.volume_claim(local("data"))
    world.pod(mounts("p", "data"))
    drain(world)
    assert world.executor.jobs == []
    world.free_volume(volume("v", "a", of="local"))
    drain(world)
    assert len(world.executor.jobs) == 1


def test_claim_steers_to_the_node_that_was_selected_for_it() -> None:
    world = World(host("a", 8), host("b", 1))
    world.storage_class(CLOUD)
    selected = {"annotations": {"volume.kubernetes.io/selected-node": "b"}}
    world.volume_claim(volume_claim("data", of="cloud", storage="1Gi", meta=selected))
    world.pod(mounts("p", "data"))
    assert [job.placement.node for job in world.executor.jobs] == ["b"]


def test_pods_that_share_an_unbound_claim_go_one_after_the_other() -> None:
    world = World(host("a"), host("b"))
    world.storage_class(CLOUD)
    world.volume_claim(volume_claim("data", of="cloud", storage="1Gi"))
    world.pod(mounts("p", "data"))
    world.pod(mounts("q", "data"))
    (job,) = world.executor.jobs
    assert "is being bound for another pod" in world.executor.refused["q"]
    other = "b" if job.placement.node == "a" else "a"
    world.volume(volume_claim("data", "v", of="cloud"), volume("v", other, job.placement.node))
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["p", "q"]
    assert world.executor.jobs[1].volumes is None
    world.coordinator.done(Bound(job))


def test_sharing_pod_is_tried_when_the_first_has_failed() -> None:
    world = World(host("a"))
    world.storage_class(CLOUD)
    world.volume_claim(volume_claim("data", of="cloud", storage="1Gi"))
    world.pod(mounts("p", "data"))
    world.pod(mounts("q", "data"))
    drain(world)
    (job,) = world.executor.jobs
    world.pod_gone("p")
    world.coordinator.done(Failed(job, "the pod was deleted"))
    assert [each.pod.metadata.name for each in world.executor.jobs] == ["p", "q"]


def test_job_that_finds_its_volume_gone_is_abandoned_and_the_pod_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = local_world(host("a"), host("b"))
    world.free_volume(volume("v", "a", of="local"))
    world.volume_claim(local("data"))
    plans = world.coordinator.volume_plans
    taken = world.coordinator.stores.promised.volumes
    choose = plans.make

    def make(pod: Any, node: str) -> Any:
        taken["v"] = "default/x"
        return choose(pod, node)

    monkeypatch.setattr(plans, "make", make)
    world.pod(mounts("p", "data"))
    assert world.executor.jobs == []
    (job,) = world.executor.abandoned
    world.coordinator.done(Failed(job, "gone"))
    assert "no free PersistentVolume" in world.executor.refused["p"]
    assert world.free("a") == 4


def test_many_pods_are_checked_a_few_per_tick_and_once_for_many_volumes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = count()
    world = World(host("a", 0), clock=lambda: next(looks) * SLICE_S / 20)
    world.storage_class(storage_class("local"))
    for number in range(60):
        world.volume_claim(local(f"c{number}"))
        world.pod(mounts(f"p{number}", f"c{number}"))
    tick(world)
    judged = watch_judgements(monkeypatch)
    for number in range(100):
        world.free_volume(volume(f"v{number}", "a", of="local"))
    assert judged == []
    world.coordinator.tick()
    assert 0 < len(judged) < 60
    tick(world)
    assert sorted(judged) == sorted(f"p{number}" for number in range(60))


def test_pods_that_wait_for_volumes_do_not_hold_up_the_others() -> None:
    world = World(host("a"), max_in_flight=1)
    world.storage_class(CLOUD)
    for name in ("x", "y"):
        world.volume_claim(volume_claim(name, of="cloud", storage="1Gi"))
        world.pod(mounts(name, name))
    world.pod(pod("plain", gpus=1))
    world.pod(pod("next", gpus=1))
    world.coordinator.tick()
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["x", "y", "plain"]


def test_changed_volume_offers_what_it_is_now() -> None:
    world = local_world(host("a"), host("b"))
    world.free_volume(volume("v", "a", of="local"))
    world.volume_claim(local("data"))
    stores = world.coordinator.stores
    (before,) = stores.free_volumes("local", "default/data")
    assert stores.free_volumes("local", "default/data")[0] is before
    world.free_volume(volume("v", "b", of="local", storage="2Gi"))
    (after,) = stores.free_volumes("local", "default/data")
    assert (after.place.host, after.capacity) == ("b", 2 * 2**30)


def test_volume_of_another_class_checks_nobody() -> None:
    world = local_world(host("a"))
    world.volume_claim(local("data"))
    world.pod(mounts("p", "data"))
    drain(world)
    world.free_volume(volume("v", "a", of="other"))
    drain(world)
    assert world.executor.jobs == []


def test_new_volumes_count_against_the_limit_of_their_driver() -> None:
    world = World(host("a"))
    world.storage_class(CLOUD)
    world.volume_claim(volume_claim("data", of="cloud", storage="1Gi"))
    request = pod_request.request_of(mounts("p", "data"), None, world.coordinator.stores)
    assert isinstance(request, Request)
    assert request.shape.volumes == (("disk.example", "default/data"),)


ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"


def test_alternatives_of_many_bound_volumes_do_not_multiply() -> None:
    """Each has two for its zone and two for its region: the product would have 4**64."""
    world = World(node("far", labels={ZONE: "y", REGION: "r"}), node("a", labels={ZONE: "z", REGION: "r"}))
    names = [f"c{number}" for number in range(64)]
    for number, name in enumerate(names):
        labels = {ZONE: f"z__z{number}", REGION: f"r__r{number}"}
        world.volume(volume_claim(name, f"v{number}"), volume(f"v{number}", labels=labels))
    request = pod_request.request_of(mounts("p", *names), None, world.coordinator.stores)
    assert isinstance(request, Request)
    assert [len(each) for each in request.shape.reach] == [2] * 128
    world.pod(mounts("p", *names))
    assert [job.placement.node for job in world.executor.jobs] == ["a"]


def test_volumes_of_one_place_and_a_volume_mounted_often_count_once() -> None:
    world = World(node("a", labels={ZONE: "z"}))
    for name in ("c", "d"):
        world.volume(volume_claim(name, f"v-{name}"), volume(f"v-{name}", labels={ZONE: "z"}))
    request = pod_request.request_of(mounts("p", *["c"] * 20, "d"), None, world.coordinator.stores)
    assert isinstance(request, Request)
    assert len(request.shape.reach) == 1


def test_node_that_cannot_reach_a_volume_is_told_as_that() -> None:
    world = World(node("a", labels={ZONE: "y"}))
    world.volume(volume_claim("data", "v"), volume("v", labels={ZONE: "z"}))
    world.pod(mounts("p", "data"))
    assert world.executor.refused["p"] == "0/1 nodes fit: 1 cannot reach the pod's volumes"
