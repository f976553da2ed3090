"""A store that takes a question and says nothing."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_orchestrator.adapters.store.valkey.resp import Client, Lost, Refused

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def client_of(serve: Serve, answer_s: float, who: str = "") -> AsyncIterator[Client]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(f"redis://{who}127.0.0.1:{server.sockets[0].getsockname()[1]}/0", answer_s=answer_s)
    try:
        yield client
    finally:
        await client.close()
        server.close()


async def test_who_gets_no_answer_is_told_and_the_next_one_asks_on_a_new_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        is_mute = connections == 1
        while await reader.read(1000):
            if not is_mute:
                writer.write(b"+PONG\r\n")
        writer.close()

    async with client_of(serve, 0.5) as client:
        asked = [asyncio.ensure_future(client.ask("PING")) for _ in range(3)]
        for each in asked:
            with pytest.raises(Lost, match=r"no answer within 0\.5 s"):
                await each
        assert await client.ask("PING") == b"PONG"
        assert connections == 2


async def test_a_connection_that_answers_is_kept() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while asked := await reader.read(1000):
            writer.write(b"+PONG\r\n" * asked.count(b"PING"))
        writer.close()

    async with client_of(serve, 1.0) as client:
        for _ in range(3):
            assert await client.ask("PING") == b"PONG"
            await asyncio.sleep(0.4)  # all in all longer than one answer may take
        with pytest.raises(UnicodeEncodeError):
            await client.ask("GET", "\ud800")
        assert await client.ask_all(("PING",), ("PING",)) == [b"PONG", b"PONG"], "no answer went astray"
        assert connections == 1


async def test_a_connection_that_lets_nobody_in_is_closed() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                writer.write(b"-WRONGPASS invalid\r\n")
        writer.close()
        ended.set()

    async with client_of(serve, 5.0, ":wrong@") as client:
        with pytest.raises(Refused, match="WRONGPASS"):
            await client.ask("PING")
        async with asyncio.timeout(5.0):
            await ended.wait()


async def test_of_several_questions_that_are_lost_together_nobody_complains_later() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.close()

    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said["message"]))
    async with client_of(serve, 5.0) as client:
        with pytest.raises(Lost):
            await client.ask_all(("PING",), ("PING",))
    await asyncio.sleep(0.1)  # until the last of the connection is gone
    gc.collect()
    assert not complaints
