"""A TCP proxy that passes on a number of bytes a second, in each direction: a slow link to a manager."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 4096


@asynccontextmanager
async def slow_link(port: int, bytes_per_s: float) -> AsyncIterator[int]:
    """Run the proxy in front of a port of this machine; yield its own port."""
    links: set[asyncio.Task[None]] = set()

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links.add(asyncio.current_task())  # type: ignore[arg-type]  # it runs in one
        await _joined(reader, writer, port, bytes_per_s)

    server = await asyncio.start_server(link, "127.0.0.1", 0, limit=CHUNK)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in links:  # Python 3.12 would wait until the other ends close their connections
            each.cancel()
        await asyncio.gather(*links, return_exceptions=True)


async def _joined(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, bytes_per_s: float
) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
    both = {
        asyncio.create_task(_passed_on(reader, far_writer, bytes_per_s)),
        asyncio.create_task(_passed_on(far_reader, writer, bytes_per_s)),
    }
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
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
