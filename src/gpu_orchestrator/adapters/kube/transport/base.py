"""Send requests to the API server: connections, TLS, authentication, limits on size and time.

`Client` uses only the `Transport` protocol, so another HTTP implementation can replace this one.
No redirects, cookies or compression: an API server on the same network needs none of them.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import aiohttp
from yarl import URL

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.kube.auth import tls
from gpu_orchestrator.adapters.kube.auth.config import Config
from gpu_orchestrator.adapters.kube.auth.credentials import Identity
from gpu_orchestrator.adapters.kube.errors import BadAnswer, ConfigError, LostAnswer, Unreachable, Untrusted

MAX_BYTES = 64 << 20
CONNECTIONS = 256
CONNECT_LIMIT_S = 10.0
# The API server closes a connection after 90 s idle. Close it first, or a request may go to a closing one.
KEEP_IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `target` is the path with its query, both already escaped."""

    method: str
    target: str
    body: bytes | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """A streamed answer. `status` is known before the first chunk."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer: ...

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]: ...

    async def close(self) -> None: ...


class HttpTransport:
    """The transport on aiohttp. Create it inside a running event loop."""

    def __init__(self, config: Config, *, max_bytes: int = MAX_BYTES, connections: int = CONNECTIONS) -> None:
        check_headers(config.headers, config.source)
        self._config = config
        self._max_bytes = max_bytes
        self._context: tuple[Identity, ssl.SSLContext | bool] | None = None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEEP_IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=[
                ("User-Agent", f"gpu-orchestrator/{__version__}"),
                ("Accept", "application/json"),
                ("Accept-Encoding", "identity"),
                *config.headers,
            ],
            auto_decompress=False,
        )
        # By default aiohttp sends a DELETE or PUT a second time when a connection breaks, and hides that the
        # server may have carried out the first. `retry.py` decides that.
        self._session._retry_connection = False

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        async with self._open(request, timeout_s, renew) as response:
            return Answer(response.status, await self._whole(response), response.headers)

    @asynccontextmanager
    async def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AsyncIterator[Stream]:
        async with self._open(request, timeout_s, renew) as response:
            yield Stream(response.status, response.headers, response.content.iter_any())

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _open(
        self, request: Request, timeout_s: float, renew: bool
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        identity = await self._config.credentials.current(renew=renew)
        try:
            async with self._session.request(
                request.method,
                URL(self._config.server + request.target, encoded=True),
                data=request.body,
                headers=self._headers(request, identity),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_LIMIT_S),
                **self._tls(identity),
            ) as response:
                if response.status == 401:
                    self._check_expiry(identity)
                yield response
        except (
            aiohttp.ClientError,
            TimeoutError,
            ConnectionError,
            ssl.SSLError,
            asyncio.IncompleteReadError,
        ) as error:
            raise self._translated(error, timeout_s) from error

    def _headers(self, request: Request, identity: Identity) -> dict[str, str]:
        headers = {"Authorization": identity.authorization} if identity.authorization else {}
        check_headers(headers.items(), self._config.source)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        return headers

    def _tls(self, identity: Identity) -> dict[str, Any]:
        trust, options = self._config.trust, {"proxy": self._config.proxy or None}
        if not self._config.server.startswith("https:"):
            return options
        return {
            **options,
            "ssl": self._context_for(identity),
            "server_hostname": trust.server_name or None,
        }

    def _context_for(self, identity: Identity) -> ssl.SSLContext | bool:
        """Return the TLS context. Make a new one only when the client certificate has changed."""
        known = self._context
        if known is None or known[0].certificate_pem != identity.certificate_pem:
            made = tls.context(self._config.trust, identity.certificate_pem, identity.key_pem)
            self._context = known = (identity, made)
        return known[1]

    def _check_expiry(self, identity: Identity) -> None:
        """Raise an error that says when the client certificate expired: the server only sends a bare 401."""
        end = tls.ends_at(identity.certificate_pem)
        if end and end < datetime.now(UTC):
            raise Untrusted(
                f"{self._config.server} does not accept the client certificate of {self._config.source}: "
                f"it expired on {end:%Y-%m-%d %H:%M} UTC; renew it"
            )

    async def _whole(self, response: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._max_bytes:
                raise BadAnswer(
                    f"the answer to {response.method} {response.url.path} is larger than "
                    f"{self._max_bytes >> 20} MiB; ask for smaller pages"
                )
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _unreachable(self, why: object) -> str:
        return f"cannot reach {self._config.server} ({self._config.source}): {why}; {_CHECK}"

    def _translated(self, error: BaseException, timeout_s: float) -> Exception:
        server = f"{self._config.server} ({self._config.source})"
        match error:
            case (
                aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | ssl.SSLError()
            ):
                return Untrusted(f"cannot trust {server}: {_tls_reason(error)}")
            case aiohttp.ConnectionTimeoutError():
                return Unreachable(self._unreachable(f"no connection within {CONNECT_LIMIT_S:.0f} s"))
            case aiohttp.ClientConnectorError() | aiohttp.ClientProxyConnectionError():
                return Unreachable(self._unreachable(error.os_error.strerror or error.os_error))
            case aiohttp.ClientHttpProxyError():
                return Unreachable(self._unreachable(f"its proxy answered {error.status}"))
            case aiohttp.InvalidURL():
                return BadAnswer(f"the address {server} is not a URL; fix the kubeconfig")
            case TimeoutError():
                return LostAnswer(f"no answer from {server} within {timeout_s:.0f} s")
        return LostAnswer(f"the connection to {server} broke: {str(error) or type(error).__name__}")


def check_headers(fields: Iterable[tuple[str, str]], source: str) -> None:
    """Refuse header values that HTTP cannot carry, or that the server would read as more than one header."""
    for name, value in fields:
        if not value.isprintable():
            raise ConfigError(f"the {name} of {source} contains a line break or control character; fix it")
        if name == "Authorization" and not value.isascii():
            raise ConfigError(f"the token of {source} contains a character that no token has; copy it again")


_CHECK = "check that the API server runs, the address in the kubeconfig and the network"


def _tls_reason(error: BaseException) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    text = getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or str(inner)
    if "expired" in text:
        return f"its certificate has expired ({text}); renew the API server's certificate"
    if any(words in text for words in ("self-signed", "unable to get", "signature failure")):
        return (
            f"its certificate is signed by an unknown authority ({text}); "
            "set certificate-authority-data to its CA"
        )
    if "mismatch" in text or "not valid for" in text:
        return (
            f"its certificate is for another name ({text}); use that name in `server` or set tls-server-name"
        )
    return f"{text}; check certificate-authority-data and that the address speaks TLS"
