"""The dispatcher on its own, on a real store: what was decided is done, whoever brought it about."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.records import Ended, Newcomer, NewTask, Queued, Snapshot, Told, Worker
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from gpu_orchestrator.api import session, task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.dispatch.dispatcher import Dispatcher, DispatcherDeps
from gpu_orchestrator.apps.manager.fleet import rows, strategies
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.metrics import Metrics

SPEC = task.encode(TaskSpec("echo", gpus=0, tenant="ann"))


class Allowing(Quotas):
    """Everybody may run so many."""

    most_running: int | None = None

    def most(self, owner: str) -> int | None:
        return self.most_running


class Stage:
    """A dispatcher with one worker, and what that is given."""

    def __init__(self, store: Store, worker: WorkerState) -> None:
        self.quotas = Allowing(Settings())
        self.given: asyncio.Queue[str] = asyncio.Queue()
        self.doubts = 0
        deps = DispatcherDeps(
            store,
            lambda _, assign: self.given.put_nowait(assign.task),
            strategies.registry("balanced"),
            MemoryPolicy(),
            Metrics(),
            lambda: 1000.0,
            self.quotas,
        )
        self.dispatcher = Dispatcher(deps, in_doubt=self._doubt)
        self.dispatcher.load(Snapshot(1_000_000, ("w",), ()), {"w": worker})

    def _doubt(self) -> None:
        self.doubts += 1

    async def submit(self, *names: str) -> None:
        await self.dispatcher.submit([NewTask(name, SPEC, "null", tenant="ann") for name in names])

    async def are_given(self, count: int) -> list[str]:
        async with asyncio.timeout(10):
            return [await self.given.get() for _ in range(count)]


NewStage = Callable[[int], Awaitable[Stage]]


@pytest.fixture
async def new_stage(tmp_path: Path) -> AsyncIterator[NewStage]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="here") as store:
        await store.leadership.strive()

        async def opened(slots: int) -> Stage:
            hello = session.Hello("w", "i", task_types=("echo",), max_concurrent=slots)
            greeting = await store.workers.register(Newcomer("w", "i", rows.encode(hello), "here", "c"))
            return Stage(store, WorkerState(hello, epoch=greeting.epoch))

        yield opened


async def test_a_task_of_before_that_may_go_now_goes_with_the_request_that_let_it(
    new_stage: NewStage,
) -> None:
    stage = await new_stage(8)
    stage.quotas.most_running = 1
    await stage.submit("a")
    await stage.submit("b")
    assert await stage.are_given(1) == ["a"]
    stage.quotas.most_running = None
    await stage.submit("c")
    assert sorted(await stage.are_given(2)) == ["b", "c"]


@pytest.mark.parametrize(
    ("told", "goes"),
    [
        pytest.param(Ended("a", "w", 1, 0), "b", id="somebody waits for what became free"),
        pytest.param(Queued("c", SPEC, 0, 0, 1, ""), "", id="a task that does not fit"),
    ],
)
async def test_news_is_decided_upon(new_stage: NewStage, told: Told, goes: str) -> None:
    stage = await new_stage(1)
    await stage.submit("a", "b")
    assert await stage.are_given(1) == ["a"]
    stage.dispatcher.hear([told])
    if goes:
        assert await stage.are_given(1) == [goes]
    else:
        assert stage.dispatcher.engine.state_of("c") == "parked"


async def test_what_nobody_waits_for_is_heard_at_leisure_and_free_for_the_next(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    await stage.submit("a")
    stage.dispatcher.hear([Ended("a", "w", 1, 0)])
    assert stage.dispatcher.engine.state_of("a") == "in flight", "those who wait for an answer come first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert stage.dispatcher.engine.state_of("a") is None
    await stage.submit("b")
    assert await stage.are_given(2) == ["a", "b"]


async def test_a_request_given_up_in_the_middle_leaves_doubt(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    submitting = asyncio.ensure_future(stage.submit("a"))
    await asyncio.sleep(0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert stage.doubts == 1


async def test_a_worker_that_leaves_while_it_is_given_a_task_leaves_no_doubt(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    submitting = asyncio.ensure_future(stage.submit("a"))
    await asyncio.sleep(0)
    stage.dispatcher.hear([Worker("w", ())])
    await submitting
    assert stage.doubts == 0


async def test_a_worker_that_leaves_before_it_is_given_its_task_leaves_no_doubt(new_stage: NewStage) -> None:
    stage = await new_stage(1)
    stage.dispatcher.hear([Queued("a", SPEC, 0, 0, 1, "")])
    stage.dispatcher.hear([Worker("w", ())])
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.doubts == 0
    assert stage.dispatcher.engine.state_of("a") == "resting"
