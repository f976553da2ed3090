"""Which writes wait, and for how long."""

import asyncio

import pytest

from gpu_orchestrator.adapters.pacer import BUSY, CALM, Pacer

pytestmark = pytest.mark.looptime


async def test_writes_wait_while_busy() -> None:
    pacer = Pacer(asyncio.get_running_loop().time)
    await asyncio.wait_for(pacer.wait(), 1)
    pacer.set(BUSY)
    assert pacer.is_busy
    waiting = asyncio.create_task(pacer.wait())
    pacer.set(CALM + 1)  # still above CALM: stay busy, so that it does not flap
    await asyncio.sleep(0)
    assert not waiting.done()
    pacer.set(CALM)
    await asyncio.wait_for(waiting, 1)
    assert not pacer.is_busy


async def test_long_burst_lets_writes_through() -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop.time, most_s=10.0)
    pacer.set(BUSY)
    began = loop.time()
    await asyncio.wait_for(pacer.wait(), 60)
    assert 9.9 <= loop.time() - began <= 10.1


async def test_waiting_writes_come_one_by_one() -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop.time, most_s=10.0, trickle_s=0.5)
    pacer.set(BUSY)
    began, came = loop.time(), list[float]()

    async def word() -> None:
        await pacer.wait()
        came.append(round(loop.time() - began, 1))

    words = asyncio.gather(*(word() for _ in range(4)))
    await asyncio.sleep(11.2)
    pacer.set(0)
    await asyncio.wait_for(words, 1)
    assert came == [10.5, 11.0, 11.2, 11.2]
