"""uvicorn with bounds: on how slowly a head may come, how long it may be, and how many connections are open.

Everybody in the cluster can reach the webhook's port, and nobody may keep the API server out. The bound on a
body is in `app`. `BoundedProtocol` subclasses a class that is not public API of uvicorn;
`tests/apps/webhook/test_server.py` runs requests through it.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gpu_orchestrator.adapters import serving
from gpu_orchestrator.adapters.serving import BadAddress
from gpu_orchestrator.adapters.uvicorn_server import Server
from gpu_orchestrator.apps.webhook.metrics import Metrics

HEAD_BYTES = 64 << 10
HEAD_S = 10.0
KEEP_ALIVE_S = 120
"""Longer than an API server keeps an idle connection (90 s), so that the server never closes one that a
request is just being sent on."""
FINISH_S = 3
"""How long requests may take that are under way when the server ends."""
BACKLOG = 1024


class Connections:
    """The open connections, oldest first. Beyond `most`, a new one takes the place of one that is owed no
    answer: of the address that has the most of them, so that no pod keeps the API server out."""

    def __init__(self, most: int, metrics: Metrics, *, head_s: float = HEAD_S) -> None:
        self.head_s = head_s
        self._most, self._metrics = most, metrics
        self._open: dict[BoundedProtocol, None] = {}
        self._of_address = Counter[str]()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator["BoundedProtocol"]:
        return iter(self._open)

    def admit(self, new: "BoundedProtocol") -> bool:
        """Count a new connection; return False if there is no room for it."""
        if len(self._open) >= self._most and not self._close_one():
            self.count("room")
            return False
        self._open[new] = None
        self._of_address[new.address] += 1
        return True

    def leave(self, gone: "BoundedProtocol") -> None:
        if gone in self._open:
            del self._open[gone]
            self._of_address[gone.address] -= 1
            if not self._of_address[gone.address]:
                del self._of_address[gone.address]

    def count(self, reason: str) -> None:
        self._metrics.closed.labels(reason).inc()

    def _close_one(self) -> bool:
        """Close the oldest of the address with the most connections; return False if all are owed answers."""
        owed_nothing = (each for each in self._open if not each.is_owed)
        found = max(owed_nothing, key=lambda each: self._of_address[each.address], default=None)
        if found is not None:
            self.leave(found)
            found.refuse("room")
        return found is not None


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, open_connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._open = open_connections
        self._is_admitted = self._is_in_head = False
        self.address = ""
        self._head_bytes = 0
        self._overdue: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Return True from the head of a request until it is answered."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    @property
    def is_owed(self) -> bool:
        """Return True if a request has come with all of its body, and is not answered yet."""
        return self.is_busy and not self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self._is_admitted = self._open.admit(self)
        if not self._is_admitted:
            transport.abort()
            return
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_admitted:
            self._open.leave(self)
            self._got_head()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted or self.transport.is_closing():
            return
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.refuse("head")
        elif not self.is_busy:  # empty lines, or the rest of a body: they end no wait for a request
            self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._got_head()
        super().on_headers_complete()

    def refuse(self, reason: str) -> None:
        """Close the connection without an answer."""
        self._open.count(reason)
        self.transport.abort()

    def _expect_head(self) -> None:
        if self._overdue is None:
            self._overdue = self.loop.call_later(self._open.head_s, self.refuse, "slow")

    def _got_head(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def make(app: Starlette, context: ssl.SSLContext, connections: Connections) -> Server:
    """Return a server; `await server.serve(sockets=[…])` runs it until its `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, connections),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=FINISH_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
        server_header=False,
        date_header=False,
        proxy_headers=False,
    )
    config.load()
    config.ssl = context
    return Server(config)


def listen(address: str) -> socket.socket:
    """Open the listening socket of an address such as `:8443`."""
    host, port = serving.parse_address(address)
    if port is None:
        raise BadAddress("the webhook needs an address to serve at; write host:port such as :8443")
    try:
        return _socket(host, port)
    except OSError as error:
        where = f"{host or 'every interface'} port {port}"
        raise BadAddress(
            f"cannot listen on {where}: {error.strerror}; give another --bind-address"
        ) from error


def _socket(host: str | None, port: int) -> socket.socket:
    if host is None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
