"""uvicorn's WebSocket protocol, which also writes encoded frames as they are, and reads usual ones itself.

A watcher of events gets the same bytes as a thousand others. uvicorn would encode every message for every
watcher, and call the system for each. The application sends `{"type": "websocket.send", "frames": bytes}`
instead. A worker's session does the same, because it costs half as much. What a worker sends is mostly one
whole binary frame, which is read here in a fifth of the steps; all else goes to uvicorn, frame by frame.

`WebSocketsSansIOProtocol` is not public API of uvicorn. The tests of `test_event_feed.py` run the real
protocol, and fail if a new uvicorn no longer works like this.
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from gpu_orchestrator.api.websocket import BINARY, MASK_BYTES, frame_size, head_size

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without the compiled one
    from websockets.utils import apply_mask

MOST_WAITING = 8
"""Messages that may wait for the application before no more are read."""
MASKED = 0x80
LARGEST = 1 << 20
"""The largest frame that is read here; uvicorn knows the limit for larger ones."""


class Inbox:
    """What uvicorn needs of an `asyncio.Queue`, for one reader: a message costs a third of the calls."""

    __slots__ = ("_messages", "_reader")

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        return not self._messages

    def qsize(self) -> int:
        return len(self._messages)

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
        self._knows_bounds = True
        """Whether all that came after the handshake is known to be cut into frames right."""
        self._head, self._missing = b"", 0
        """The beginning of a frame of unknown size, and how many bytes of another are still to come."""

    def data_received(self, data: bytes) -> None:
        if not self.handshake_complete:
            self._knows_bounds = not self.handshake_initiated
        if not (self.handshake_complete and self._knows_bounds):
            return super().data_received(data)
        if self._head:
            data, self._head = self._head + data, b""
        at, end = 0, len(data)
        while at < end:
            size = self._missing or frame_size(data, at)
            if not size:
                self._head = data[at:]
                return None
            if at + size > end or not self._read_usual(data, at, size):
                super().data_received(data[at : at + size])
                self._missing = max(at + size - end, 0)
            at += size
        return None

    def _read_usual(self, data: bytes, at: int, size: int) -> bool:
        """Read a frame that is here whole, or return False if uvicorn has to."""
        if self._missing or data[at] != BINARY or data[at + 1] < MASKED or self.conn.current_size is not None:
            return False
        if self.conn.state is not State.OPEN or self.close_sent or size > LARGEST:
            return False
        start = at + head_size(data, at)
        message = apply_mask(data[start : at + size], data[start - MASK_BYTES : start])
        self.queue.put_nowait({"type": "websocket.receive", "bytes": message})
        if not self.read_paused and self.queue.qsize() >= MOST_WAITING:
            self.read_paused = True
            self.transport.pause_reading()
        return True

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
