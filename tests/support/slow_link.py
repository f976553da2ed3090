"""A TCP proxy that passes on so many bytes a second, in each direction: a slow link to a manager."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 4096


@asynccontextmanager
async def slow_link(port: int, bytes_per_s: float) -> AsyncIterator[int]:
    """Run the proxy in front of a port of this machine; yield its own port."""
    server = await asyncio.start_server(
        lambda reader, writer: _joined(reader, writer, port, bytes_per_s), "127.0.0.1", 0, limit=CHUNK
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _joined(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, bytes_per_s: float
) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
    both = {
        asyncio.create_task(_passed_on(reader, far_writer, bytes_per_s)),
        asyncio.create_task(_passed_on(far_reader, writer, bytes_per_s)),
    }
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for each in both:
        each.cancel()
    for end in (writer, far_writer):
        end.close()


async def _passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_s: float) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(len(data) / bytes_per_s)
