"""Milli-GPUs as the coordinator counts them: obeyed on nodes that list them, demanded of pods if so set."""

from typing import Any

import pytest

from gpu_orchestrator.api import names
from gpu_orchestrator.api.kubernetes import Pod
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import claim, node, pod, report

HEALTHY, SICK = {"id": 0, "uuid": "GPU-0"}, {"id": 0, "uuid": "GPU-0", "health": "Unhealthy"}
OTHER = {"id": 1, "uuid": "GPU-1"}


def counting(name: str, milligpu: int, **more: Any) -> Pod:
    """Return a pod as the webhook makes it."""
    amount = {names.MILLIGPU: str(milligpu)}
    return pod(
        name, containers=[{"name": "main", "resources": {"requests": amount, "limits": amount}}], **more
    )


def test_pods_bound_before_count_on_a_node_that_begins_to_list_milligpu() -> None:
    """A pod keeps the device that fell ill, so the kubelet would refuse the next one, and so do we."""
    world = World(node("a", 2))
    world.report(report("a", SICK, OTHER))
    world.pod(counting("first", 1000, gpus=1, node="a", allocated="a:0"))
    world.node(node("a", 2, gives={names.MILLIGPU: "1k"}))
    world.pod(counting("next", 1000, gpus=1))
    assert world.executor.jobs == []
    assert world.executor.refused["next"] == "0/1 nodes fit: 1 has too little gpu.scheduling/milligpu"
    world.pod(pod("unfilled", gpus=1))
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["unfilled"], (
        "leases decide, not numbers"
    )


def test_milligpu_is_ignored_on_a_node_that_does_not_list_it() -> None:
    world = World(node("a", 2))
    world.pod(counting("p", 64_000, gpus=1))
    (job,) = world.executor.jobs
    assert (names.MILLIGPU, 64_000) in job.placement.resources
    world.node(node("a", 2, gives={names.MILLIGPU: "2k"}))
    world.pod(counting("q", 1000, gpus=1))
    assert world.executor.refused["q"] == "0/1 nodes fit: 1 has too little gpu.scheduling/milligpu"


def test_claimed_pod_with_milligpu_is_no_device_plugins_pod() -> None:
    world = World(node("a", 2, gives={names.MILLIGPU: "2k"}))
    world.pod(counting("first", 1000, gpus=1, node="a", allocated="a:0"))
    world.pod(counting("next", 1000, gpus=1))
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["next"]


@pytest.mark.parametrize("requires", [False, True])
def test_pod_that_requests_too_little_waits_if_so_set(requires: bool) -> None:
    world = World(node("a", 4), requires_capacity=requires)
    world.claim(claim("two", count=2))
    world.pod(counting("short", 1000, claim="two"))
    told = world.executor.refused.get("short", "")
    assert ("requests 1000 gpu.scheduling/milligpu, and GpuClaim two counts for 2000" in told) == requires
    assert bool(world.executor.jobs) != requires


def test_bad_number_of_gpus_is_told_before_its_capacity() -> None:
    world = World(node("a", 4), requires_capacity=True)
    world.pod(pod("p", gpus="many"))
    assert world.executor.refused["p"].startswith("invalid GPU request")


def test_missing_claim_is_told_before_its_capacity_and_checked_when_it_exists() -> None:
    world = World(node("a", 4), requires_capacity=True)
    world.pod(counting("p", 1000, claim="late"))
    assert "does not exist" in world.executor.refused["p"]
    world.claim(claim("late", count=2))
    assert "counts for 2000" in world.executor.refused["p"]


def test_memory_is_measured_by_the_largest_device_as_it_is_now() -> None:
    """A pod created beside larger devices waits when they are gone, and goes on when they are back."""
    world = World(node("a", 0), requires_capacity=True)
    world.report(report("a", {"id": 0, "memoryMiB": 40_000}))
    world.claim(claim("part", exclusivity="Shared", memoryMiB=20_000))
    world.pod(counting("p", 250, claim="part"))
    assert "counts for 500" in world.executor.refused["p"]
    world.coordinator.recheck_capacity()
    assert world.executor.jobs == []
    world.report(report("a", {"id": 0, "memoryMiB": 80_000}))
    world.coordinator.recheck_capacity()
    assert [job.placement.memory_mib for job in world.executor.jobs] == [20_000]
