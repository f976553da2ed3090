"""Tests that the head of a response leaves with its body, and that reading pauses only if needed.

The last test runs a request through uvicorn's private protocol, to notice when a new uvicorn changes it.
"""

import asyncio
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gpu_orchestrator.apps.manager.http.uvicorn_tuning import (
    WHOLE,
    CoalescingHttpProtocol,
    CoalescingTransport,
)

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


async def answered(app: Any, request: bytes) -> Written:
    """Return what the protocol writes for a request to this application."""
    config = uvicorn.Config(
        app, http=CoalescingHttpProtocol, lifespan="off", log_config=None, access_log=False
    )
    config.load()
    state, written = ServerState(), Written()
    protocol = CoalescingHttpProtocol(config, state, {})
    protocol.connection_made(cast(asyncio.Transport, written))
    protocol.data_received(request)
    while state.tasks:
        await asyncio.gather(*state.tasks)
    is_closed = written.is_closed
    protocol.connection_lost(None)
    written.is_closed = is_closed
    return written


async def test_uvicorn_protocol_writes_a_response_at_once() -> None:
    """Fails if a new uvicorn writes past the wrapped transport, or in more steps than head and body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    (call,) = (await answered(app, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).calls
    assert call.startswith(b"HTTP/1.1 200 OK\r\n")
    assert call.endswith(b"\r\n\r\nok")


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
REQUESTS = (
    pytest.param(GET, id="usual"),
    pytest.param(GET.replace(b"GET", b"HEAD"), id="without body"),
    pytest.param(GET.replace(b"Host", b"Connection: close\r\nHost"), id="closes"),
    pytest.param(GET.replace(b"1.1", b"1.0"), id="old client"),
    pytest.param(GET + GET, id="two at once"),
    pytest.param(
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi", id="asks first"
    ),
)


@pytest.mark.parametrize("request_bytes", REQUESTS)
async def test_whole_response_has_the_bytes_of_one_in_two_messages(request_bytes: bytes) -> None:
    bodies: list[bytes] = []

    def app(*, is_whole: bool) -> Any:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            bodies.append((await receive())["body"])
            headers = [(b"content-length", b"2"), (b"x-correlation-id", b"\xe4 b")]
            start = {"type": "http.response.start", "status": 202, "headers": headers}
            await send({**start, WHOLE: b"ok"} if is_whole else start)
            if not is_whole:
                await send({"type": "http.response.body", "body": b"ok"})

        return answer

    whole = await answered(app(is_whole=True), request_bytes)
    usual = await answered(app(is_whole=False), request_bytes)
    assert b"".join(whole.calls) == b"".join(usual.calls)
    assert whole.is_closed == usual.is_closed
    assert bodies == [bodies[0]] * len(bodies)


async def test_header_with_a_line_break_is_refused_in_a_whole_response() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2"), (b"x-correlation-id", b"a\r\nset-cookie: b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers, WHOLE: b"ok"})

    written = await answered(app, GET)
    assert written.calls == []
    assert written.is_closed
