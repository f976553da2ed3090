"""An HTTP server for a few short answers: one request on each connection, and bounds on all of it.

Every pod of a cluster can reach the ports for metrics and probes, of processes with little memory and other
work to do. So there are `MOST` connections at once; beyond that, a new one takes the place of the oldest, of
the address that has the most of them. A request has `HEAD_BYTES` and `WAIT_S` to come, and its answer
`WAIT_S` to be taken.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import structlog

MOST = 64
HEAD_BYTES = 16 << 10
WAIT_S = 5.0
PLAIN = "text/plain; charset=utf-8"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    query: Mapping[str, str]
    address: str
    """Of the peer; empty if the system does not tell it."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str | bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN


Handler = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str


class SmallServer:
    def __init__(self, routes: Mapping[str, Handler]) -> None:
        self._routes = routes
        self._open: dict[_Connection, asyncio.Task[None]] = {}
        self._listening: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listen, on every interface if the host is None; return the port."""
        self._listening = await asyncio.start_server(self._admit, host, port, limit=HEAD_BYTES)
        return int(self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST:
            self._close_one()
        peer = writer.get_extra_info("peername")
        connection = _Connection(reader, writer, str(peer[0]) if peer else "")
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._open[connection] = task
        task.add_done_callback(lambda _: self._leave(connection))

    def _leave(self, connection: _Connection) -> None:
        self._open.pop(connection, None)
        connection.writer.transport.abort()  # also if its task was cancelled before it began

    def _close_one(self) -> None:
        of_address = Counter(each.address for each in self._open)
        oldest = max(self._open, key=lambda each: of_address[each.address])
        self._open.pop(oldest).cancel()

    async def _serve(self, connection: _Connection) -> None:
        """Answer one request; whatever comes of it, the connection is closed after this."""
        writer = connection.writer
        try:
            async with asyncio.timeout(WAIT_S):
                head = await connection.reader.readuntil(b"\r\n\r\n")
            method, answer = await self._answer(head, connection.address)
            async with asyncio.timeout(WAIT_S):
                writer.write(_encoded(answer, with_body=method != "HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the peer did not ask, or does not listen

    async def _answer(self, head: bytes, address: str) -> tuple[str, Answer]:
        """Return the method and what it is answered."""
        try:
            method, target, version = head.partition(b"\r\n")[0].decode("ascii").split(" ")
            place = urlsplit(target)
            request = Request(place.path, dict(parse_qsl(place.query)), address)
        except ValueError:
            return "", Answer("this is no request of HTTP\n", HTTPStatus.BAD_REQUEST)
        if not version.startswith("HTTP/1."):
            return method, Answer("send HTTP/1.1\n", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if method not in ("GET", "HEAD"):
            return method, Answer(f"{method} is not for here; send GET\n", HTTPStatus.METHOD_NOT_ALLOWED)
        if request.path not in self._routes:
            known = ", ".join(sorted(self._routes)) or "nothing"
            return method, Answer(f"there is {known} here\n", HTTPStatus.NOT_FOUND)
        try:
            return method, await self._routes[request.path](request)
        except Exception:  # the edge of one request
            log.exception("request failed", path=request.path)
            return method, Answer("this failed; the log says why\n", HTTPStatus.INTERNAL_SERVER_ERROR)


def _encoded(answer: Answer, *, with_body: bool) -> bytes:
    body = answer.text if isinstance(answer.text, bytes) else answer.text.encode()
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")
