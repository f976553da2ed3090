"""What carries a worker's session: a WebSocket, or for a worker behind a proxy that knows none, long polling.

A session reads and writes frames; it does not know which of both brings them.
"""

import asyncio
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from gpu_orchestrator.adapters.background import wait_until_set


class Parted(Exception):
    """The other side is gone."""


class Wire(Protocol):
    """Raises `Parted` when nobody is there any more."""

    async def receive(self) -> bytes | str: ...

    async def send(self, frame: bytes) -> None: ...

    async def close(self) -> None: ...


class Socket:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> bytes | str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Parted
        text: bytes | str = message.get("bytes") or message.get("text") or b"[]"
        return text

    async def send(self, frame: bytes) -> None:
        try:
            await self._websocket.send_bytes(frame)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise Parted from error

    async def close(self) -> None:
        try:
            await self._websocket.close()
        except (WebSocketDisconnect, RuntimeError) as error:
            raise Parted from error


class Mailbox:
    """Frames wait here until the worker asks for them. Who does not ask for `silence_s` is gone."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._in: asyncio.Queue[bytes] = asyncio.Queue()
        self._out: list[bytes] = []
        self._more = asyncio.Event()
        self._asked = 0
        self.closed = False

    async def receive(self) -> bytes | str:
        try:
            async with asyncio.timeout(self._silence_s):
                return await self._in.get()
        except TimeoutError as error:
            self.closed = True
            raise Parted from error

    async def send(self, frame: bytes) -> None:
        self._out.append(frame)
        self._more.set()

    async def close(self) -> None:
        self.closed = True
        self._more.set()

    async def exchange(self, said: bytes, timeout_s: float) -> list[bytes]:
        """Hand in a frame, take what is there; wait for something if nothing is. Who asks again has given up
        what he asked before: nothing is taken for that any more."""
        self._in.put_nowait(said)
        asked = self._asked = self._asked + 1
        if not self._out and not self.closed:
            self._more.clear()
            await wait_until_set(self._more, timeout_s)
        if asked != self._asked:
            return []
        taken, self._out = self._out, []
        return taken
