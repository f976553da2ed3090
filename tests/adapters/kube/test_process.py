"""How a process ends: work in hand gets its time and no more, and nobody waits for what was never begun."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder, Reference
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kube.process import FINISH_S, Process
from gpu_orchestrator.api.kubernetes import PODS
from tests.support.scripted_transport import Scripted, answer, refusal

pytestmark = pytest.mark.looptime


class Part:
    """Needs some time for what is in hand when it is told to stop, and records that it finished."""

    def __init__(self, recorder: Recorder, needs_s: float, watches: Sequence[Watch[Any]] = ()) -> None:
        self.watches, self._recorder, self._needs_s = watches, recorder, needs_s
        self._stop, self.has_begun, self.has_finished = asyncio.Event(), asyncio.Event(), False

    async def work(self) -> None:
        self.has_begun.set()
        await self._stop.wait()
        await asyncio.sleep(self._needs_s)
        self._recorder.normal(Reference("Pod", "p", "ns"), "Finished", "all of it")
        self.has_finished = True

    def stop(self) -> None:
        self._stop.set()


async def test_work_in_hand_is_finished_and_told() -> None:
    server = Scripted(answer())
    recorder = Recorder(Client(server), "test", writers=1)
    part = Part(recorder, needs_s=FINISH_S - 1)
    await live_and_stop(Process(part, recorder, CollectorRegistry(), None), part.has_begun)
    assert part.has_finished
    assert [request.method for request in server.requests] == ["POST"]


async def test_work_that_does_not_end_is_given_up(looptime: float) -> None:
    recorder = Recorder(Client(Scripted()), "test")
    part = Part(recorder, needs_s=3600)
    await live_and_stop(Process(part, recorder, CollectorRegistry(), None), part.has_begun)
    assert not part.has_finished
    assert looptime == pytest.approx(FINISH_S)


async def test_a_process_whose_copies_never_come_ends_at_once(looptime: float) -> None:
    client = Client(Scripted(*(refusal(403) for _ in range(10))))
    recorder = Recorder(client, "test")
    part = Part(recorder, needs_s=0, watches=[Watch(client, PODS)])
    process = Process(part, recorder, CollectorRegistry(), None)
    assert process.unready() == "1 of 1 copies are not complete yet"
    begun = asyncio.Event()
    begun.set()
    await live_and_stop(process, begun)
    assert not part.has_begun.is_set()
    assert looptime < 1


async def live_and_stop(process: Process, when: asyncio.Event) -> None:
    stop = asyncio.Event()
    living = asyncio.create_task(process.live(stop))
    await when.wait()
    stop.set()
    async with asyncio.timeout(10 * FINISH_S):
        await living
