"""The status of GpuQueues: what it says, when it is written, and what is not worth a write."""

import json
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.pacer import Pacer
from gpu_orchestrator.api import queue_status
from gpu_orchestrator.api.gpuqueue import GpuQueue, GpuQueueStatus
from gpu_orchestrator.apps.scheduler.controllers.queue_status import (
    AGAIN_AFTER_S,
    MOST_WRITES,
    QueueSource,
    QueueStatusWriter,
)
from gpu_orchestrator.apps.scheduler.metrics import Metrics
from gpu_orchestrator.core.queue_usage import QueueUsage
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import gpu_queue, namespace, node, pod
from tests.support.scripted_transport import Scripted, answer

NOW = "2026-01-01T00:00:00Z"


class Desk:
    """A writer of a world's queues; the watch shows what it writes when `show` is called."""

    def __init__(self, world: World, answers: int = 99) -> None:
        self.world, self.at = world, 0.0
        self.transport = Scripted(*[answer({"metadata": {"name": "q"}})] * answers)
        self.writer = QueueStatusWriter(
            Client(self.transport),
            world.gpu_queues,
            QueueSource(world.coordinator.engine, world.coordinator.queues),
            Pacer(lambda: self.at),
            metrics=Metrics(),
            may_write=lambda: True,
            now=lambda: NOW,
            clock=lambda: self.at,
        )
        self._shown = 0

    async def written(self) -> dict[str, Any]:
        """Return what one pass writes, by queue."""
        await self.writer.check()
        new = self.transport.requests[self._shown :]
        self._shown = len(self.transport.requests)
        return {each.target.split("/")[-2]: json.loads(each.body or b"")["status"] for each in new}

    def show(self, written: dict[str, Any]) -> None:
        for name, status in written.items():
            old = self.world.gpu_queues.get(name)
            assert old is not None
            merged = {
                part: {model: milli for model, milli in value.items() if milli is not None}
                if isinstance(value, dict)
                else value
                for part, value in status.items()
            }
            spec = msgspec.to_builtins(old.spec)
            self.world.queue(gpu_queue(name, status=merged, **spec))


def world_of(*queues: GpuQueue) -> World:
    world = World(node("n"))
    world.namespace(namespace("default", team="a"))
    for each in queues:
        world.queue(each)
    return world


async def test_status_says_what_the_queue_uses() -> None:
    desk = Desk(world_of(gpu_queue("one", "a", guaranteed={"*": 1000}, generation=3)))
    desk.world.pod(pod("p", gpus=2))
    desk.world.pod(pod("q", gpus=8))
    (status,) = (await desk.written()).values()
    assert status == {
        "used": {"*": 2000},
        "borrowed": {"*": 1000},
        "lent": {},
        "pending": 1,
        "share": 1000,
        "observedGeneration": 3,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": "",
                "lastTransitionTime": NOW,
                "observedGeneration": 3,
            }
        ],
    }


async def test_nothing_is_written_twice() -> None:
    desk = Desk(world_of(gpu_queue("one", "a")))
    written = await desk.written()
    assert await desk.written() == {}, "the watch has not shown it yet"
    desk.show(written)
    desk.at += 60
    assert await desk.written() == {}


async def test_usage_is_written_at_intervals_and_leaves_nothing_behind() -> None:
    desk = Desk(world_of(gpu_queue("one", "a", guaranteed={"*": 0})))
    desk.world.pod(pod("p", gpus=2))
    desk.show(await desk.written())
    desk.world.bind(desk.world.executor.jobs[0])
    desk.world.pod_gone("p")
    desk.world.coordinator.freed("uid-p")
    assert await desk.written() == {}
    desk.at += AGAIN_AFTER_S
    written = await desk.written()
    assert (written["one"]["used"], written["one"]["borrowed"]) == ({"*": 0}, {"*": None})


async def test_problem_is_written_at_once() -> None:
    desk = Desk(world_of(gpu_queue("one", "a", parent="two")))
    written = await desk.written()
    (ready,) = written["one"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "Problem")
    assert ready["message"] == "queue one: queue two above it does not exist"
    desk.show(written)
    desk.world.queue(gpu_queue("two", parent="one"))
    written = await desk.written()
    assert "circle" in written["one"]["conditions"][0]["message"]
    desk.show(written)
    desk.world.queue(gpu_queue("two"))
    written = await desk.written()
    assert [each["conditions"][0]["status"] for each in written.values()] == ["True", "True"]


async def test_many_queues_are_written_in_turn() -> None:
    names = [f"q{n:03}" for n in range(3 * MOST_WRITES)]
    desk = Desk(world_of(*(gpu_queue(name) for name in names)), answers=200)
    seen = list[str]()
    for _ in range(3):
        written = await desk.written()
        assert len(written) == MOST_WRITES
        desk.show(written)
        seen += written
    assert sorted(seen) == names
    assert await desk.written() == {}


async def test_queues_that_select_one_namespace_say_so() -> None:
    desk = Desk(world_of(gpu_queue("one", "a"), gpu_queue("two", "a"), gpu_queue("three", "b")))
    desk.world.pod(pod("p", gpus=1))
    written = await desk.written()
    said = {name: each["conditions"][1]["message"] for name, each in written.items() if name != "three"}
    assert said["one"].endswith("without the label gpu.scheduling/queue belong to this one")
    assert said["two"].startswith("namespace default: selected by other queues, too")
    assert said["two"].endswith("belong to queue one")
    assert len(written["three"]["conditions"]) == 1


def test_noise_is_not_written() -> None:
    shown = GpuQueueStatus(share=500)
    assert not queue_status.differs(shown, GpuQueueStatus(share=509))
    assert queue_status.differs(shown, GpuQueueStatus(share=510))
    assert queue_status.differs(shown, GpuQueueStatus(share=500, pending=1))


@pytest.mark.parametrize("amount", [-5, 2**40])
def test_numbers_fit_the_schema(amount: int) -> None:
    used = {"*": amount, "": 7, **{f"m{n}": 1 for n in range(100)}, "x" * 300: amount}
    made = queue_status.status(
        gpu_queue("one"), QueueUsage(used, {}, {}, amount, 7.0), problem="", overlap="", now=NOW
    )
    assert msgspec.convert(msgspec.to_builtins(made), GpuQueueStatus) == made
    assert "" not in made.used


def test_metrics_of_queues() -> None:
    world, metrics = (
        world_of(gpu_queue("one", "a", limit={"*": 4000}), gpu_queue("two", "x", parent="no")),
        Metrics(),
    )
    metrics.watch(world.coordinator.engine, lambda: 0)
    world.pod(pod("p", gpus=2))
    read = metrics.registry.get_sample_value
    assert read("gpu_scheduler_queue_used_gpus", {"queue": "one"}) == 2
    assert read("gpu_scheduler_queue_limit_gpus", {"queue": "one"}) == 4
    assert read("gpu_scheduler_queue_limit_gpus", {"queue": "two"}) is None
    assert read("gpu_scheduler_queue_borrowed_gpus", {"queue": "one"}) == 2
    assert read("gpu_scheduler_queue_pending_pods", {"queue": "one"}) == 0
    assert read("gpu_scheduler_queue_problems") == 1
