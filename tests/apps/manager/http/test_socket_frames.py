"""Frames that the manager reads itself arrive as uvicorn's own protocol reads them, however they are cut."""

import asyncio
from random import Random
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from gpu_orchestrator.apps.manager.http.socket_frames import FramesProtocol

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SIZES = (0, 1, 125, 126, 5000, 70_000)
BAD = (
    pytest.param(b"\x82\x01a", id="not masked"),
    pytest.param(b"\xc2\x80abcd", id="reserved bit"),
    pytest.param(b"\x82\xff\x7f" + bytes(11), id="far too large"),
)


class Wire:
    """Stands for the socket's transport."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def frame(opcode: Opcode, payload: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


def stream(chance: Random) -> bytes:
    """Return frames as any client may send them: most are whole and binary."""
    found = []
    for _ in range(20):
        payload = chance.randbytes(chance.choice(SIZES))
        match chance.randrange(8):
            case 0:
                found.append(frame(Opcode.TEXT, payload.hex().encode()))
            case 1:
                found.append(frame(Opcode.PING, payload[:100]))
            case 2:
                found.append(frame(Opcode.BINARY, payload, fin=False))
                found.append(frame(Opcode.PONG, b"between"))
                found.append(frame(Opcode.CONT, payload))
            case _:
                found.append(frame(Opcode.BINARY, payload))
    return b"".join(found)


def cut(data: bytes, chance: Random) -> list[bytes]:
    pieces = []
    while data:
        size = chance.choice((1, 2, 5, 9, 300, 20_000))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


async def received(kind: type[WebSocketsSansIOProtocol], pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """Return the messages that an application receives by this protocol, and what was written to the peer."""
    messages: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not messages or messages[-1]["type"] != "websocket.disconnect":
            messages.append(dict(await receive()))

    config = uvicorn.Config(
        app, ws=kind, lifespan="off", log_config=None, ws_per_message_deflate=False, ws_max_size=1 << 20
    )
    config.load()
    state, wire = ServerState(), Wire()
    protocol = kind(config, state, {})
    protocol.connection_made(cast(asyncio.Transport, wire))
    protocol.data_received(REQUEST)
    while not wire.written:  # noqa: ASYNC110 - the application accepts in its own task
        await asyncio.sleep(0)
    wire.written.clear()
    for piece in pieces:
        protocol.data_received(piece)
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks)
    return messages, b"".join(wire.written)


@pytest.mark.parametrize("seed", range(8))
async def test_messages_are_those_that_uvicorn_reads(seed: int) -> None:
    chance = Random(seed)
    pieces = cut(stream(chance), chance)
    assert await received(FramesProtocol, pieces) == await received(WebSocketsSansIOProtocol, pieces)


@pytest.mark.parametrize("bad", BAD)
async def test_bad_frames_close_the_connection_as_with_uvicorn(bad: bytes) -> None:
    pieces = [frame(Opcode.BINARY, b"good"), bad, frame(Opcode.BINARY, b"too late")]
    ours = await received(FramesProtocol, pieces)
    assert ours == await received(WebSocketsSansIOProtocol, pieces)
    messages, told = ours
    assert messages[0]["bytes"] == b"good"
    assert told, "the peer hears why the connection ends"


async def test_nothing_is_received_after_the_peer_has_closed() -> None:
    close = frame(Opcode.CLOSE, (1000).to_bytes(2, "big"))
    pieces = [frame(Opcode.BINARY, b"good"), close + frame(Opcode.BINARY, b"too late")]
    messages, _ = await received(FramesProtocol, pieces)
    assert [each.get("bytes") for each in messages] == [b"good", None]
