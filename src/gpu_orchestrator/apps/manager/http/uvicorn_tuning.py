"""Spares system calls that uvicorn makes for every message.

It writes the head of an answer and its body apart, which wakes whoever reads twice, the first time for half
an answer. And it stops reading from a WebSocket until a message was taken, which mostly is in the loop's next
turn.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = b"HTTP/1."


class CoalescingTransport:
    """A transport that keeps the head of an answer until its body comes, or the loop's next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self._pauses = self._is_paused = False

    def pause_reading(self) -> None:
        """Not before whoever was woken by what came had a turn to take it."""
        if not self._pauses:
            self._pauses = True
            self._loop.call_soon(self._pause)

    def resume_reading(self) -> None:
        self._pauses = False
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
        if self._pauses and not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""


class CoalescingHttpProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, CoalescingTransport(transport, self.loop)))
