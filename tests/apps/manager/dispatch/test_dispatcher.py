"""The dispatcher alone, on a real store: every decision is carried out, whatever event led to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.records import (
    Ended,
    NewsItem,
    NewTask,
    Queued,
    Registration,
    UnfinishedTask,
    Worker,
)
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api import session, task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.deps import DispatcherDeps
from gpu_orchestrator.apps.manager.dispatch.dispatcher import Dispatcher
from gpu_orchestrator.apps.manager.fleet import rows, strategies
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import Metrics

SPEC = task.encode(TaskSpec("echo", gpus=0, tenant="ann"))


class Allowing(Quotas):
    """Every owner may run `most_running` tasks."""

    most_running: int | None = None

    def most(self, owner: str) -> int | None:
        return self.most_running


async def in_turn(*pages: Sequence[UnfinishedTask]) -> AsyncIterator[Sequence[UnfinishedTask]]:
    for page in pages:
        yield page


class Stage:
    """A dispatcher with one worker, and the tasks assigned to it."""

    def __init__(self, store: Store, worker: WorkerState) -> None:
        self.quotas = Allowing(Settings())
        self.assigned: asyncio.Queue[str] = asyncio.Queue()
        self.invalidations = 0
        deps = DispatcherDeps(
            store,
            lambda _, assign: self.assigned.put_nowait(assign.task),
            strategies.registry("balanced"),
            MemoryPolicy(),
            Metrics(),
            lambda: 1000.0,
            self.quotas,
        )
        self.dispatcher = Dispatcher(deps, invalidate=self._invalidate)
        self.worker = worker

    async def load(self, *pages: Sequence[UnfinishedTask]) -> None:
        await self.dispatcher.load(in_turn(*pages), {"w": self.worker})
        self.dispatcher.start()

    def _invalidate(self) -> None:
        self.invalidations += 1

    async def submit(self, *names: str) -> None:
        await self.dispatcher.submit([NewTask(name, SPEC, "null", tenant="ann") for name in names])

    async def next_assigned(self, count: int) -> list[str]:
        async with asyncio.timeout(60):
            return [await self.assigned.get() for _ in range(count)]


NewStage = Callable[[int], Awaitable[Stage]]


@pytest.fixture
async def new_stage(tmp_path: Path) -> AsyncIterator[NewStage]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="here") as store:
        await store.leadership.campaign()

        async def new(slots: int) -> Stage:
            hello = session.Hello("w", "i", task_types=("echo",), max_concurrent=slots)
            greeting = await store.workers.register(Registration("w", "i", rows.encode(hello), "here", "c"))
            stage = Stage(store, WorkerState(hello, epoch=greeting.epoch))
            await stage.load()
            return stage

        yield new


async def test_raised_limit_lets_earlier_task_go_with_next_request(
    new_stage: NewStage,
) -> None:
    stage = await new_stage(8)
    stage.quotas.most_running = 1
    await stage.submit("a")
    await stage.submit("b")
    assert await stage.next_assigned(1) == ["a"]
    stage.quotas.most_running = None
    await stage.submit("c")
    assert sorted(await stage.next_assigned(2)) == ["b", "c"]


@pytest.mark.parametrize(
    ("news", "goes"),
    [
        pytest.param(Ended("a", "w", 1, 0), "b", id="a task waits for the freed worker"),
        pytest.param(Queued("c", SPEC, 0, 0, 1, ""), "", id="a task that does not fit"),
    ],
)
async def test_news_leads_to_decision(new_stage: NewStage, news: NewsItem, goes: str) -> None:
    stage = await new_stage(1)
    await stage.submit("a", "b")
    assert await stage.next_assigned(1) == ["a"]
    stage.dispatcher.handle_news([news])
    if goes:
        assert await stage.next_assigned(1) == [goes]
    else:
        assert stage.dispatcher.engine.state_of("c") == "parked"


async def test_news_without_waiting_tasks_is_deferred_and_frees_the_worker(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    await stage.submit("a")
    stage.dispatcher.handle_news([Ended("a", "w", 1, 0)])
    assert stage.dispatcher.engine.state_of("a") == "in flight", "pending responses come first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert stage.dispatcher.engine.state_of("a") is None
    await stage.submit("b")
    assert await stage.next_assigned(2) == ["a", "b"]


async def test_cancelled_submit_invalidates_the_dispatcher(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    submitting = asyncio.ensure_future(stage.submit("a"))
    await asyncio.sleep(0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert stage.invalidations == 1


async def test_worker_removed_during_assignment_keeps_the_dispatcher(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    submitting = asyncio.ensure_future(stage.submit("a"))
    await asyncio.sleep(0)
    stage.dispatcher.handle_news([Worker("w", ())])
    await submitting
    assert stage.invalidations == 0


async def test_worker_removed_before_assignment_keeps_the_dispatcher(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    stage.dispatcher.handle_news([Queued("a", SPEC, 0, 0, 1, "")])
    stage.dispatcher.handle_news([Worker("w", ())])
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.invalidations == 0
    assert stage.dispatcher.engine.state_of("a") == "resting"
