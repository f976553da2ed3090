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
    assert not lull.is_busy
    lull.set(BUSY + 1)
    assert not lull.is_busy
