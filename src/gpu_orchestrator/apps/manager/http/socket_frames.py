"""uvicorn's WebSocket protocol, which also writes frames that are encoded already.

A watcher of events gets the same bytes as a thousand others. uvicorn would encode every message for every
watcher, and call the system for each. The application sends `{"type": "websocket.send", "frames": bytes}`
instead. A worker's session does the same, because it costs half as much.

`WebSocketsSansIOProtocol` is not public API of uvicorn. The tests of `test_event_feed.py` run the real
protocol, and fail if a new uvicorn no longer works like this.
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class Inbox:
    """What uvicorn needs of an `asyncio.Queue`, for one reader: a message costs a third of the calls."""

    __slots__ = ("_messages", "_reader")

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        return not self._messages

    def put_nowait(self, message: Any) -> None:
        self._messages.append(message)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        while not self._messages:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._messages.popleft()


class FramesProtocol(WebSocketsSansIOProtocol):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.queue = Inbox()  # type: ignore[assignment]

    async def send(self, message: Any) -> None:
        frames = message.get("frames")
        if frames is None:
            return await super().send(message)
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frames)
        return None
