"""Whatever the network does, no two electors lead at once, and one leads when it heals."""

import asyncio
import random
from contextlib import suppress

import looptime
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, Lost
from tests.support.election_lease import LeaseServer, Line


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.6), slowest_s=st.floats(0, 8))
def test_never_two_leaders(seed: int, loss: float, slowest_s: float) -> None:
    loop = looptime.new_event_loop(start=0)
    try:
        loop.run_until_complete(_play(random.Random(seed), loss, slowest_s))
    finally:
        loop.close()


async def _play(rng: random.Random, loss: float, slowest_s: float) -> None:
    server, clock, working = LeaseServer(), asyncio.get_running_loop().time, list[str]()
    lines = [Line(server, rng, loss=loss, slowest_s=slowest_s) for _ in range(3)]
    electors = [
        Elector(Client(line), "x", "ns", identity=str(number), clock=clock)
        for number, line in enumerate(lines)
    ]
    tasks = [asyncio.create_task(_keep_trying(elector, working)) for elector in electors]
    for _ in range(12):
        rng.choice(lines).is_cut ^= True
        await asyncio.sleep(rng.uniform(1, 30))
        assert sum(elector.is_leader for elector in electors) <= 1
    for line in lines:
        line.loss, line.slowest_s, line.is_cut = 0.0, 0.0, False
    await asyncio.sleep(40)
    assert sum(elector.is_leader for elector in electors) == 1
    assert len(working) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_trying(elector: Elector, working: list[str]) -> None:
    async def work() -> None:
        working.append(elector.identity)
        assert len(working) == 1
        try:
            await asyncio.Event().wait()
        finally:
            working.remove(elector.identity)

    while True:
        with suppress(Lost):
            await elector.lead(work)
