"""Many callers, one call."""

import asyncio
import gc

import pytest

from gpu_orchestrator.apps.manager.tasks.batching import Batcher, BatchQueue


class Slow:
    """Answers when told to, and keeps what each call was asked."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = asyncio.Event()

    async def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        await self.go.wait()
        if 13 in items:
            raise ValueError("unlucky")
        return [item * 10 for item in items]


async def test_what_arrives_meanwhile_goes_together() -> None:
    slow = Slow()
    gather: Batcher[int, int] = Batcher(slow)
    first = gather.put(1)
    await asyncio.sleep(0)
    others = [gather.put(number) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    slow.go.set()
    assert await first == 10
    assert await asyncio.gather(*others) == [20, 30, 40]
    assert slow.calls == [[1], [2, 3, 4]]


async def test_no_call_takes_more_than_allowed() -> None:
    slow = Slow()
    slow.go.set()
    gather: Batcher[int, int] = Batcher(slow, most=2)
    assert await gather.put_all(range(5)) == [0, 10, 20, 30, 40]
    assert [len(call) for call in slow.calls] == [2, 2, 1]


async def test_an_error_reaches_those_of_its_call_only() -> None:
    slow = Slow()
    slow.go.set()
    gather: Batcher[int, int] = Batcher(slow, most=1)
    good, bad = gather.put(1), gather.put(13)
    assert await good == 10
    with pytest.raises(ValueError, match="unlucky"):
        await bad
    assert await gather.put(2) == 20, "it goes on"


async def test_who_gave_up_does_not_disturb_the_rest() -> None:
    slow = Slow()
    gather: Batcher[int, int] = Batcher(slow)
    gone, stays = gather.put(1), gather.put(2)
    await asyncio.sleep(0)
    gone.cancel()
    slow.go.set()
    assert await stays == 20
    await gather.close()


async def test_flows_take_turns_and_keep_their_order() -> None:
    slow = Slow()
    slow.go.set()
    gather: Batcher[int, int] = Batcher(slow, most=4)
    odd = [gather.put(number, "odd") for number in (1, 3, 5, 7, 9, 11)]
    even = [gather.put(number, "even") for number in (2, 4)]
    await asyncio.gather(*odd, *even)
    assert slow.calls == [[1, 2, 3, 4], [5, 7, 9, 11]]


async def test_several_calls_may_be_under_way() -> None:
    slow = Slow()
    gather: Batcher[int, int] = Batcher(slow, most=2, at_once=2)
    asked = [gather.put(number) for number in range(1, 6)]
    await asyncio.sleep(0)
    assert slow.calls == [[1, 2], [3, 4]], "the third waits until one of them is answered"
    slow.go.set()
    assert await asyncio.gather(*asked) == [10, 20, 30, 40, 50]
    assert await gather.put(6) == 60, "it goes on after all were answered"
    await gather.close()


async def test_one_alone_is_answered_in_its_own_task_and_who_comes_meanwhile_goes_next() -> None:
    slow = Slow()
    gather: Batcher[int, int] = Batcher(slow)
    alone = asyncio.ensure_future(gather.put_all([1]))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(gather.put_all([number])) for number in (2, 3)]
    await asyncio.sleep(0)
    assert slow.calls == [[1]]
    slow.go.set()
    assert [await alone, *await asyncio.gather(*others)] == [[10], [20], [30]]
    assert slow.calls == [[1], [2, 3]]


async def test_who_came_after_one_that_gave_up_is_answered() -> None:
    slow = Slow()
    gather: Batcher[int, int] = Batcher(slow)
    gone = asyncio.ensure_future(gather.put_all([1]))
    await asyncio.sleep(0)
    stays = gather.put(2)
    gone.cancel()
    slow.go.set()
    assert await stays == 20
    await gather.close()


async def test_closing_waits_for_what_is_done_alone_and_not_for_the_rest_of_its_caller() -> None:
    slow = Slow()
    gather: Batcher[int, int] = Batcher(slow)

    async def callback_sender() -> None:
        await gather.put_all([1])
        await gather.close()

    calling = asyncio.ensure_future(callback_sender())
    await asyncio.sleep(0)
    slow.go.set()
    async with asyncio.timeout(5):
        await calling


async def test_a_batch_that_breaks_keeps_nobody_else_waiting() -> None:
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
