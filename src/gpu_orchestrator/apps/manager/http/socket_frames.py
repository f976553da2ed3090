"""uvicorn's WebSocket protocol, which also writes frames that are encoded already.

A watcher of events gets the same bytes as a thousand others. uvicorn would encode every message for every
watcher, and call the system for each. The application sends `{"type": "websocket.send", "frames": bytes}`
instead.

`WebSocketsSansIOProtocol` is not public API of uvicorn. The tests of `test_event_feed.py` run the real
protocol, and fail if a new uvicorn no longer works like this.
"""

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class FramesProtocol(WebSocketsSansIOProtocol):
    async def send(self, message: Any) -> None:
        frames = message.get("frames")
        if frames is None:
            return await super().send(message)
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frames)
        return None
