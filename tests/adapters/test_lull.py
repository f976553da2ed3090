"""Who may stand back, and for how long."""

import asyncio

import pytest

from gpu_orchestrator.adapters.lull import BUSY, CALM, Lull

pytestmark = pytest.mark.looptime


async def test_words_wait_while_there_is_much_to_do() -> None:
    lull = Lull(asyncio.get_running_loop().time)
    await asyncio.wait_for(lull.wait(), 1)
    lull.set(BUSY)
    assert lull.is_busy
    waiting = asyncio.create_task(lull.wait())
    lull.set(CALM + 1)  # not calm enough: no to and fro
    await asyncio.sleep(0)
    assert not waiting.done()
    lull.set(CALM)
    await asyncio.wait_for(waiting, 1)
    assert not lull.is_busy


async def test_a_burst_that_goes_on_has_to_share() -> None:
    loop = asyncio.get_running_loop()
    lull = Lull(loop.time, most_s=10.0)
    lull.set(BUSY)
    began = loop.time()
    await asyncio.wait_for(lull.wait(), 60)
    assert 9.9 <= loop.time() - began <= 10.1


async def test_what_stood_back_comes_one_by_one() -> None:
    loop = asyncio.get_running_loop()
    lull = Lull(loop.time, most_s=10.0, trickle_s=0.5)
    lull.set(BUSY)
    began, came = loop.time(), list[float]()

    async def word() -> None:
        await lull.wait()
        came.append(round(loop.time() - began, 1))

    words = asyncio.gather(*(word() for _ in range(4)))
    await asyncio.sleep(11.2)
    lull.set(0)
    await asyncio.wait_for(words, 1)
    assert came == [10.5, 11.0, 11.2, 11.2]
