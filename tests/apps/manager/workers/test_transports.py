"""What is for a worker that polls waits until the worker asks for it, and is given to its last question."""

import asyncio

import pytest

from gpu_orchestrator.apps.manager.workers.transports import LongPollTransport

pytestmark = pytest.mark.looptime


async def test_who_asks_again_has_given_up_what_he_asked_before() -> None:
    box = LongPollTransport(silence_s=60)
    before = asyncio.create_task(box.exchange(b"[]", 30))
    await asyncio.sleep(10)  # the proxy in between has lost it, and the worker knows
    now = asyncio.create_task(box.exchange(b"[]", 30))
    await asyncio.sleep(1)
    await box.send(b"for the worker")
    assert await now == [b"for the worker"]
    assert await before == []


async def test_what_comes_when_nobody_asks_waits() -> None:
    box = LongPollTransport(silence_s=60)
    assert await box.exchange(b"[]", 1) == []
    await box.send(b"one")
    await box.send(b"two")
    assert await box.exchange(b"[]", 1) == [b"one", b"two"]
