"""Long queues of tasks that are all a little different: the leader keeps its lead, and places in order."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.tasks import cpu_s
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api import session, task
from gpu_orchestrator.api.task import TaskSpec
from tests.support import scripted_worker
from tests.support.fleet import Fleet, eventually
from tests.support.scale import Scale

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]
Figure = Callable[[str], None]

PRIORITIES = (25, 50, 75)
BATCH, LEASES_S = 1000, 12.0


async def fill(store: Store, count: int) -> None:
    """Queue different tasks of three priorities, the lowest first."""
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        await store.tasks.submit([waiting(number, count) for number in numbers])


def waiting(number: int, count: int) -> NewTask:
    priority = PRIORITIES[number * len(PRIORITIES) // count]
    spec = TaskSpec("echo", priority=priority, memory_mib=100 + number % 10_000, tenant=f"o{number % 3}")
    return NewTask(
        uuid4().hex, task.encode(spec), f"{priority}", tenant=spec.tenant, level=task.level(priority)
    )


async def test_two_servers_with_a_long_queue_have_one_term(
    tmp_path: Path, scale: Scale, figure: Figure
) -> None:
    """Loading takes longer than the leader's lease at full scale. The first tasks to run are urgent ones,
    which were queued last."""
    count = scale(test=6_000, accept=300_000)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded(tmp_path / "store"))
        store = await stack.enter_async_context(Store(Database(server.url), owner="test"))
        await fill(store, count)
        settings = {"REDIS_URL": server.url, "API_KEY": "k" * 40, "WORKER_TOKEN": "t" * 40}
        servers = [Fleet(tmp_path / name, settings) for name in ("one", "two")]
        for each in servers:
            await stack.enter_async_context(each)

        async def leads() -> bool:
            return sum([await each.metric("leader") for each in servers]) == 1.0

        await eventually(leads, 120.0)
        await asyncio.sleep(scale(test=0.0, accept=LEASES_S))
        hello = scripted_worker.hello("w", max_concurrent=4)
        worker = await stack.enter_async_context(scripted_worker.joined(servers[0].url, "t" * 40, hello))
        first = [await worker.receive(session.Assign, within_s=60) for _ in range(4)]
        assert [bytes(each.parameters) for each in first] == [b"75"] * 4
        assert sum([await each.metric("leader_terms_total") for each in servers]) == 1.0
        figure(f"{count} tasks waiting, two servers, one term")


async def test_completions_hand_the_place_to_one_of_many_shapes(
    tmp_path: Path, scale: Scale, figure: Figure
) -> None:
    """Every waiting task asks for another amount of memory. Each completion starts the next one, in order."""
    count, completions = scale(test=300, accept=5_000), scale(test=10, accept=100)
    settings = {"WORKER_TOKEN": "t" * 40, "QUOTA_QUEUED_TASKS": "100000"}
    async with Fleet(tmp_path, settings) as manager:
        hello = scripted_worker.hello("w", max_concurrent=1)
        async with scripted_worker.joined(manager.url, "t" * 40, hello) as worker:
            names = list[str]()
            for first in range(0, count, 100):
                bodies = [different(number) for number in range(first, min(first + 100, count))]
                status, answer = await manager.call("POST", "/tasks/batch", {"tasks": bodies})
                assert status == 202, answer
                names += [each["task_id"] for each in answer["tasks"]]
            assert manager.server is not None
            given, before = list[str](), cpu_s(manager.server.pid)
            for _ in range(completions):
                assign = await worker.take()
                given.append(assign.task)
                await worker.finish(assign)
            spent = (cpu_s(manager.server.pid) - before) * 1000 / completions
            figure(f"{count} shapes waiting: {spent:.1f} ms of the server's CPU for a completion and a start")
            assert given == names[:completions]


def different(number: int) -> dict[str, object]:
    return {
        "task_type": "echo",
        "parameters": number,
        "resources": {"gpu_memory": f"{1000 + number}MB"},
    }
