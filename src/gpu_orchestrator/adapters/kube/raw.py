"""A lean transport for many small requests: HTTP/1.1 by hand on asyncio protocols, one request at a time on
each of many kept connections. A third of aiohttp's CPU per request, which then is the API server's to use.

Streams, proxies and everything rare stay with `HttpTransport`, whose identity, TLS and error texts it shares.
"""

import asyncio
import ssl
from typing import cast
from urllib.parse import urlsplit

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.kube.answers import Reader
from gpu_orchestrator.adapters.kube.config import Config
from gpu_orchestrator.adapters.kube.credentials import Identity
from gpu_orchestrator.adapters.kube.errors import BadAnswer, LostAnswer, Unreachable, Untrusted
from gpu_orchestrator.adapters.kube.transport import (
    CHECK,
    CONNECT_LIMIT_S,
    KEEP_IDLE_S,
    Answer,
    HttpTransport,
    Request,
    tls_reason,
)

CONNECTIONS = 128


class RawTransport(HttpTransport):
    """Make it inside a running event loop."""

    def __init__(self, config: Config, *, connections: int = CONNECTIONS) -> None:
        super().__init__(config)
        parts = urlsplit(config.server)
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._is_tls else 80)
        self._path = parts.path
        fixed = [
            ("Host", parts.netloc.rpartition("@")[2]),
            ("User-Agent", f"gpu-orchestrator/{__version__}"),
            ("Accept", "application/json"),
            *config.headers,
        ]
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed)
        self._idle: list[_Connection] = []
        self._room = asyncio.Semaphore(connections)
        self._certificate = b""
        self._connections: set[_Connection] = set()

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        if self._config.proxy:
            return await super().send(request, timeout_s=timeout_s, renew=renew)
        identity = await self._config.credentials.current(renew=renew)
        async with self._room:
            connection = self._kept(identity) or await self._connect(identity)
            answer = await self._exchange(connection, self._encode(request, identity), timeout_s)
        if answer.status == 401:
            self._check_expiry(identity)
        return answer

    async def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        await super().close()

    def _encode(self, request: Request, identity: Identity) -> bytes:
        head = f"{request.method} {self._path}{request.target} HTTP/1.1\r\n{self._fixed}"
        if identity.authorization:
            head += f"Authorization: {identity.authorization}\r\n"
        if request.body is None:
            return f"{head}\r\n".encode("latin-1")
        head += f"Content-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n\r\n"
        return head.encode("latin-1") + request.body

    def _kept(self, identity: Identity) -> "_Connection | None":
        """The connection used last: the others may then grow old and close."""
        if identity.certificate_pem != self._certificate:
            self._certificate = identity.certificate_pem
            for connection in self._idle:
                connection.close()
            self._idle.clear()
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.used_at < KEEP_IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self, identity: Identity) -> "_Connection":
        loop, server = asyncio.get_running_loop(), f"{self._config.server} ({self._config.source})"
        name = self._config.trust.server_name or self._host
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._max_bytes, self._connections),
                    self._host,
                    self._port,
                    ssl=self._context_for(identity) if self._is_tls else None,
                    server_hostname=name if self._is_tls else None,
                )
        except ssl.SSLError as error:
            raise Untrusted(f"cannot trust {server}: {tls_reason(error)}") from error
        except TimeoutError as error:
            why = f"no connection within {CONNECT_LIMIT_S:.0f} s"
            raise Unreachable(f"cannot reach {server}: {why}; {CHECK}") from error
        except OSError as error:
            raise Unreachable(f"cannot reach {server}: {error.strerror or error}; {CHECK}") from error
        return connection

    async def _exchange(self, connection: "_Connection", data: bytes, timeout_s: float) -> Answer:
        server = f"{self._config.server} ({self._config.source})"
        try:
            answer = await connection.exchange(data, timeout_s)
        except TimeoutError as error:
            raise LostAnswer(f"no answer from {server} within {timeout_s:.0f} s") from error
        except ConnectionError as error:
            raise LostAnswer(f"the connection to {server} broke: {error}") from error
        if connection.is_open:
            self._idle.append(connection)
        return answer


class _Connection(asyncio.Protocol):
    """One request at a time. Anything unexpected closes it: a connection out of step would mix up answers."""

    def __init__(self, max_bytes: int, registry: "set[_Connection]") -> None:
        self._max_bytes, self._registry = max_bytes, registry
        self._transport: asyncio.Transport | None = None
        self._reader = Reader(max_bytes)
        self._waiter: asyncio.Future[Answer] | None = None
        self.used_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, data: bytes, timeout_s: float) -> Answer:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("it was closed before the request was sent")
        waiter: asyncio.Future[Answer] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout_s, self._fail, TimeoutError())
        try:
            self._transport.write(data)
            answer = await waiter
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiter = None
        self.used_at = loop.time()
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._registry.add(self)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.close()  # nobody asked
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswer as error:
            self._fail(error)
            return
        if answer is None:
            return
        if not self._reader.keeps_open:
            self.close()
        if not self._waiter.done():
            self._waiter.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._registry.discard(self)
        self._fail(ConnectionResetError(str(error or "closed by the server")))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
