"""The RESP client: timeouts, reconnects and lost replies."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_orchestrator.adapters.store.valkey.client import Client
from gpu_orchestrator.adapters.store.valkey.resp import Lost, Refused

GREETING = 2
"""Commands that a client sends before the first of its callers."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def client_of(serve: Serve, answer_s: float, credentials: str = "") -> AsyncIterator[Client]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(
        f"redis://{credentials}127.0.0.1:{server.sockets[0].getsockname()[1]}/0", answer_s=answer_s
    )
    try:
        yield client
    finally:
        await client.close()
        server.close()


async def test_timeout_fails_pending_commands_and_the_next_one_reconnects() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        left = GREETING if connections == 1 else 1000
        while received := await reader.read(1000):
            answered = min(received.count(b"*"), left)
            writer.write(b"+PONG\r\n" * answered)
            left -= answered
        writer.close()

    async with client_of(serve, 0.5) as client:
        replies = [asyncio.ensure_future(client.execute("PING")) for _ in range(3)]
        for each in replies:
            with pytest.raises(Lost, match=r"no answer within 0\.5 s"):
                await each
        assert await client.execute("PING") == b"PONG"
        assert connections == 2


async def test_answering_connection_is_kept() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while received := await reader.read(1000):
            writer.write(b"+PONG\r\n" * received.count(b"*"))
        writer.close()

    async with client_of(serve, 1.0) as client:
        for _ in range(3):
            assert await client.execute("PING") == b"PONG"
            await asyncio.sleep(0.4)  # in total longer than one reply may take
        with pytest.raises(UnicodeEncodeError):
            await client.execute("GET", "\ud800")
        assert await client.execute_all(("PING",), ("PING",)) == [b"PONG", b"PONG"], (
            "every reply matched its command"
        )
        assert connections == 1


async def test_connection_with_wrong_password_is_closed() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                writer.write(b"-WRONGPASS invalid\r\n")
        writer.close()
        ended.set()

    async with client_of(serve, 5.0, ":wrong@") as client:
        with pytest.raises(Refused, match="WRONGPASS"):
            await client.execute("PING")
        async with asyncio.timeout(60):
            await ended.wait()


async def test_commands_lost_together_leave_no_unretrieved_exception() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.close()

    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["message"]))
    async with client_of(serve, 5.0) as client:
        with pytest.raises(Lost):
            await client.execute_all(("PING",), ("PING",))
    await asyncio.sleep(0.1)  # until the last of the connection is gone
    gc.collect()
    assert not errors


async def test_server_of_another_protocol_is_named_without_a_traceback() -> None:
    """As when REDIS_URL names the port of a web server."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with client_of(serve, 5.0) as client:
        with pytest.raises(Lost, match="the server does not speak RESP: b'HTTP"):
            await client.execute("PING")
    assert not reported
