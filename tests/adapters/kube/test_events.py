"""The recorder: repeats are counted, floods are bounded, the caller never waits. Time is virtual."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import PER_OBJECT, Recorder, Reference
from gpu_orchestrator.adapters.kube.transport import Answer, Request
from tests.adapters.kube.scripted import Scripted, answer, refusal

pytestmark = pytest.mark.looptime

POD = Reference("Pod", "p", "ns", "uid-p")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Server(Scripted):
    """Takes every event; `refuses` says what to answer instead, and to what."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, Answer] = {}
        self.delay_s = 0.0

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        self.requests.append(request)
        await asyncio.sleep(self.delay_s)
        return self.refuses.get(request.method, answer())

    @property
    def seen(self) -> list[tuple[str, dict[str, Any]]]:
        return [(request.method, json.loads(request.body or b"")) for request in self.requests]


@asynccontextmanager
async def recording(server: Server, **options: Any) -> AsyncIterator[Recorder]:
    loop = asyncio.get_running_loop()
    began = loop.time()

    def now() -> datetime:
        return START + timedelta(seconds=loop.time() - began)

    recorder = Recorder(Client(server), "gpu-scheduler", instance="me", now=now, **options)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_an_event_says_all_that_the_server_wants() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.normal(POD, "Scheduled", "bound to node-a")
        assert await recorder.drain()
    ((method, event),) = server.seen
    assert method == "POST"
    assert server.requests[0].target == "/apis/events.k8s.io/v1/namespaces/ns/events"
    assert event.pop("metadata")["name"].startswith("p.")
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "gpu-scheduler",
        "reportingInstance": "me",
        "action": "Scheduled",
        "reason": "Scheduled",
        "type": "Normal",
        "note": "bound to node-a",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "ns", "uid": "uid-p"},
    }


async def test_repeats_become_one_event_with_a_count() -> None:
    server = Server()
    async with recording(server) as recorder:
        for _ in range(60):
            recorder.warning(POD, "FailedScheduling", "0/12 nodes fit")
            await asyncio.sleep(1)
        await asyncio.sleep(30)
    methods = [method for method, _ in server.seen]
    assert methods[0] == "POST"
    assert set(methods[1:]) == {"PATCH"}
    assert 5 <= len(methods) <= 8  # at most one write in ten seconds
    assert server.seen[-1][1]["series"]["count"] == 60


async def test_what_repeats_before_it_is_written_is_written_once() -> None:
    server = Server()
    async with recording(server) as recorder:
        for _ in range(5):
            recorder.warning(POD, "FailedScheduling", "0/12 nodes fit")
        assert await recorder.drain()
    ((_, event),) = server.seen
    assert event["series"]["count"] == 5


async def test_an_event_that_has_expired_is_made_again() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.warning(POD, "A", "note")
        await recorder.drain()
        server.refuses["PATCH"] = refusal(404)
        await asyncio.sleep(60)
        recorder.warning(POD, "A", "note")
        await recorder.drain()
    assert [method for method, _ in server.seen] == ["POST", "PATCH", "POST"]


async def test_a_slow_server_does_not_slow_the_caller() -> None:
    server = Server()
    server.delay_s = 1000
    async with recording(server, capacity=10) as recorder:
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        for number in range(100):
            recorder.normal(Reference("Pod", f"p{number}", "ns"), "Scheduled", "bound")
        assert asyncio.get_running_loop().time() == began
        assert recorder.dropped == 90
        assert not await recorder.drain(timeout_s=1)


async def test_an_object_with_too_much_to_tell_is_cut_short() -> None:
    server = Server()
    async with recording(server) as recorder:
        for number in range(100):
            recorder.warning(POD, "FailedScheduling", f"attempt {number}")
        recorder.normal(Reference("Pod", "other", "ns"), "Scheduled", "bound")
        await recorder.drain()
        assert len(server.seen) == PER_OBJECT + 1
        assert recorder.dropped == 100 - PER_OBJECT
        await asyncio.sleep(600)
        recorder.warning(POD, "FailedScheduling", "much later")
        await recorder.drain()
    assert server.seen[-1][1]["note"] == "much later"


async def test_a_refusal_is_counted_and_the_rest_goes_on() -> None:
    server = Server()
    server.refuses["POST"] = refusal(403)
    async with recording(server) as recorder:
        recorder.normal(POD, "A", "one")
        await recorder.drain()
        assert recorder.dropped == 1
        server.refuses.clear()
        recorder.normal(POD, "B", "two")
        await recorder.drain()
    assert server.seen[-1][1]["note"] == "two"


async def test_long_notes_are_cut_to_what_the_server_takes() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.normal(POD, "A", "é" * 2000)
        await recorder.drain()
    assert len(server.seen[0][1]["note"].encode()) <= 1024


async def test_what_has_no_namespace_tells_in_default() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.normal(Reference("Node", "n"), "A", "x")
        await recorder.drain()
    assert "/namespaces/default/" in server.requests[0].target
