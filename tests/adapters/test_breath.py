"""Long work gives the event loop back after each slice of time."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise

from gpu_orchestrator.adapters.breath import Breath


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_other_tasks_run_after_each_slice() -> None:
    clock, turns = Clock(), list[float]()
    breath = Breath(clock, slice_s=0.02)

    async def other() -> None:
        while True:
            turns.append(clock.now)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)

    def steps() -> Iterator[None]:
        for _ in range(100):
            clock.now += 0.001
            yield

    await breath.through(steps())
    task.cancel()
    gaps = [after - before for before, after in pairwise(turns)]
    assert len(gaps) == 5
    assert max(gaps) < 0.0201


async def test_short_work_is_not_interrupted() -> None:
    clock, turned = Clock(), asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await Breath(clock).through(range(1000))
    assert not turned.is_set()
