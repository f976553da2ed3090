"""Frames for a polling worker wait until it polls, and go to its latest poll."""

import asyncio

import pytest

from gpu_orchestrator.apps.manager.workers.transports import LongPollTransport

pytestmark = pytest.mark.looptime


async def test_new_poll_ends_the_previous_one_without_frames() -> None:
    transport = LongPollTransport(silence_s=60)
    before = asyncio.create_task(transport.exchange(b"[]", 30))
    await asyncio.sleep(10)  # the proxy has dropped the poll, and the worker noticed
    now = asyncio.create_task(transport.exchange(b"[]", 30))
    await asyncio.sleep(1)
    await transport.send(b"for the worker")
    assert await now == [b"for the worker"]
    assert await before == []


async def test_frames_wait_until_the_next_poll() -> None:
    transport = LongPollTransport(silence_s=60)
    assert await transport.exchange(b"[]", 1) == []
    await transport.send(b"one")
    await transport.send(b"two")
    assert await transport.exchange(b"[]", 1) == [b"one", b"two"]
