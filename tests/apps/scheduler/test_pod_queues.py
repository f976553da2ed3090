"""Which queue a pod belongs to, and that what it holds counts there, also for the next scheduler."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import deviceleases
from gpu_orchestrator.api.deviceleases import DeviceRef, Holder
from gpu_orchestrator.api.kubernetes import Lease, Pod
from gpu_orchestrator.apps.scheduler.accounting.pod_queues import NoQueue
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import gpu_queue, namespace, node, pod

EXPRESSION: dict[str, Any] = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}


def labelled(name: str, queue: str = "", **more: Any) -> Pod:
    return pod(name, gpus=1, meta={"labels": {"gpu.scheduling/queue": queue} if queue else {}}, **more)


def world_of(*queues: Any, team: str = "a", **config: Any) -> World:
    world = World(node("n"), **config)
    if team:
        world.namespace(namespace("default", team=team))
    for each in queues:
        world.queue(each)
    return world


def queue_of(world: World, name: str) -> str | None:
    waiting = world.coordinator.engine.waiting(f"uid-{name}")
    return waiting.queue if waiting else None


def used(world: World) -> dict[str, int]:
    """Return the milli-GPUs that each queue uses, if any."""
    found = world.coordinator.engine.queue_usages()
    return {name: usage.used["*"] for name, usage in found.items() if usage.used["*"]}


@pytest.mark.parametrize(
    ("queues", "label", "wanted"),
    [
        pytest.param([], "", "", id="no queue at all"),
        pytest.param([], "any", "", id="no queue at all, and a label"),
        pytest.param([gpu_queue("one", "a")], "", "one", id="selected"),
        pytest.param([gpu_queue("one", "b")], "", "", id="others selected"),
        pytest.param([gpu_queue("one")], "", "", id="queue without a selector"),
        pytest.param([gpu_queue("one", namespaceSelector={})], "", "one", id="queue of all namespaces"),
        pytest.param([gpu_queue("two", "a"), gpu_queue("one", "a")], "", "one", id="first by name"),
        pytest.param(
            [gpu_queue("all", namespaceSelector={}), gpu_queue("one", "a")], "", "one", id="most conditions"
        ),
        pytest.param([gpu_queue("one", "a"), gpu_queue("two", "a")], "two", "two", id="named"),
        pytest.param([gpu_queue("one", namespaceSelector=EXPRESSION)], "", "one", id="expression"),
        pytest.param([gpu_queue("one", "b")], "default", "", id="default, and none selects"),
    ],
)
def test_queue_of_a_pod(queues: list[Any], label: str, wanted: str) -> None:
    world = world_of(*queues)
    assert world.coordinator.queues.of_waiting(labelled("p", label)) == wanted


@pytest.mark.parametrize(
    ("queues", "label", "message"),
    [
        pytest.param(
            [gpu_queue("one", "a"), gpu_queue("two", "b")],
            "two",
            "label gpu.scheduling/queue names two, and no queue of this name selects namespace default; name "
            "one of one, or remove the label",
            id="not selected by it",
        ),
        pytest.param([gpu_queue("one", "b")], "none", "nor does any other; remove the label", id="no such"),
        pytest.param([gpu_queue("one", "a")], "default", "names default", id="the way out"),
        pytest.param(
            [gpu_queue(f"q{n}", "a") for n in range(8)],
            "x",
            "name one of q0, q1, q2, q3, q4 and 3 more",
            id="many",
        ),
    ],
)
def test_label_that_fits_no_queue_is_refused(queues: list[Any], label: str, message: str) -> None:
    world = world_of(*queues)
    world.pod(labelled("p", label))
    assert message in world.executor.refused["p"]
    assert isinstance(world.coordinator.queues.of_waiting(labelled("p", label)), NoQueue)
    assert queue_of(world, "p") is None


def test_request_counts_in_its_queue_and_is_freed() -> None:
    world = world_of(gpu_queue("one", "a"))
    world.pod(labelled("p"))
    (job,) = world.executor.jobs
    assert job.queue == "one"
    assert used(world) == {"one": 1000}
    world.bind(job)
    assert used(world) == {"one": 1000}
    world.pod_gone("p")
    world.coordinator.freed("uid-p")
    assert used(world) == {}


def test_waiting_pods_move_with_labels_and_selectors() -> None:
    world = world_of(gpu_queue("one", "a"), gpu_queue("two", "b"))
    world.pod(pod("full", gpus=8))
    world.pod(labelled("p"))
    assert queue_of(world, "p") == "one"
    world.namespace(namespace("default", team="b"))
    assert queue_of(world, "p") == "two"
    world.queue(gpu_queue("two", "c"))
    assert queue_of(world, "p") == ""
    world.queue_gone("one")
    world.queue(gpu_queue("three", "b", parent="two"))
    assert queue_of(world, "p") == "three"


def test_label_counts_from_the_first_queue_to_the_last() -> None:
    world = world_of(team="")
    world.pod(pod("full", gpus=8))
    world.pod(labelled("p", "one"))
    assert queue_of(world, "p") == ""
    world.queue(gpu_queue("other", "x"))
    assert queue_of(world, "p") is None
    assert "names one" in world.executor.refused["p"]
    world.queue_gone("other")
    assert queue_of(world, "p") == ""


def test_bound_pod_stays_in_its_queue_whatever_its_owner_writes() -> None:
    world = world_of(gpu_queue("one", "a"), gpu_queue("two", "a"))
    world.pod(labelled("p", "two"))
    (job,) = world.executor.jobs
    world.bind(job)
    world.pod(labelled("p", "one", node="n"))
    world.namespace(namespace("default", team="x"))
    assert used(world) == {"two": 1000}


def test_bound_pods_of_a_queue_that_goes_count_in_the_one_that_comes() -> None:
    world = world_of(gpu_queue("one", "a"))
    world.pod(labelled("p"))
    world.bind(world.executor.jobs[0])
    world.queue_gone("one")
    assert used(world) == {}
    world.queue(gpu_queue("renamed", "a"))
    assert used(world) == {"renamed": 1000}
    world.queue(gpu_queue("one", "a"))
    assert used(world) == {"one": 1000}, "it is remembered while the pod lives"


def test_queue_that_goes_while_a_pod_is_bound() -> None:
    world = world_of(gpu_queue("one", "a"))
    world.pod(labelled("p"))
    world.queue_gone("one")
    world.queue(gpu_queue("two", "a"))
    world.bind(world.executor.jobs[0])
    assert used(world) == {"two": 1000}


# --- what the next scheduler finds --------------------------------------------------------------------------


def lease(uid: str, queue: str, *, share: int = 0, device: int = 0) -> Lease:
    ref, holder = DeviceRef("n", device), Holder(uid, uid[4:], "default", share=share, since="t", queue=queue)
    made = (
        deviceleases.shared(ref, [holder], "system", "t")
        if share
        else deviceleases.exclusive(ref, holder, "system")
    )
    return msgspec.convert({**msgspec.to_builtins(made)}, Lease)


@pytest.mark.parametrize("share", [0, 500])
def test_next_scheduler_counts_a_pod_in_the_queue_it_was_bound_in(share: int) -> None:
    """Label and namespace have changed since."""
    world = world_of(gpu_queue("one", "a"), gpu_queue("two", "b"), team="b", opened=False)
    world.lease(lease("uid-p", "one", share=share))
    world.pod(labelled("p", "two", node="n", phase="Running"))
    world.coordinator.open()
    assert used(world) == {"one": share or 1000}
    world.queue_gone("one")
    assert used(world) == {"two": share or 1000}


def test_next_scheduler_counts_what_was_bound_before_there_were_queues() -> None:
    world = world_of(gpu_queue("one", "a"), gpu_queue("two", "a"), opened=False)
    world.lease(lease("uid-p", ""))
    world.pod(labelled("p", "two", node="n", phase="Running"))
    world.coordinator.open()
    assert used(world) == {"two": 1000}


def test_devices_of_an_ended_pod_count_until_they_are_free() -> None:
    world = world_of(gpu_queue("one", "a"))
    world.lease(lease("uid-p", "one"))
    world.pod(labelled("p", node="n", phase="Running"))
    world.pod_gone("p")
    assert used(world) == {"one": 1000}
    world.lease_gone("gpu-n-0")
    world.coordinator.freed("uid-p")
    assert used(world) == {}


def test_lost_lease_of_a_live_pod_counts_in_its_queue() -> None:
    world = world_of(gpu_queue("one", "a"), gpu_queue("two", "a"), opened=False)
    world.lease(lease("uid-p", "two"))
    world.pod(labelled("p", node="n", phase="Running"))
    world.coordinator.open()
    world.lease_gone("gpu-n-0")
    assert used(world) == {"two": 1000}


def test_pods_of_other_schedulers_count_in_no_queue() -> None:
    world = world_of(gpu_queue("one", "a"))
    world.pod(pod("p", node="n", phase="Running", schedulerName="default-scheduler", allocated="n:0"))
    assert used(world) == {}
