"""Batching of calls to the store."""

import asyncio
import gc

import pytest

from gpu_orchestrator.apps.manager.tasks.batching import Batcher, BatchQueue


class Slow:
    """Answers once `go` is set, and records the items of each call."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = asyncio.Event()

    async def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        await self.go.wait()
        if 13 in items:
            raise ValueError("unlucky")
        return [item * 10 for item in items]


async def test_items_that_arrive_during_a_call_form_one_batch() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow)
    first = batcher.put(1)
    await asyncio.sleep(0)
    others = [batcher.put(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    slow.go.set()
    assert await first == 10
    assert await asyncio.gather(*others) == [20, 30, 40]
    assert slow.calls == [[1], [2, 3, 4]]


async def test_batches_respect_the_size_limit() -> None:
    slow = Slow()
    slow.go.set()
    batcher: Batcher[int, int] = Batcher(slow, most=2)
    assert await batcher.put_all(range(5)) == [0, 10, 20, 30, 40]
    assert [len(call) for call in slow.calls] == [2, 2, 1]


async def test_error_reaches_only_callers_of_its_batch() -> None:
    slow = Slow()
    slow.go.set()
    batcher: Batcher[int, int] = Batcher(slow, most=1)
    good, bad = batcher.put(1), batcher.put(13)
    assert await good == 10
    with pytest.raises(ValueError, match="unlucky"):
        await bad
    assert await batcher.put(2) == 20, "it goes on"


async def test_cancelled_caller_does_not_disturb_its_batch() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow)
    gone, stays = batcher.put(1), batcher.put(2)
    await asyncio.sleep(0)
    gone.cancel()
    slow.go.set()
    assert await stays == 20
    await batcher.close()


async def test_flows_take_turns_and_keep_their_order() -> None:
    slow = Slow()
    slow.go.set()
    batcher: Batcher[int, int] = Batcher(slow, most=4)
    odd = [batcher.put(number, "odd") for number in (1, 3, 5, 7, 9, 11)]
    even = [batcher.put(number, "even") for number in (2, 4)]
    await asyncio.gather(*odd, *even)
    assert slow.calls == [[1, 2, 3, 4], [5, 7, 9, 11]]


async def test_several_batches_can_be_in_flight() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow, most=2, at_once=2)
    answers = [batcher.put(number) for number in range(1, 6)]
    await asyncio.sleep(0)
    assert slow.calls == [[1, 2], [3, 4]], "the third waits until one of them is answered"
    slow.go.set()
    assert await asyncio.gather(*answers) == [10, 20, 30, 40, 50]
    assert await batcher.put(6) == 60, "it goes on after all were answered"
    await batcher.close()


async def test_single_item_runs_inline_and_later_items_join_next_batch() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow)
    alone = asyncio.ensure_future(batcher.put_all([1]))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(batcher.put_all([number])) for number in (2, 3)]
    await asyncio.sleep(0)
    assert slow.calls == [[1]]
    slow.go.set()
    assert [await alone, *await asyncio.gather(*others)] == [[10], [20], [30]]
    assert slow.calls == [[1], [2, 3]]


async def test_item_after_cancelled_inline_call_is_answered() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow)
    gone = asyncio.ensure_future(batcher.put_all([1]))
    await asyncio.sleep(0)
    stays = batcher.put(2)
    gone.cancel()
    slow.go.set()
    assert await stays == 20
    await batcher.close()


async def test_close_waits_for_inline_call_but_not_for_its_caller() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow)

    async def callback_sender() -> None:
        await batcher.put_all([1])
        await batcher.close()

    calling = asyncio.ensure_future(callback_sender())
    await asyncio.sleep(0)
    slow.go.set()
    async with asyncio.timeout(60):
        await calling


async def test_failing_batch_does_not_block_later_batches() -> None:
    done: list[list[int]] = []

    async def perform(batch: list[int]) -> None:
        if batch == [1]:
            raise ZeroDivisionError
        done.append(batch)

    loop, broke = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: broke.append(context))
    batches: BatchQueue[int] = BatchQueue(perform, most=1)
    for number in (1, 2, 3):
        batches.put(number)
    await batches.close()
    gc.collect()
    assert done == [[2], [3]]
    assert [type(each.get("exception")) for each in broke] == [ZeroDivisionError]
