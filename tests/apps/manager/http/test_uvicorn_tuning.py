"""Tests that the head of a response leaves with its body, and that reading pauses only if needed.

The last test runs a request through uvicorn's private protocol, to notice when a new uvicorn changes it.
"""

import asyncio
from typing import cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gpu_orchestrator.apps.manager.http.uvicorn_tuning import CoalescingHttpProtocol, CoalescingTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Written:
    """Stands for the socket's transport. Each item of `calls` is one system call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.is_closed = False
        self.pauses: list[str] = []

    def pause_reading(self) -> None:
        self.pauses.append("pause")

    def resume_reading(self) -> None:
        self.pauses.append("resume")

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
async def both() -> tuple[CoalescingTransport, Written]:
    written = Written()
    return CoalescingTransport(cast(asyncio.Transport, written), asyncio.get_running_loop()), written


async def test_head_and_body_are_one_write(both: tuple[CoalescingTransport, Written]) -> None:
    joined, written = both
    joined.write(HEAD)
    joined.write(b"ok")
    assert written.calls == [HEAD + b"ok"]
    await asyncio.sleep(0)
    assert written.calls == [HEAD + b"ok"], "nothing is left to write"


async def test_head_is_written_in_the_next_iteration_if_no_body_came(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    joined.write(HEAD)
    assert written.calls == []
    await asyncio.sleep(0)
    assert written.calls == [HEAD]
    joined.write(b"event: one\n\n")
    assert written.calls == [HEAD, b"event: one\n\n"]


async def test_data_other_than_a_head_is_written_at_once(both: tuple[CoalescingTransport, Written]) -> None:
    joined, written = both
    joined.write(b"\x82\x03abc")
    assert written.calls == [b"\x82\x03abc"]


async def test_close_writes_a_pending_head(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    joined.write(HEAD)
    joined.close()
    assert written.calls == [HEAD]
    assert written.is_closed
    joined.write(HEAD)
    await asyncio.sleep(0)
    assert written.calls == [HEAD], "nothing is written to a closed transport"
    assert joined.is_closing()


async def test_pause_resumed_in_the_next_iteration_never_happens(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    resumed = asyncio.get_running_loop().call_soon(joined.resume_reading)
    joined.pause_reading()
    await asyncio.sleep(0)
    assert not resumed.cancelled()
    assert written.pauses == []


async def test_pause_lasts_until_resumed(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    joined.pause_reading()
    joined.pause_reading()
    await asyncio.sleep(0)
    assert written.pauses == ["pause"]
    joined.resume_reading()
    joined.resume_reading()
    assert written.pauses == ["pause", "resume"]


async def test_closed_connection_is_not_paused(both: tuple[CoalescingTransport, Written]) -> None:
    joined, written = both
    joined.pause_reading()
    joined.close()
    await asyncio.sleep(0)
    assert written.pauses == []


async def test_uvicorn_protocol_writes_a_response_at_once() -> None:
    """Fails if a new uvicorn writes past the wrapped transport, or in more steps than head and body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config = uvicorn.Config(app, http=CoalescingHttpProtocol, lifespan="off", log_config=None)
    config.load()
    state, written = ServerState(), Written()
    protocol = CoalescingHttpProtocol(config, state, {})
    protocol.connection_made(cast(asyncio.Transport, written))
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.gather(*state.tasks)
    (call,) = written.calls
    assert call.startswith(b"HTTP/1.1 200 OK\r\n")
    assert call.endswith(b"\r\n\r\nok")
    protocol.connection_lost(None)
