"""uvicorn's protocols with bounds: on the head of a request, on how slowly it may come, on open connections.

uvicorn takes heads of any length and waits for a request without end, so that anybody could fill the memory
of the server or keep all of its connections. These are subclasses of classes that are not public API of
uvicorn, as in `uvicorn_tuning`; `test_guarded_protocol.py` runs requests through them."""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gpu_orchestrator.apps.manager.access.connections import PEER, Connections, Reason, address_of
from gpu_orchestrator.apps.manager.http.request_pace import HEAD_BYTES, LEAST_BYTES_PER_S, Phase, RequestPace
from gpu_orchestrator.apps.manager.http.socket_frames import FramesProtocol
from gpu_orchestrator.apps.manager.http.uvicorn_tuning import CoalescingHttpProtocol

TOO_LONG = f"the head of the request is longer than {HEAD_BYTES >> 10} KiB; send less in headers"
TOO_SLOW = (
    "the request did not come in time; send its head without a pause, and its body with at least "
    f"{LEAST_BYTES_PER_S} bytes a second"
)


class GuardedHttpProtocol(CoalescingHttpProtocol):
    """One connection. It is a `Peer` and a `Receiver` of `Connections`."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections = connections
        self._pace = RequestPace(self.loop.time())
        self._is_admitted = self._is_upgraded = False
        self.address = ""
        self.is_known = False
        self.app_state = {**self.app_state, PEER: self}

    # --- the connection ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.address = address_of(transport.get_extra_info("peername"))
        self._is_admitted = self._connections.admit(self)
        if not self._is_admitted:
            transport.abort()
            return
        super().connection_made(transport)
        self._connections.receiving[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_admitted:
            self.left()
            super().connection_lost(exc)
            # Both refer to this object; without them it is freed at once, not with the next garbage.
            self.app_state, self.scope = {}, None  # type: ignore[assignment]

    def left(self) -> None:
        self._connections.receiving.pop(self, None)
        self._connections.leave(self)

    def recognise(self) -> None:
        if not self.is_known:
            self._connections.recognise(self)

    @property
    def is_busy(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return self._is_upgraded or (cycle is not None and not cycle.response_complete)

    def evict(self) -> None:
        self.transport.abort()

    # --- a request -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            return
        if len(data) <= HEAD_BYTES:
            self._feed(data)
            return
        for start in range(0, len(data), HEAD_BYTES):
            if self.transport.is_closing() or self._is_upgraded:
                return
            self._feed(data[start : start + HEAD_BYTES])

    def _feed(self, data: bytes) -> None:
        pace = self._pace
        before = pace.phase
        super().data_received(data)
        if pace.phase is Phase.NONE or self._is_upgraded:
            if not pace.begun and before is Phase.NONE and not self.is_busy:
                pace.phase = Phase.SILENT  # empty lines: they begin no request, but end the wait for one
                pace.restart(self.loop.time())
                self._connections.receiving[self] = None
            elif before is not Phase.NONE:
                self._connections.receiving.pop(self, None)
            pace.begun, pace.has_content = 0, False
            return
        if pace.begun or pace.phase is not before:
            pace.restart(self.loop.time())
            self._connections.receiving[self] = None
        if pace.is_too_long(len(data), before):
            self._refuse(b"431 Request Header Fields Too Large", TOO_LONG, "head")

    def on_message_begin(self) -> None:
        self._pace.phase = Phase.HEAD
        self._pace.begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._pace.phase = Phase.BODY
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pace.has_content = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pace.phase = Phase.NONE
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._is_upgraded = True
        super().handle_websocket_upgrade()

    def check(self, now: float) -> None:
        is_paused = self.flow.read_paused
        if self._pace.is_overdue(now, self._connections.limits.head_s, is_paused=is_paused):
            self._refuse(b"408 Request Timeout", TOO_SLOW, "slow")

    def _refuse(self, status: bytes, why: str, reason: Reason) -> None:
        """Answer, unless another answer is under way or the peer has sent nothing; close the connection."""
        self._connections.count_closed(reason)
        self._connections.receiving.pop(self, None)
        is_ours = self.cycle.response_started if self._pace.phase is Phase.BODY else self.is_busy
        if self._pace.phase is not Phase.SILENT and not is_ours:
            self._answer(status, why)
        self.transport.close()

    def _answer(self, status: bytes, why: str) -> None:
        code = status[4:].decode().lower().replace(" ", "_")
        body = msgspec.json.encode({"error": {"code": code, "message": why, "details": {}}})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(
            body
        )
        self.transport.write(b"HTTP/1.1 " + status + b"\r\n" + head + body)


class GuardedWebSocketProtocol(FramesProtocol):
    """A WebSocket counts as the connection that it began as."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.app_state[PEER].left()
        super().connection_lost(exc)
