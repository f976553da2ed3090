"""Save system calls that uvicorn makes for every message, by wrapping the transport of its HTTP protocol.

uvicorn writes the head and the body of a response separately, which wakes the client twice, first for half a
response. It also pauses reading from a WebSocket until the application receives the message, which mostly
happens in the next iteration of the event loop.

This patches `HttpToolsProtocol`, which is not public API of uvicorn. It was written for uvicorn 0.54, the
version pinned in `requirements/manager.txt`. `test_uvicorn_tuning.py` guards it: one test runs a request
through the real protocol and fails if a new uvicorn no longer writes through the wrapped transport.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = b"HTTP/1."


class CoalescingTransport:
    """A transport that holds back the head of a response until its body or the next loop iteration comes."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self._wants_pause = self._is_paused = False

    def pause_reading(self) -> None:
        """Pause in the next loop iteration, unless the application has received the message by then."""
        if not self._wants_pause:
            self._wants_pause = True
            self._loop.call_soon(self._pause)

    def resume_reading(self) -> None:
        self._wants_pause = False
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _pause(self) -> None:
        if self._wants_pause and not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""


class CoalescingHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol on a `CoalescingTransport`. An upgrade to WebSocket keeps the transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, CoalescingTransport(transport, self.loop)))
