"""Partial results that a real worker sends: each once and in order, and none faster than they are taken."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.api.partial import LARGEST_MESSAGE, LARGEST_VALUE, MOST_AHEAD
from tests.apps.worker.conftest import NewWorker
from tests.apps.worker.test_worker_logs import kinds, python
from tests.support.scripted_server import Peer

pytestmark = pytest.mark.real

NAMES = ("yields", "yields_and_fails", "yields_too")
FUNCTIONS = tuple(
    part for name in NAMES for part in ("--function", f"{name}=tests.support.worker_functions:{name}")
)


def messages(peer: Peer, task: str) -> list[session.Values]:
    return [m for m in peer.received if isinstance(m, session.Values) and m.task == task]


def sent_bytes(peer: Peer, task: str) -> int:
    return sum(len(each) for message in messages(peer, task) for each in message.values)


async def result(peer: Peer, task: str) -> Any:
    return msgspec.json.decode((await peer.receive(session.Done, task)).result)


async def test_values_arrive_before_the_outcome(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("many", "python", python("yields", count=5000))
    assert await result(peer, "many") == 5000
    assert peer.values("many") == list(range(5000))
    assert kinds(peer, "many").count("Values") < 100, "values share messages"
    await peer.assign("few", "python", python("yields_too", count=3))
    assert await result(peer, "few") is None
    assert peer.values("few") == [0, 1, 2]
    await peer.assign("fails", "python", python("yields_and_fails"))
    failed = await peer.receive(session.Failed, "fails")
    assert (failed.error.type, failed.error.message) == ("RuntimeError", "enough")
    assert peer.values("fails") == [0, ""]
    await peer.assign("large", "python", python("yields_and_fails", size=LARGEST_VALUE))
    failed = await peer.receive(session.Failed, "large")
    assert (failed.error.type, peer.values("large")) == ("ValueTooLarge", [0])


async def test_task_waits_while_nothing_is_taken(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    peer.takes = False
    await peer.assign("t", "python", python("yields", count=2000, size=1000))
    await peer.until(lambda: sent_bytes(peer, "t") > MOST_AHEAD * 0.9 or None)
    for _ in range(3):  # each refusal is followed by one message, not by all
        before = len(messages(peer, "t"))
        await peer.send(session.Taken("t", 1, 0, later=True))
        await peer.receive(session.Values, "t", after=before)
    assert sent_bytes(peer, "t") < MOST_AHEAD + 4 * LARGEST_MESSAGE
    peer.takes = True
    await peer.send(session.Taken("t", 1, 0, later=True))
    assert await result(peer, "t") == 2000
    assert peer.values("t") == ["x" * 1000] * 2000


async def test_task_that_waits_can_be_ended(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    peer.takes = False
    await peer.assign("waits", "python", python("yields", count=2000, size=1000))
    await peer.receive(session.Values, "waits", after=3)
    await peer.send(session.Cancel("waits", 1, 60.0))
    await peer.receive(session.Cancelled, "waits")
    assert peer.log("waits").startswith("closed after "), "what the generator does at its end was done"
    await peer.assign("ends", "python", python("yields", count=3))
    await peer.receive(session.Values, "ends")
    await peer.send(session.Cancel("ends", 1, 60.0))
    await peer.receive(session.Cancelled, "ends")
    limits = {"soft_limit_s": 0.5, "timeout_s": 60.0}
    await peer.assign("late", "python", python("yields", count=2000, size=1000), **limits)
    await peer.until(lambda: sent_bytes(peer, "late") > MOST_AHEAD * 0.9 or None)
    await asyncio.sleep(0.6)  # the limit is the worker's own
    peer.takes = True
    await peer.send(session.Taken("late", 1, 0, later=True))
    failed = await peer.receive(session.Failed, "late")
    assert failed.error.type == "SoftLimitReached"


async def test_values_are_complete_over_lost_connections(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("yields", count=300, pause_s=0.005))
    for times in range(3):
        await peer.receive(session.Values, "t", after=4 * (times + 1))
        peer.takes = False
        await peer.receive(session.Values, "t", after=4 * (times + 1) + 2)
        await peer.drop()
        peer.takes = True
        await peer.receive(session.Hello, after=times + 1)
    assert await result(peer, "t") == 300
    assert peer.values("t") == list(range(300))


async def test_manager_that_keeps_no_values_gets_none(peer: Peer, new_worker: NewWorker) -> None:
    peer.takes_values = False
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("yields", count=2000, size=1000))
    assert await result(peer, "t") == 2000
    assert peer.values("t") == []
