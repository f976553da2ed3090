"""Background tasks: held until they end, waited for, cancelled; and waits with a limit."""

import asyncio
import gc

import pytest

from gpu_orchestrator.adapters.background import BackgroundTasks, wait_until_set

pytestmark = pytest.mark.looptime


async def test_finish_waits_for_all_tasks_even_later_ones() -> None:
    ended: list[str] = []
    tasks = BackgroundTasks()

    async def second() -> None:
        await asyncio.sleep(1)
        ended.append("second")

    async def first() -> None:
        await asyncio.sleep(1)
        tasks.start(second())
        ended.append("first")

    tasks.start(first())
    gc.collect()
    await tasks.finish()
    assert ended == ["first", "second"]


async def test_finish_that_is_cancelled_cancels_the_tasks() -> None:
    cancelled = asyncio.Event()
    tasks = BackgroundTasks()

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    tasks.start(endless())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await tasks.finish()
    await asyncio.sleep(0)
    assert cancelled.is_set()


async def test_failed_task_does_not_stop_the_wait_for_others() -> None:
    ended: list[str] = []
    tasks = BackgroundTasks()

    async def fails() -> None:
        raise ValueError

    async def ends() -> None:
        await asyncio.sleep(1)
        ended.append("yes")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    tasks.start(fails())
    tasks.start(ends())
    await tasks.finish()
    assert ended == ["yes"]


async def test_wait_until_set_returns_at_the_event_or_the_limit() -> None:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    began = loop.time()
    await wait_until_set(event, 2)
    assert loop.time() - began == pytest.approx(2, abs=0.1)
    loop.call_later(1, event.set)
    await wait_until_set(event, 5)
    assert loop.time() - began == pytest.approx(3, abs=0.1)
