"""The transport for many small writes: its own HTTP/1.1, with a third of the CPU of a general client.

Many connections, one request at a time on each (pipelining made it slower). Its base class `HttpTransport`
handles streams, and everything through a proxy.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.kube.auth.config import Config
from gpu_orchestrator.adapters.kube.auth.credentials import Identity
from gpu_orchestrator.adapters.kube.errors import BadAnswer, LostAnswer, Unreachable
from gpu_orchestrator.adapters.kube.transport.base import (
    CONNECT_LIMIT_S,
    CONNECTIONS,
    KEEP_IDLE_S,
    MAX_BYTES,
    Answer,
    HttpTransport,
    Request,
    check_headers,
)
from gpu_orchestrator.adapters.kube.transport.http1 import Parser

CLOSE_S = 1.0


class PooledTransport(HttpTransport):
    def __init__(self, config: Config, *, max_bytes: int = MAX_BYTES, connections: int = CONNECTIONS) -> None:
        parts = urlsplit(config.server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        # After the lines above, so that a failure there leaves no session open.
        super().__init__(config, max_bytes=max_bytes, connections=connections)
        self._prefix, self._netloc, self._is_tls = parts.path, parts.netloc, parts.scheme == "https"
        self._free = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []
        self._open_now: set[_Connection] = set()
        self._known_head: tuple[Identity, bytes] = (Identity(), b"")

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        if self._config.proxy:
            return await super().send(request, timeout_s=timeout_s, renew=renew)
        identity = await self._config.credentials.current(renew=renew)
        raw = self._raw(request, identity)
        try:
            async with asyncio.timeout(timeout_s), self._free:
                answer = await self._exchange(raw, identity)
        except TimeoutError as error:
            raise self._translated(error, timeout_s) from error
        if answer.status == 401:
            self._check_expiry(identity)
        return answer

    async def close(self) -> None:
        """Close each connection, then abort those that are still open after `CLOSE_S`."""
        leaving = list(self._open_now)
        for connection in leaving:
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for connection in leaving:
                    await connection.is_closed.wait()
        for connection in leaving:
            connection.abort()
        await super().close()

    async def _exchange(self, raw: bytes, identity: Identity) -> Answer:
        connection = self._take_idle(identity) or await self._connect(identity)
        try:
            answer = await connection.exchange(raw)
        except LostAnswer as error:
            server = f"{self._config.server} ({self._config.source})"
            raise LostAnswer(f"the connection to {server} broke: {error}") from error
        except BaseException:
            connection.abort()  # a late answer would be read as the answer to the next request
            raise
        if connection.is_open:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return answer

    def _take_idle(self, identity: Identity) -> "_Connection | None":
        """Return the connection used last, so that the others expire when a few are enough."""
        oldest = asyncio.get_running_loop().time() - KEEP_IDLE_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.certificate_pem == identity.certificate_pem:
                return connection
            connection.abort()
        return None

    async def _connect(self, identity: Identity) -> "_Connection":
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._is_tls:
            name = self._config.trust.server_name or self._host
            tls = {"ssl": self._context_for(identity), "server_hostname": name}
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, identity.certificate_pem),
                    self._host,
                    self._port,
                    **tls,
                )
        except TimeoutError as error:
            raise Unreachable(self._unreachable(f"no connection within {CONNECT_LIMIT_S:.0f} s")) from error
        except ConnectionResetError as error:
            raise Unreachable(self._unreachable("the connection was reset in the TLS handshake")) from error
        except ssl.SSLError as error:
            raise self._translated(error, CONNECT_LIMIT_S) from error
        except OSError as error:
            raise Unreachable(self._unreachable(error.strerror or str(error))) from error
        made: _Connection = connection
        return made

    def _raw(self, request: Request, identity: Identity) -> bytes:
        line = f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n".encode("ascii")
        if request.body is None:
            return line + self._head(identity) + b"\r\n"
        about = f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n\r\n"
        return b"".join((line, self._head(identity), about.encode("ascii"), request.body))

    def _head(self, identity: Identity) -> bytes:
        """Return the header lines that all requests share. Make new ones when the credentials change."""
        known, head = self._known_head
        if not head or known != identity:
            head = self._make_head(identity)
            self._known_head = (identity, head)
        return head

    def _make_head(self, identity: Identity) -> bytes:
        fields = [
            ("Host", self._netloc),
            ("User-Agent", f"gpu-orchestrator/{__version__}"),
            ("Accept", "application/json"),
            *self._config.headers,
        ]
        if identity.authorization:
            fields.append(("Authorization", identity.authorization))
        check_headers(fields, self._config.source)
        # UTF-8, as client-go sends them: the name of a user to impersonate may be in any script.
        return "".join(f"{name}: {value}\r\n" for name, value in fields).encode()


class _Connection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self, owner: PooledTransport, certificate_pem: bytes) -> None:
        self.certificate_pem, self.idle_since, self.is_open = certificate_pem, 0.0, False
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._parser = Parser(owner._max_bytes)
        self.is_closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = transport, True  # type: ignore[assignment]  # a stream's transport
        self._owner._open_now.add(self)

    async def exchange(self, raw: bytes) -> Answer:
        if not self.is_open or self._transport is None:
            raise Unreachable(self._owner._unreachable("the connection was closed before it could be used"))
        self._waiter = asyncio.get_running_loop().create_future()
        self._parser = Parser(self._owner._max_bytes)
        self._transport.write(raw)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def data_received(self, data: bytes) -> None:
        if self._waiter is None or self._waiter.done():
            self.abort()  # data without a request
            return
        try:
            answer = self._parser.feed(data)
        except BadAnswer as error:
            self._waiter.set_exception(error)
            self.abort()
            return
        if answer is not None:
            self._waiter.set_result(answer)
            if not self._parser.stays_open:
                self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self.is_closed.set()
        self._owner._open_now.discard(self)
        if self._waiter is not None and not self._waiter.done():
            answer = self._parser.end()
            if answer is not None:
                self._waiter.set_result(answer)
            else:
                self._waiter.set_exception(LostAnswer(str(error) if error else "the server closed it"))

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
