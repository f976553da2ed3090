"""A pass of the controller keeps the capacity it reserved only if its plan was carried out."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.apps.operator.controller import Controller, Dependencies
from gpu_orchestrator.apps.operator.metrics import Metrics
from gpu_orchestrator.apps.operator.planning import retries
from tests.support.operator_builders import NOW, node, workload
from tests.support.scripted_transport import Scripted, refusal

NAME = "team/bert"
ASKED = errors.Operation("create", "jobs", "batch")
Answer = Callable[[Json], Awaitable[Job]]


class Server:
    """An API server that takes every patch and answers the creation of a Job as the test says."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.patches: list[Json] = []
        self.warnings: list[str] = []
        self.refuses_patches: errors.KubeError | None = None
        self.free_at_patch: list[int] = []
        self.waiting_at_patch: list[bool] = []
        self.controller = Controller(
            Dependencies(
                cast(Any, self),
                cast(Any, SimpleNamespace(record=lambda *_: None, warning=self._warn)),
                Metrics(),
                cast(Any, SimpleNamespace(set=lambda _: None, is_busy=False)),
                now=lambda: NOW,
            )
        )
        self.controller.capacity.see_node(None, node("a", 4))

    def with_limits(self, *, patience_s: float) -> "Server":
        return self

    def _warn(self, what: Any, reason: str, note: str) -> None:
        self.warnings.append(note)

    async def create(self, kind: Any, manifest: Json, *, idempotent: bool) -> Job:
        return await self._answer(manifest)

    async def patch(
        self, kind: Any, name: str, body: Json, namespace: str, *, subresource: str
    ) -> GPUWorkload:
        if self.refuses_patches:
            raise self.refuses_patches
        self.patches.append(body)
        self.free_at_patch.append(self.free)
        self.waiting_at_patch.append(NAME in self.controller.capacity._wishes)
        return self.controller._watches.workloads.store.get(NAME) or workload()

    @property
    def free(self) -> int:
        return self.controller.capacity.engine.cluster.free_gpus("a")

    async def reconcile(self, seen: GPUWorkload) -> str:
        self.controller._watches.workloads.store.put(seen)
        self.controller.capacity.see_workload(None, seen)
        return await self.controller._reconcile(NAME)


async def accept(manifest: Json) -> Job:
    return msgspec.convert(manifest, Job)


async def hang(manifest: Json) -> Job:
    await asyncio.Event().wait()
    raise AssertionError


def refuse(error: Exception) -> Answer:
    async def answer(manifest: Json) -> Job:
        raise error

    return answer


async def test_created_job_keeps_its_place() -> None:
    server = Server(accept)
    assert await server.reconcile(workload()) == "done"
    assert server.free == 0


async def test_failed_tries_are_counted_by_cause() -> None:
    server = Server(refuse(errors.Invalid(ASKED, errors.Status(message="bad template"))))
    assert {cause: failures(server, cause) for cause in retries.CAUSES} == dict.fromkeys(retries.CAUSES, 0.0)
    await server.reconcile(workload())
    assert failures(server, "InvalidTemplate") == 1.0
    full = Server(accept)
    await full.reconcile(workload(gpuCount=8))
    assert failures(full, "NoCapacity") == 1.0


def failures(server: Server, cause: str) -> float | None:
    registry = server.controller._metrics.registry
    return registry.get_sample_value("warp_gpuworkload_failed_total", {"reason": cause})


async def test_cancelled_write_withdraws_the_place() -> None:
    server = Server(hang)
    task = asyncio.create_task(server.reconcile(workload()))
    await asyncio.sleep(0)
    reserved = server.free
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (reserved, server.free) == (0, 4)


async def test_failed_write_withdraws_the_place() -> None:
    server = Server(refuse(errors.KubeError("the server is down")))
    with pytest.raises(errors.KubeError):
        await server.reconcile(workload())
    assert server.free == 4


async def test_overtaken_write_withdraws_the_place_and_looks_again() -> None:
    server = Server(refuse(errors.NotFound(ASKED, errors.Status(message="namespace not found"))))
    assert await server.reconcile(workload()) == "again"
    assert server.free == 4


async def test_refused_job_withdraws_the_place_before_the_status_is_written() -> None:
    server = Server(refuse(errors.Invalid(ASKED, errors.Status(message="bad template"))))
    assert await server.reconcile(workload()) == "refused"
    assert [body["status"]["phase"] for body in server.patches] == ["Failed"]
    assert server.free_at_patch == [4]


async def test_error_while_planning_withdraws_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(accept)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("gpu_orchestrator.apps.operator.jobs.template.fill", fail)
    with pytest.raises(RuntimeError):
        await server.reconcile(workload())
    assert server.free == 4


async def test_suspended_workload_leaves_the_queue_before_the_status_is_written() -> None:
    server = Server(accept)
    assert await server.reconcile(workload(gpuCount=8)) == "done"
    suspended = workload(gpuCount=8, suspend=True, meta={"resourceVersion": "2"})
    assert await server.reconcile(suspended) == "done"
    assert server.waiting_at_patch == [True, False]


async def test_workload_that_is_gone_leaves_the_queue() -> None:
    server = Server(accept)
    await server.reconcile(workload(gpuCount=8))
    server.controller._watches.workloads.store.replace({})
    assert await server.controller._reconcile(NAME) == "gone"
    assert NAME not in server.controller.capacity._wishes


async def test_workload_too_large_for_its_status_gets_an_event() -> None:
    status = errors.Status(message="etcdserver: request is too large", code=500)
    server = Server(refuse(errors.TooLarge(ASKED, status)))
    server.refuses_patches = errors.TooLarge(ASKED, status)
    with pytest.raises(errors.TooLarge):
        await server.reconcile(workload())
    (told,) = server.warnings
    assert "make the object smaller" in told
    assert server.free == 4


@pytest.mark.looptime
async def test_worker_does_not_wait_for_a_server_that_fails(looptime: float) -> None:
    """The queue waits instead, so that other workloads get the worker."""
    client = Client(Scripted(*[refusal(503)] * 9))
    pacer = cast(Any, SimpleNamespace(set=lambda _: None, is_busy=False))
    recorder = cast(Any, SimpleNamespace(record=lambda *_: None))
    controller = Controller(Dependencies(client, recorder, Metrics(), pacer, now=lambda: NOW))
    controller._watches.workloads.store.put(workload())
    with pytest.raises(errors.Unavailable):
        await controller._pass(NAME)
    assert looptime < 1


async def test_place_goes_to_others_before_a_workload_whose_pod_was_refused() -> None:
    """Otherwise workloads that are old and get no pod would take turns forever."""
    controller = Server(accept).controller
    refused = {
        "phase": "Pending",
        "nextRetryTime": "2026-01-01T11:59:59Z",
        "conditions": [{"type": "Scheduled", "status": "False", "reason": "PodRefused", "message": "no pod"}],
    }
    controller.capacity.see_node(node("a", 4), node("a", 4, ready=False))
    for name, created, status in (
        ("old", "2026-01-01T09:00:00Z", refused),
        ("new", "2026-01-01T11:00:00Z", {}),
    ):
        meta = {"uid": f"uid-{name}", "creationTimestamp": created}
        seen = workload(name, meta=meta, status=status, onNoCapacity="Wait")
        controller._watches.workloads.store.put(seen)
        controller.capacity.see_workload(None, seen)
        await controller._reconcile(f"team/{name}")
    controller.capacity.see_node(node("a", 4, ready=False), node("a", 4))
    given = [name for name, wish in controller.capacity._wishes.items() if wish.given]
    assert given == ["team/new"]
