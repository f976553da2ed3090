"""A small API client with admin rights: the fixtures create and read objects with it.

It is blocking and independent of gpu_orchestrator, so that no test checks our client with our client.
"""

import http.client
import ssl
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from controlplane import deep_json
from controlplane.errors import ClusterError
from controlplane.pki import Authority, Pair

Json = dict[str, Any]
# Errors that a kept connection raises if the server has closed it meanwhile.
STALE = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)


class ApiError(ClusterError):
    def __init__(self, method: str, path: str, status: int, body: Json) -> None:
        super().__init__(f"{method} {path}: {status} {body.get('reason', '')}: {body.get('message', body)}")
        self.status = status
        self.reason = str(body.get("reason", ""))


class Api:
    """A client of one API server, with one connection per thread. The caller is known by a certificate or by
    a token."""

    def __init__(self, url: str, authority: Authority, pair: Pair | None = None, *, token: str = "") -> None:
        self._host = urlsplit(url).netloc
        self._tls = ssl.create_default_context(cafile=str(authority.cert))
        if pair:
            self._tls.load_cert_chain(pair.cert, pair.key)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._local = threading.local()
        self._opened: list[http.client.HTTPSConnection] = []

    def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> Json:
        status, answer = self._exchange(method, path, body, content_type)
        content: Json = (
            deep_json.loads(answer) if answer[:1] == b"{" else {"message": answer.decode(errors="replace")}
        )
        if status >= 400:
            raise ApiError(method, path, status, content)
        return content

    def is_ready(self) -> bool:
        try:
            return self._exchange("GET", "/readyz", None, "application/json")[0] == 200
        except OSError:
            return False

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    def create_all(self, path: str, objects: Iterable[Json], *, threads: int = 8) -> list[Json]:
        """Create many objects, several at a time. Raise the first error."""
        return self.in_parallel(lambda body: self.request("POST", path, body), objects, threads=threads)

    def in_parallel(
        self, do: Callable[[Json], Json], objects: Iterable[Json], *, threads: int = 8
    ) -> list[Json]:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(do, objects))

    def _exchange(self, method: str, path: str, body: Any, content_type: str) -> tuple[int, bytes]:
        payload = None if body is None else deep_json.dumps(body)
        connection, headers = self._connection(), {**self._headers, "Content-Type": content_type}
        try:
            try:
                connection.request(method, path, payload, headers)
                answer = connection.getresponse()
            except STALE:
                connection.close()  # the server had closed a kept connection: try once more on a new one
                connection.request(method, path, payload, headers)
                answer = connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise OSError(f"{method} {path}: {error}") from error

    def _connection(self) -> http.client.HTTPSConnection:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPSConnection(self._host, context=self._tls, timeout=30)
            self._opened.append(self._local.connection)
        connection: http.client.HTTPSConnection = self._local.connection
        return connection
