"""The server for metrics and probes, asked over real sockets by friends and by strangers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest

from gpu_orchestrator.adapters import small_server
from gpu_orchestrator.adapters.small_server import Answer, Request, SmallServer
from tests.support.patience import PATIENCE_S

LARGE = b"x" * (64 << 20)


async def about(request: Request) -> Answer:
    return Answer(f"{request.path} {dict(request.query)} {request.address}")


async def fail(_: Request) -> Answer:
    raise RuntimeError("a defect")


async def large(_: Request) -> Answer:
    return Answer(LARGE)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server = SmallServer({"/about": about, "/fails": fail, "/large": large})
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.close()


async def ask(port: int, sent: bytes) -> bytes:
    """Return all that is answered until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (b"GET /about?a=1&b=%20 HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"/about {'a': '1', 'b': ' '} 127.0.0.1"),
        (b"GET http://x/about HTTP/1.0\r\n\r\n", 200, b"/about {} 127.0.0.1"),
        (b"HEAD /about HTTP/1.1\r\n\r\n", 200, b""),
        (b"POST /about HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 405, b"POST is not for here; send GET\n"),
        (b"GET /other HTTP/1.1\r\n\r\n", 404, b"there is /about, /fails, /large here\n"),
        (b"GET //[ HTTP/1.1\r\n\r\n", 400, b"this is no request of HTTP\n"),
        (b"GET /about\r\n\r\n", 400, b"this is no request of HTTP\n"),
        (b"\xff\xfe \x00 HTTP/1.1\r\n\r\n", 400, b"this is no request of HTTP\n"),
        (b"PRI * HTTP/2.0\r\n\r\n", 505, b"send HTTP/1.1\n"),
        (b"GET /fails HTTP/1.1\r\n\r\n", 500, b"this failed; the log says why\n"),
    ],
)
async def test_every_request_is_answered(sent: bytes, status: int, body: bytes) -> None:
    async with serving() as port:
        head, _, found = (await ask(port, sent)).partition(b"\r\n\r\n")
    phrase = HTTPStatus(status).phrase.encode()
    assert head.startswith(b"HTTP/1.1 %d %b\r\n" % (status, phrase))
    assert found == body


async def test_request_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_server, "WAIT_S", 0.05)
    async with serving() as port:
        assert await ask(port, b"GET /about HTTP/1.1\r\n") == b""
        assert await ask(port, b"") == b""


async def test_head_without_an_end_is_cut_off() -> None:
    async with serving() as port:
        assert await ask(port, b"GET /about HTTP/1.1\r\n" + b"A: x\r\n" * small_server.HEAD_BYTES) == b""


async def test_answer_that_nobody_takes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_server, "WAIT_S", 0.05)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.5)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(len(LARGE)), PATIENCE_S)
        writer.close()


async def test_crowd_of_silent_connections_keeps_nobody_out() -> None:
    """One address has them all here; that of the most is tried in the next test."""
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * small_server.MOST)]
        for _ in range(5):
            assert (await ask(port, b"GET /about HTTP/1.1\r\n\r\n")).endswith(b"127.0.0.1")
        closed = 0
        for reader, _ in silent[: small_server.MOST]:
            async with asyncio.timeout(PATIENCE_S):
                closed += await reader.read() == b""
        assert closed == small_server.MOST, "the oldest made room"
        for _, writer in silent:
            writer.close()


async def test_address_with_the_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_server, "MOST", 3)
    async with serving() as port:

        async def silent(address: str) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            writers.append(writer)
            return reader

        writers: list[asyncio.StreamWriter] = []
        alone = await silent("127.0.0.2")
        greedy = [await silent("127.0.0.3") for _ in range(3)]
        async with asyncio.timeout(PATIENCE_S):
            assert await greedy[0].read() == b"", "its oldest"
        writers[0].write(b"GET /about HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert (await alone.read()).endswith(b"127.0.0.2")
        for writer in writers:
            writer.close()
