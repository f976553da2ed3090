"""A proxy between a server and its store that sees one script go by, so that a test can kill the server just
before it, or after it with the answer lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

from gpu_orchestrator.adapters.store.valkey.scripts import Script

When = Literal["before it", "after it, without its answer", "after its answer"]
PIECE = 65_536


class ScriptProxy:
    """`port` is where the server finds the store. Armed, it stops at the next call of the script, and sets
    `hit`."""

    def __init__(self, store_port: int, script: Script[Any]) -> None:
        self._store_port, self._digest = store_port, script.digest.encode()
        self._armed: When | None = None
        self.hit = asyncio.Event()
        self.port = 0

    def arm(self, when: When | None) -> None:
        self._armed = when
        self.hit.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_store: asyncio.StreamWriter
        from_store, to_store = await asyncio.open_connection("127.0.0.1", self._store_port)
        link = _Link()
        both = [
            asyncio.create_task(self._ask(link, reader, to_store)),
            asyncio.create_task(self._answer(link, from_store, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (to_store, writer):
                end.close()

    async def _ask(self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        before = b""
        while data := await reader.read(PIECE):
            is_called = self._armed is not None and self._digest in before + data
            before = data[-len(self._digest) :]
            if is_called and self._armed == "before it":
                self._stop()
                return
            link.called = link.called or is_called
            writer.write(data)

    async def _answer(
        self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(PIECE):
            if link.called and self._armed == "after it, without its answer":
                self._stop()
                return
            writer.write(data)
            if link.called and self._armed is not None:
                self._stop()
            link.called = False

    def _stop(self) -> None:
        self._armed = None
        self.hit.set()


class _Link:
    """One connection; `called`: the script was called and has not answered."""

    called = False


@contextlib.asynccontextmanager
async def watching(store_port: int, script: Script[Any]) -> AsyncIterator[ScriptProxy]:
    proxy = ScriptProxy(store_port, script)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
