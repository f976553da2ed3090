"""Each key once in the queue and at one worker at a time; failures come back later; closing drains."""

import asyncio
import random

import pytest

from gpu_orchestrator.adapters.kube.errors import Unreachable
from gpu_orchestrator.adapters.kube.retry import Backoff
from gpu_orchestrator.adapters.kube.workqueue import Closed, WorkQueue

pytestmark = pytest.mark.looptime


async def drain(queue: WorkQueue[str]) -> list[str]:
    queue.close()
    seen = []
    while True:
        try:
            seen.append(await queue.get())
        except Closed:
            return seen


async def test_in_order_and_each_once() -> None:
    queue = WorkQueue[str]()
    for key in "abacb":
        queue.add(key)
    assert await drain(queue) == ["a", "b", "c"]


async def test_added_while_at_work_comes_again_after_that() -> None:
    queue = WorkQueue[str]()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_later_means_later(looptime: float) -> None:
    queue = WorkQueue[str]()
    queue.add_after("slow", 10)
    queue.add_after("quick", 5)
    assert await queue.get() == "quick"
    assert looptime == pytest.approx(5)
    assert await queue.get() == "slow"
    assert looptime == pytest.approx(10)


async def test_the_earliest_time_counts(looptime: float) -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 20)
    await queue.get()
    assert looptime == pytest.approx(3)
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_an_add_overtakes_a_delay() -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 10)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_failures_wait_longer_each_time_and_success_forgets() -> None:
    class Highest(random.Random):
        def random(self) -> float:
            return 1.0

    queue = WorkQueue[str](Backoff(base_s=1, cap_s=5, rng=Highest()))
    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    queue.forget("a")
    assert queue.retry("a") == 1


async def test_workers_share_the_keys_and_never_one_key() -> None:
    queue, at_work, most, order = WorkQueue[int](), set[int](), 0, list[int]()

    async def work(key: int) -> None:
        nonlocal most
        assert key not in at_work
        at_work.add(key)
        most = max(most, len(at_work))
        await asyncio.sleep(1)
        at_work.discard(key)
        order.append(key)
        if order.count(key) < 3:
            queue.add(key)
        elif len(order) == 18:
            queue.close()

    for key in range(6):
        queue.add(key)
    async with asyncio.timeout(100):
        await queue.run(work, workers=3)
    assert most == 3
    assert sorted(order) == sorted(list(range(6)) * 3)


async def test_closing_finishes_what_waits_and_leaves_what_is_for_later() -> None:
    queue, done = WorkQueue[str](), list[str]()

    async def work(key: str) -> None:
        await asyncio.sleep(1)
        done.append(key)

    for key in "abc":
        queue.add(key)
    queue.add_after("later", 5)
    task = asyncio.create_task(queue.run(work, workers=2))
    await asyncio.sleep(0.5)
    queue.close()
    queue.add("too late")
    async with asyncio.timeout(3):
        await task
    assert sorted(done) == ["a", "b", "c"]


async def test_what_was_added_again_while_at_work_is_done_before_the_end() -> None:
    queue, done = WorkQueue[str](), list[str]()

    async def work(key: str) -> None:
        await asyncio.sleep(1)
        done.append(key)

    queue.add("a")
    task = asyncio.create_task(queue.run(work))
    await asyncio.sleep(0.5)
    queue.add("a")
    queue.close()
    await task
    assert done == ["a", "a"]


async def test_a_failure_is_tried_again(looptime: float) -> None:
    queue, tries = WorkQueue[str](), 0

    async def work(key: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            error = Unreachable("away")
            error.delay_s = 7
            raise error
        if tries == 2:
            raise ValueError("a defect")
        queue.close()

    queue.add("a")
    async with asyncio.timeout(60):
        await queue.run(work)
    assert tries == 3
    assert looptime >= 7


async def test_stops_at_once_when_cancelled() -> None:
    queue = WorkQueue[str]()
    task = asyncio.create_task(queue.run(lambda key: asyncio.sleep(0), workers=4))
    await asyncio.sleep(1)
    task.cancel()
    async with asyncio.timeout(0.1):
        with pytest.raises(asyncio.CancelledError):
            await task
