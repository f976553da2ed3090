"""Messages of channels over a connection of their own. While none come, the server is asked whether it is
there: a silent connection looks the same as one whose server is gone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gpu_orchestrator.adapters.store.valkey.resp import Connection

PING_S = 2.0


async def messages(connection: Connection, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yield messages of these channels until the connection is lost; then end it."""
    received: asyncio.Queue[list[Any]] = asyncio.Queue()
    connection.on_message = received.put_nowait
    try:
        for channel in channels:
            await connection.execute("SUBSCRIBE", channel)
        while connection.is_open:
            message = asyncio.ensure_future(received.get())
            await asyncio.wait(
                [message, connection.lost], timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
            )
            if message.done():
                _, channel_name, data = message.result()
                yield channel_name.decode(), data
                continue
            message.cancel()
            if connection.is_open:
                connection.execute("PING").add_done_callback(_retrieve)
    finally:
        connection.abort()


def _retrieve(reply: "asyncio.Future[Any]") -> None:
    """Take note of the exception: without an answer in time, the connection ends by itself."""
    if not reply.cancelled():
        reply.exception()
