"""The recorder counts repeats, limits floods and never blocks its caller. Time is virtual."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import PER_REASON, Recorder, Reference
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request
from tests.support.scripted_transport import Scripted, answer, refusal

pytestmark = pytest.mark.looptime

POD = Reference("Pod", "p", "ns", "uid-p")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Server(Scripted):
    """Accepts every event; `refuses` maps a method to the answer that it gets instead."""

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

    def posts(self, reason: str) -> list[dict[str, Any]]:
        return [event for method, event in self.seen if method == "POST" and event["reason"] == reason]


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


async def test_event_has_all_required_fields() -> None:
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


async def test_repeats_before_the_first_write_become_one_event() -> None:
    server = Server()
    async with recording(server) as recorder:
        for _ in range(5):
            recorder.warning(POD, "FailedScheduling", "0/12 nodes fit")
        assert await recorder.drain()
    ((_, event),) = server.seen
    assert event["series"]["count"] == 5


async def test_expired_event_is_created_again() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.warning(POD, "A", "note")
        await recorder.drain()
        server.refuses["PATCH"] = refusal(404)
        await asyncio.sleep(60)
        recorder.warning(POD, "A", "note")
        await recorder.drain()
    assert [method for method, _ in server.seen] == ["POST", "PATCH", "POST"]


async def test_slow_server_does_not_block_the_caller() -> None:
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


async def test_many_refusals_share_one_event_and_do_not_hide_a_placement() -> None:
    server = Server()
    async with recording(server) as recorder:
        for number in range(100):
            recorder.warning(POD, "FailedScheduling", f"attempt {number}")
        recorder.normal(POD, "Scheduled", "bound to a")
        await recorder.drain()
        written = [event for _, event in server.seen]
        assert [event["note"] for event in written] == [
            *(f"attempt {number}" for number in range(PER_REASON)),
            f"among others: attempt {PER_REASON}",
            "bound to a",
        ]
        assert written[-2]["series"]["count"] == 100 - PER_REASON
        assert recorder.dropped == 0
        await asyncio.sleep(600)
        recorder.warning(POD, "FailedScheduling", "much later")
        await recorder.drain()
    assert server.seen[-1][1]["note"] == "much later"


async def test_every_placement_and_eviction_is_counted() -> None:
    """A workload is moved every minute for an hour, and refused several times in between."""
    server = Server()
    async with recording(server) as recorder:
        for number in range(60):
            recorder.normal(POD, "Scheduled", f"bound to {number}")
            recorder.warning(POD, "Preempted", f"made way for {number}")
            for other in range(5):
                recorder.warning(POD, "FailedScheduling", f"{number}/{other} nodes fit")
            await asyncio.sleep(60)
        assert await recorder.drain()
    assert recorder.dropped == 0
    assert counted(server, "Scheduled") == counted(server, "Preempted") == 60
    assert counted(server, "FailedScheduling") == 300
    assert len(server.posts("FailedScheduling")) < 40


def counted(server: Server, reason: str) -> int:
    """Return how often the reason was recorded, by the last count of each event."""
    counts = {event["metadata"]["name"]: repeats(event) for event in server.posts(reason)}
    for request in server.requests:
        name = request.target.rpartition("/")[2]
        if request.method == "PATCH" and name in counts:
            counts[name] = repeats(json.loads(request.body or b""))
    return sum(counts.values())


def repeats(event: dict[str, Any]) -> int:
    count: int = event.get("series", {}).get("count", 1)
    return count


async def test_shared_event_is_replaced_every_period() -> None:
    """A written note cannot change, and an hour-old refusal explains nothing."""
    server = Server()
    async with recording(server) as recorder:
        for number in range(3600):
            recorder.warning(POD, "FailedScheduling", f"attempt {number}")
            await asyncio.sleep(1)
    shared = [event for event in server.posts("FailedScheduling") if event["note"].startswith("among others")]
    assert 6 <= len(shared) <= 7


async def test_refused_write_is_counted_and_later_events_are_written() -> None:
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


async def test_long_note_is_cut_to_1024_bytes() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.normal(POD, "A", "é" * 2000)
        await recorder.drain()
    assert len(server.seen[0][1]["note"].encode()) <= 1024


async def test_event_of_cluster_scoped_object_goes_to_default() -> None:
    server = Server()
    async with recording(server) as recorder:
        recorder.normal(Reference("Node", "n"), "A", "x")
        await recorder.drain()
    assert "/namespaces/default/" in server.requests[0].target
