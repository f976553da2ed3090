"""Tests of the bounds on a request's head, on how slowly it may come, and on what closes with it.

Requests run through uvicorn's private protocol, to notice when a new uvicorn changes it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gpu_orchestrator.apps.manager.access.connections import PEER, ConnectionLimits, Connections
from gpu_orchestrator.apps.manager.http.guarded_protocol import GuardedHttpProtocol
from gpu_orchestrator.apps.manager.http.request_pace import HEAD_BYTES

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
HEAD_S = 30.0


class Wire:
    """Stands for the socket's transport."""

    def __init__(self) -> None:
        self.written = b""
        self.how = "open"

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, _name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.how != "open"

    def close(self) -> None:
        self.how = "closed"

    def abort(self) -> None:
        self.how = "aborted"

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def status(self) -> int:
        return int(self.written[9:12]) if self.written else 0


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer once the whole body is there."""
    if scope["path"] == "/keyed":
        scope["state"][PEER].recognise()
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


Open = Callable[[], tuple[GuardedHttpProtocol, Wire]]


@pytest.fixture
def connections() -> Connections:
    return Connections(ConnectionLimits(most=4, strangers_per_address=2, head_s=HEAD_S))


@pytest.fixture
async def connect(connections: Connections) -> AsyncIterator[Open]:
    config = uvicorn.Config(echo, lifespan="off", log_config=None, server_header=False, date_header=False)
    config.load()
    state = ServerState()

    def opened() -> tuple[GuardedHttpProtocol, Wire]:
        wire = Wire()
        protocol = GuardedHttpProtocol(connections, config=config, server_state=state, app_state={})
        protocol.connection_made(cast(asyncio.Transport, wire))
        return protocol, wire

    yield opened
    for task in list(state.tasks):
        task.cancel()


async def answered(wire: Wire) -> int:
    for _ in range(20):
        await asyncio.sleep(0)
    return wire.status


def later(connections: Connections, seconds: float) -> None:
    connections.close_overdue(asyncio.get_running_loop().time() + seconds)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1000, 4096, 65_536, 256_000])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(GET + b"X: " + b"a" * 60_000 + b"\r\n\r\n", 200, id="a long header"),
        pytest.param(GET + b"X: " + b"a" * 66_000 + b"\r\n\r\n", 431, id="a header that is too long"),
        pytest.param(
            GET + b"".join(b"X%d: a\r\n" % n for n in range(8000)) + b"\r\n", 431, id="many headers"
        ),
        pytest.param(b"GET /" + b"a" * 70_000, 431, id="a path that is too long"),
        pytest.param(
            CHUNKED + b"3\r\nabc\r\n0\r\nX: " + b"a" * 140_000, 431, id="a trailer that is too long"
        ),
        pytest.param(CHUNKED + b"30000\r\n" + b"a" * 0x30000 + b"\r\n0\r\n\r\n", 200, id="a large chunk"),
    ],
)
async def test_head_has_a_bound(connect: Open, head: bytes, status: int, size: int) -> None:
    protocol, wire = connect()
    for piece in pieces(head, size):
        if not wire.is_closing():
            protocol.data_received(piece)
        await asyncio.sleep(0)
    assert await answered(wire) == status
    assert wire.how == ("closed" if status == 431 else "open")


async def test_unfinished_header_keeps_no_more_than_the_bound(connect: Open) -> None:
    protocol, wire = connect()
    protocol.data_received(GET + b"X: ")
    sent = 0
    while not wire.is_closing():
        protocol.data_received(b"a" * 16_384)
        sent += 16_384
    assert sent <= HEAD_BYTES + 16_384
    assert b'"code":"request_header_fields_too_large"' in wire.written


async def test_pipelined_requests_are_not_taken_for_one_head(connect: Open) -> None:
    protocol, wire = connect()
    one = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30000\r\n\r\n" + b"a" * 30_000
    for piece in pieces(one * 6 + GET, 65_536):
        protocol.data_received(piece)
        assert await answered(wire) == 200
    assert wire.how == "open"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"", 0, id="nothing"),
        pytest.param(b"\r\n", 0, id="an empty line"),
        pytest.param(b"GET / HT", 408, id="part of a line"),
        pytest.param(GET + b"X-", 408, id="part of a head"),
        pytest.param(LENGTH, 408, id="no body"),
        pytest.param(LENGTH + b"a" * 1000, 408, id="part of a body"),
        pytest.param(CHUNKED + b"3\r\nabc\r\n", 408, id="a chunk"),
    ],
)
async def test_request_that_does_not_come_is_refused(
    connect: Open, connections: Connections, sent: bytes, status: int
) -> None:
    protocol, wire = connect()
    if sent:
        protocol.data_received(sent)
    later(connections, HEAD_S - 1)
    assert wire.how == "open"
    later(connections, HEAD_S + 1)
    assert wire.how == "closed"
    assert await answered(wire) == status
    assert not connections.receiving


async def test_drip_of_single_bytes_does_not_prolong_the_head(
    connect: Open, connections: Connections
) -> None:
    protocol, wire = connect()
    for _ in range(100):
        protocol.data_received(b"\r\n")
    protocol.data_received(b"GET / HTTP/1.1\r\nX: ")
    for _ in range(100):
        protocol.data_received(b"a")
    later(connections, HEAD_S + 1)
    assert wire.status == 408


async def test_empty_lines_after_an_answer_do_not_keep_the_connection(
    connect: Open, connections: Connections
) -> None:
    protocol, wire = connect()
    protocol.data_received(GET + b"\r\n")
    assert await answered(wire) == 200
    protocol.data_received(b"\r\n")
    later(connections, HEAD_S + 1)
    assert wire.how == "closed"


async def test_body_at_a_fair_pace_may_take_long(connect: Open, connections: Connections) -> None:
    protocol, wire = connect()
    protocol.data_received(LENGTH)
    for window in range(1, 10):
        protocol.data_received(b"a" * 40_000)
        await asyncio.sleep(0)
        later(connections, window * (HEAD_S + 1))
        assert wire.how == "open"
    later(connections, 10 * (HEAD_S + 1))
    assert wire.how == "closed"


async def test_peer_is_not_to_blame_while_we_do_not_read(connect: Open, connections: Connections) -> None:
    protocol, wire = connect()
    protocol.data_received(LENGTH)
    protocol.flow.pause_reading()
    later(connections, HEAD_S + 1)
    assert wire.how == "open"
    protocol.flow.resume_reading()
    later(connections, 2 * (HEAD_S + 1))
    assert wire.how == "closed"


async def test_answered_request_is_not_overdue(connect: Open, connections: Connections) -> None:
    protocol, wire = connect()
    protocol.data_received(LENGTH)
    protocol.data_received(b"a" * 1_000_000)
    assert not connections.receiving
    later(connections, 1000)
    assert wire.how == "open"


async def test_stranger_gives_way_and_a_caller_with_a_key_stays(
    connect: Open, connections: Connections
) -> None:
    (keyed, keyed_wire), (_, oldest) = connect(), connect()
    keyed.data_received(b"GET /keyed HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await answered(keyed_wire) == 200
    others = [connect()[1] for _ in range(3)]
    assert [each.how for each in (keyed_wire, oldest, *others)] == [
        "open",
        "aborted",
        "aborted",
        "open",
        "open",
    ]
    assert (connections.known, connections.strangers) == (1, 2)


async def test_lost_connections_are_forgotten(connect: Open, connections: Connections) -> None:
    protocol, _ = connect()
    protocol.data_received(GET)
    protocol.connection_lost(None)
    assert (connections.known, connections.strangers, len(connections.receiving)) == (0, 0, 0)


async def test_refused_connection_is_closed_without_harm() -> None:
    class Full(Connections):
        def admit(self, peer: Any) -> bool:
            return False

    config = uvicorn.Config(echo, lifespan="off", log_config=None)
    config.load()
    protocol = GuardedHttpProtocol(Full(), config=config, server_state=ServerState(), app_state={})
    wire = Wire()
    protocol.connection_made(cast(asyncio.Transport, wire))
    protocol.data_received(GET)
    protocol.connection_lost(None)
    assert (wire.how, wire.written) == ("aborted", b"")
