"""Save system calls and steps that uvicorn takes for every message: wrap the transport of its HTTP protocol,
and write a whole response at once.

uvicorn writes the head and the body of a response separately, which wakes the client twice, first for half a
response. It also pauses reading from a WebSocket until the application receives the message, which mostly
happens in the next iteration of the event loop.

This patches `HttpToolsProtocol`, which is not public API of uvicorn. It was written for uvicorn 0.54, the
version pinned in `requirements/manager.txt`. `test_uvicorn_tuning.py` guards it: one test runs a request
through the real protocol and fails if a new uvicorn no longer writes through the wrapped transport.
"""

import asyncio
import re
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

HEAD = b"HTTP/1."
WHOLE = "whole"
"""In the `extensions` of a request: its `http.response.start` may have the body, too, as `whole`. The headers
must then have the length of the body, and neither a transfer encoding nor `connection`."""
CONTROLS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


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
        elif data.startswith(HEAD) and data.endswith(b"\r\n\r\n"):
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


class QuickCycle(RequestResponseCycle):
    """One request. A response that is given whole is written with a third of the steps."""

    async def send(self, message: Any) -> None:
        whole = message.get(WHOLE)
        if whole is None:
            await super().send(message)
        elif not self._write_whole(message, whole):
            await super().send(message)
            await super().send({"type": "http.response.body", "body": whole, "more_body": False})

    def _write_whole(self, message: Any, body: bytes) -> bool:
        """Write a response, or return False if it is an unusual one."""
        is_usual = self.keep_alive and not (self.response_started or self.access_log or self.disconnected)
        if not is_usual or self.flow.write_paused or self.scope["method"] == "HEAD":
            return False
        headers = [*self.default_headers, *message["headers"]]
        lines = b"".join([b"%b: %b\r\n" % each for each in headers])
        if len(CONTROLS.findall(lines)) != 2 * len(headers):
            return False  # uvicorn raises for a header that would be two
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[message["status"]], lines, body))
        self.message_event.set()
        self.on_response()
        return True

    async def receive(self) -> ASGIReceiveEvent:
        """Return a request that is here whole without waiting for it."""
        if self.more_body or self.waiting_for_100_continue or self.disconnected or self.response_complete:
            return await super().receive()
        if not self.message_event.is_set():
            return await super().receive()
        self.message_event.clear()
        self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}


class CoalescingHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol on a `CoalescingTransport`. An upgrade to WebSocket keeps the transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, CoalescingTransport(transport, self.loop)))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {WHOLE: {}}

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = QuickCycle
        super()._start_asgi_task(cycle, app)
