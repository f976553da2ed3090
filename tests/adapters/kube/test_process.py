"""How a process ends: running work gets FINISH_S to finish, and work that never started is not waited for."""

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


class SlowComponent:
    """Needs some time to finish after `stop`, and then records an event."""

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


async def test_running_work_finishes_and_its_event_is_written() -> None:
    server = Scripted(answer())
    recorder = Recorder(Client(server), "test", writers=1)
    component = SlowComponent(recorder, needs_s=FINISH_S - 1)
    await run_and_stop(Process(component, recorder, CollectorRegistry(), None), component.has_begun)
    assert component.has_finished
    assert [request.method for request in server.requests] == ["POST"]


async def test_work_that_does_not_end_is_cancelled_after_finish_s(looptime: float) -> None:
    recorder = Recorder(Client(Scripted()), "test")
    component = SlowComponent(recorder, needs_s=3600)
    await run_and_stop(Process(component, recorder, CollectorRegistry(), None), component.has_begun)
    assert not component.has_finished
    assert looptime == pytest.approx(FINISH_S)


async def test_process_with_unsynced_watches_ends_at_once(looptime: float) -> None:
    client = Client(Scripted(*(refusal(403) for _ in range(10))))
    recorder = Recorder(client, "test")
    component = SlowComponent(recorder, needs_s=0, watches=[Watch(client, PODS)])
    process = Process(component, recorder, CollectorRegistry(), None)
    assert process.unready() == "1 of 1 watches are not synced yet"
    begun = asyncio.Event()
    begun.set()
    await run_and_stop(process, begun)
    assert not component.has_begun.is_set()
    assert looptime < 1


async def test_process_is_ready_when_its_component_is() -> None:
    recorder, missing = Recorder(Client(Scripted()), "test"), ["there is no certificate yet"]
    component = SlowComponent(recorder, needs_s=0)
    process = Process(component, recorder, CollectorRegistry(), None, unready=lambda: missing[0])
    assert process.unready() == "there is no certificate yet"
    missing[0] = ""
    assert process.unready() == ""


async def run_and_stop(process: Process, when: asyncio.Event) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(process.run_until(stop))
    await when.wait()
    stop.set()
    async with asyncio.timeout(10 * FINISH_S):
        await running
