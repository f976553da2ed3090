"""One request through the proxy: read, forward, answer, relay or cut.

`perform.py` decides what happens to it; this module does it to the two connections.
"""

import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from tests.faults.calls import Call
from tests.faults.faults import Answer
from tests.faults.kubeconfigs import STAND_IN_TOKEN, Upstream
from tests.faults.streams import OnHit, SeveredError, StreamFault, lines

HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Exchange:
    """`on_status` is called once, when the status is known or the exchange ended without one."""

    request: web.BaseRequest
    call: Call
    body: bytes
    upstream: Upstream
    session: aiohttp.ClientSession
    on_status: Callable[["Exchange"], None]
    status: int | None = field(default=None, init=False)
    _is_reported: bool = field(default=False, init=False)

    def report(self, status: int | None = None) -> None:
        if not self._is_reported:
            self.status, self._is_reported = status, True
            self.on_status(self)

    @contextlib.asynccontextmanager
    async def forward(self, *, readable: bool = False) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request to the server. `readable`: ask for plain JSON, whatever the component accepts."""
        url = URL(self.upstream.server + self.request.raw_path, encoded=True)
        headers = self._headers()
        if readable:
            headers["Accept"] = "application/json"
            headers.popall("Accept-Encoding", None)
        async with self.session.request(
            self.request.method, url, headers=headers, data=self.body or None, allow_redirects=False
        ) as response:
            self.report(response.status)
            try:
                yield response
            finally:
                _abort_unless_read(response)

    async def answer(self, answer: Answer) -> web.StreamResponse:
        self.report(answer.status)
        headers = {} if answer.retry_after is None else {"Retry-After": f"{answer.retry_after:g}"}
        response = web.Response(
            status=answer.status,
            headers=headers,
            body=json.dumps(answer.content()).encode(),
            content_type="application/json",
        )
        await response.prepare(self.request)
        await response.write_eof()
        return response

    async def relay(self, source: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass the server's answer on as it arrives, without waiting for its end."""
        target = await self._begin(source, source.content_length)
        async for chunk in source.content.iter_any():
            await target.write(chunk)
        await target.write_eof()
        return target

    async def relay_through(
        self, fault: StreamFault, source: aiohttp.ClientResponse, on_hit: OnHit
    ) -> web.StreamResponse:
        target = await self._begin(source)
        try:
            async for frame in fault.pass_on(lines(source.content.iter_any()), on_hit):
                await target.write(frame)
        except SeveredError:
            return self.cut(reset=False)
        await target.write_eof()
        return target

    def cut(self, *, reset: bool = True) -> web.StreamResponse:
        """End the component's connection at once: by a TCP reset, or as if the peer had died.

        Without a reset, bytes written before still arrive.
        """
        self.report()
        transport = self.request.transport
        if transport is not None:
            connection = transport.get_extra_info("socket") if reset else None
            if connection is not None:  # a killed component has closed it already
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            transport.abort()
        return web.Response()

    def _headers(self) -> CIMultiDict[str]:
        headers = CIMultiDict(self.request.headers)
        for name in HOP_BY_HOP:
            headers.popall(name, None)
        if headers.get("Authorization") == f"Bearer {STAND_IN_TOKEN}":
            del headers["Authorization"]
        return headers

    async def _begin(self, source: aiohttp.ClientResponse, length: int | None = None) -> web.StreamResponse:
        target = web.StreamResponse(status=source.status, reason=source.reason)
        for name, value in source.headers.items():
            if name.lower() not in HOP_BY_HOP:
                target.headers.add(name, value)
        target.content_length = length
        await target.prepare(self.request)
        return target


def _abort_unless_read(response: aiohttp.ClientResponse) -> None:
    """Abort a half-read stream: a clean TLS close would need a handshake that the proxy does not wait for."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
