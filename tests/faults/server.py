"""The server of the proxy, in its own event loop: accept requests, find the trigger, apply its fault."""

import contextlib
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import aiohttp
from aiohttp import web

from tests.faults import calls
from tests.faults.exchange import Exchange
from tests.faults.faults import Answer
from tests.faults.kubeconfigs import Upstream
from tests.faults.perform import perform
from tests.faults.triggers import Triggers


class Sent(NamedTuple):
    """One request; status is None when the server gave no answer and the component got none."""

    verb: str
    resource: str
    name: str
    status: int | None


class Server:
    def __init__(self, upstream: Upstream, triggers: Triggers, remember: int) -> None:
        self.errors: list[Exception] = []
        self._upstream = upstream
        self._triggers = triggers
        self._log: deque[Sent] = deque(maxlen=remember)
        self._lock = threading.Lock()
        self._live: dict[int, Exchange] = {}

    @property
    def requests(self) -> list[Sent]:
        with self._lock:
            return list(self._log)

    @contextlib.asynccontextmanager
    async def listen(self, tls: ssl.SSLContext) -> AsyncIterator[int]:
        """Serve on a free loopback port, and yield the port."""
        connector = aiohttp.TCPConnector(limit=0, ssl=self._upstream.tls)
        async with _client(connector) as self._session:
            server = web.Server(
                self._handle, handler_cancellation=True, access_log=None, auto_decompress=False
            )
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            try:
                yield runner.addresses[0][1]
            finally:
                self._cut(list(self._live.values()))
                await runner.cleanup()
                await connector.close(abort_ssl=True)

    async def cut_watches(self, resource: str) -> int:
        watches = [
            exchange
            for exchange in self._live.values()
            if exchange.call.verb == "watch" and fnmatchcase(exchange.call.resource, resource)
        ]
        self._cut(watches)
        return len(watches)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        call = calls.read(request.method, request.path, request.query, body)
        exchange = Exchange(request, call, body, self._upstream, self._session, self._record)
        self._live[id(exchange)] = exchange
        try:
            return await self._perform(exchange)
        except (aiohttp.ClientError, ConnectionError):
            # One of the two sides went away: cut the other, as would happen without a proxy.
            return exchange.cut()
        except Exception as error:
            self.errors.append(error)
            return exchange.cut()
        finally:
            exchange.report()
            del self._live[id(exchange)]

    async def _perform(self, exchange: Exchange) -> web.StreamResponse:
        if "Upgrade" in exchange.request.headers:
            return await exchange.answer(Answer(501, message="the fault proxy does not upgrade connections"))
        trigger = self._triggers.due(exchange.call)
        if trigger is None:
            return await perform(None, exchange, lambda: None)
        return await perform(trigger.fault, exchange, trigger.hit)

    def _record(self, exchange: Exchange) -> None:
        call = exchange.call
        with self._lock:
            self._log.append(Sent(call.verb, call.resource, call.name, exchange.status))

    def _cut(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            exchange.cut(reset=False)


def _client(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )
    # By default aiohttp sends GET, PUT and DELETE again when a kept connection breaks. It has no public
    # switch for that, and a fault test must not see a request twice by accident.
    session._retry_connection = False
    return session
