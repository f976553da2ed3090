"""The worker's one WebSocket: sends the agent's messages in few frames, and passes on the manager's."""

import asyncio
import os
from collections.abc import Callable
from itertools import count
from typing import get_args

import aiohttp

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.api import session
from gpu_orchestrator.api.pieces import LARGEST, FrameLink

CONNECT_S = ANSWER_S = 5.0
SHORT_CONNECT_S = 2.0
"""How long to try one server of several: the lease must outlast one that does not answer."""
STARTED_DELAY_S = 0.02
"""A `Started` waits this long for the outcome, so that both share a frame: most short tasks cost one."""
DATA_TYPES = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
END_TYPES = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)
OUTCOMES = frozenset(get_args(session.Outcome))


class NotWanted(Exception):
    """The manager rejects this worker, and a retry would not help."""


class TokenRefused(NotWanted):
    """The manager does not accept the token."""


class Connection:
    def __init__(self, token: str, receive: Callable[[session.ToWorker], None]) -> None:
        self._receive = receive
        self._headers = {"Authorization": f"Bearer {token}"}
        self._outbox: dict[tuple[str, int] | int, session.Message] = {}
        """Messages in the order in which they are sent: a `Started` by its attempt, others by a number."""
        self._numbers = count()
        self._link = FrameLink()
        self.heard_at = 0.0
        """When the last frame arrived, by `clock.elapsed_s()`."""
        self._wake = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_answered = False
        self._closing: asyncio.Future[bool] | None = None
        self._started_timer: asyncio.TimerHandle | None = None

    def send(self, message: session.Message) -> None:
        """Queue a message, or drop it while the manager has not answered `Hello`: on `Welcome` the agent
        sends again all that must not be lost."""
        if not self._is_answered:
            return
        if isinstance(message, session.Started):
            self._outbox[message.task, message.attempt] = message
            if self._started_timer is None:
                self._started_timer = asyncio.get_running_loop().call_later(
                    STARTED_DELAY_S, self._send_started
                )
            return
        if type(message) in OUTCOMES:  # then nobody needs to hear that it has begun
            self._outbox.pop((message.task, message.attempt), None)  # type: ignore[attr-defined]
        self._outbox[next(self._numbers)] = message
        self._wake.set()

    @property
    def own_address(self) -> str:
        """The address of this machine on the network by which it reaches the server; empty if not known."""
        name = self._socket.get_extra_info("sockname") if self._socket is not None else None
        return str(name[0]) if name else ""

    async def run(
        self,
        http: aiohttp.ClientSession,
        url: str,
        hello: Callable[[], session.Hello],
        connect_s: float = CONNECT_S,
    ) -> None:
        """Run one connection to this address, from `Hello` until it is closed or lost."""
        async with await self._connect(http, url, connect_s) as self._socket:
            self._link = FrameLink()
            writer = asyncio.create_task(self._write(self._socket))
            try:
                await self._socket.send_bytes(session.frame(hello()))
                await self._read(self._socket)
            finally:
                self._is_answered = False
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    def close(self) -> None:
        """Close the connection from this side; `run` then returns."""
        self._is_answered = False
        if self._socket is not None:
            self._closing = asyncio.ensure_future(self._socket.close())

    def _send_started(self) -> None:
        self._started_timer = None
        self._wake.set()

    async def _connect(
        self, http: aiohttp.ClientSession, url: str, connect_s: float
    ) -> aiohttp.ClientWebSocketResponse:
        closing = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(connect_s):
                return await http.ws_connect(
                    url, headers=self._headers, max_msg_size=LARGEST, timeout=closing
                )
        except aiohttp.WSServerHandshakeError as error:
            raise _meaning(error, url) from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise NotWanted(
                f"the certificate of {_server(url)} is not trusted ({error}); name its CA with --ca FILE"
            ) from error

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async with asyncio.timeout(ANSWER_S) as timeout:
            is_first = True
            while (message := await socket.receive()).type not in END_TYPES:
                if message.type in DATA_TYPES:
                    if is_first:
                        timeout.reschedule(None)
                        is_first = False
                    self._is_answered = not socket.closed
                    self._received(message.data)

    def _received(self, data: bytes | str) -> None:
        self.heard_at = elapsed_s()
        frame = self._link.receive(data, self.heard_at)
        if frame is not data and self._link.has_news:
            self._wake.set()
        if frame is None:
            return
        for each in session.read_by_worker(frame):
            if isinstance(each, session.Welcome):
                self._link.pieces = each.pieces
            self._receive(each)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._outbox.clear()
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush(socket)

    async def _flush(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            if self._outbox:
                for each in self._outbox.values():
                    self._link.put(each)
                self._outbox.clear()
            if (frame := self._link.next(elapsed_s())) is None:
                return
            await socket.send_bytes(frame)


def _meaning(error: aiohttp.WSServerHandshakeError, url: str) -> Exception:
    """Return what a refused handshake means for the worker's operator."""
    server = _server(url)
    if error.status == 401:
        return TokenRefused(
            f"the token was refused by {server}; give the one in worker-token of its data directory, "
            "or make one with `gpu-orchestrator key create NAME --scope worker`"
        )
    if error.status == 403:
        return TokenRefused(
            f"the token was refused by {server}: it is a key, but not for workers; "
            "make one with `gpu-orchestrator key create NAME --scope worker`"
        )
    if error.status == 404:
        return NotWanted(f"{server} is not a cluster manager (it answered 404); check --server")
    return error


def words(error: Exception) -> str:
    """Return an error of the connection as one would say it."""
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        why = os.strerror(number) if number > 0 else error.os_error.strerror or error.os_error
        return f"no answer from {error.host}:{error.port} ({why})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _server(url: str) -> str:
    return url.partition("/workers/")[0]
