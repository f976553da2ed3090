"""A key is queued once and handled by one worker at a time; failures are retried; close drains the queue."""

import asyncio
import random

import pytest

from gpu_orchestrator.adapters.kube import errors
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


async def test_keys_come_in_order_and_once() -> None:
    queue = WorkQueue[str]()
    for key in "abacb":
        queue.add(key)
    assert await drain(queue) == ["a", "b", "c"]


async def test_key_added_while_processed_is_queued_again() -> None:
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


async def test_delayed_keys_come_after_their_delay(looptime: float) -> None:
    queue = WorkQueue[str]()
    queue.add_after("slow", 10)
    queue.add_after("quick", 5)
    assert await queue.get() == "quick"
    assert looptime == pytest.approx(5)
    assert await queue.get() == "slow"
    assert looptime == pytest.approx(10)


async def test_earliest_delay_counts(looptime: float) -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 10)
    queue.add_after("a", 3)
    queue.add_after("a", 20)
    await queue.get()
    assert looptime == pytest.approx(3)
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_add_replaces_a_delay() -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 10)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    await asyncio.sleep(60)
    assert len(queue) == 0


async def test_delay_grows_with_failures_and_forget_resets_it() -> None:
    class Highest(random.Random):
        def random(self) -> float:
            return 1.0

    queue = WorkQueue[str](Backoff(base_s=1, cap_s=5, rng=Highest()))
    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    queue.forget("a")
    assert queue.retry("a") == 1


async def test_delay_stays_short_while_the_server_is_away() -> None:
    queue = WorkQueue[str]()
    assert max(queue.retry("a", is_away=True) for _ in range(100)) <= 15
    assert max(queue.retry("a") for _ in range(100)) > 15


async def test_object_too_large_is_retried_with_the_long_delay(looptime: float) -> None:
    status = errors.Status(message="etcdserver: request is too large", code=500)
    queue, tries = WorkQueue[str](), 0

    async def work(key: str) -> None:
        nonlocal tries
        tries += 1
        raise errors.TooLarge(errors.Operation("patch", "pods"), status)

    queue.add("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await queue.run(work)
    assert 60 < tries < 300


async def test_no_two_workers_process_the_same_key() -> None:
    queue, processing, most, order = WorkQueue[int](), set[int](), 0, list[int]()

    async def work(key: int) -> None:
        nonlocal most
        assert key not in processing
        processing.add(key)
        most = max(most, len(processing))
        await asyncio.sleep(1)
        processing.discard(key)
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


async def test_close_finishes_waiting_keys_and_drops_delayed_ones() -> None:
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


async def test_key_added_while_processed_is_handled_before_close_ends() -> None:
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


async def test_failed_key_is_retried(looptime: float) -> None:
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
