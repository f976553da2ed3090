"""The worker's one WebSocket: sends the agent's messages in few frames, and passes on the manager's."""

import asyncio
from collections.abc import Callable

import aiohttp

from gpu_orchestrator.api import session

LARGEST_FRAME = 64 << 20
GOOD_FRAME = 4 << 20
CONNECT_S = ANSWER_S = 5.0
STARTED_DELAY_S = 0.02
"""A `Started` waits this long for the outcome, so that both share a frame: most short tasks cost one."""
DATA_TYPES = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


class NotWanted(Exception):
    """The manager rejects this worker, and a retry would not help."""


class TokenRefused(NotWanted):
    """The manager does not accept the token."""


class Connection:
    def __init__(self, url: str, token: str, receive: Callable[[session.ToWorker], None]) -> None:
        self._url, self._receive = url, receive
        self._headers = {"Authorization": f"Bearer {token}"}
        self._outbox: list[session.Message] = []
        self._wake = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_answered = False
        self._closing: asyncio.Future[bool] | None = None
        self._started_timer: asyncio.TimerHandle | None = None

    def send(self, message: session.Message) -> None:
        """Queue a message, or drop it while the manager has not answered `Hello`: on `Welcome` the agent
        sends again all that must not be lost."""
        if self._is_answered:
            self._outbox.append(message)
            if not isinstance(message, session.Started):
                self._wake.set()
            elif self._started_timer is None:
                self._started_timer = asyncio.get_running_loop().call_later(
                    STARTED_DELAY_S, self._send_started
                )

    async def run(self, http: aiohttp.ClientSession, hello: Callable[[], session.Hello]) -> None:
        """Run one connection, from `Hello` until it is closed or lost."""
        async with await self._connect(http) as self._socket:
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

    async def _connect(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        closing = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(CONNECT_S):
                return await http.ws_connect(
                    self._url, headers=self._headers, max_msg_size=LARGEST_FRAME, timeout=closing
                )
        except aiohttp.WSServerHandshakeError as error:
            raise _meaning(error, self._url) from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise NotWanted(
                f"the certificate of {_server(self._url)} is not trusted ({error}); "
                "name its CA with --ca FILE"
            ) from error

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async with asyncio.timeout(ANSWER_S) as timeout:
            async for message in socket:
                if message.type in DATA_TYPES:
                    timeout.reschedule(None)
                    self._is_answered = not socket.closed
                    for each in session.read_by_worker(message.data):
                        self._receive(each)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._outbox.clear()
        while True:
            await self._wake.wait()
            self._wake.clear()
            messages, self._outbox = _without_superseded(self._outbox), []
            for frame in _frames(messages):
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


def _server(url: str) -> str:
    return url.partition("/workers/")[0]


def _without_superseded(messages: list[session.Message]) -> list[session.Message]:
    """Drop the `Started` of each attempt whose outcome is in the same batch."""
    ended = {(m.task, m.attempt) for m in messages if isinstance(m, session.Outcome)}
    if not ended:
        return messages
    return [m for m in messages if not (isinstance(m, session.Started) and (m.task, m.attempt) in ended)]


def _frames(messages: list[session.Message]) -> list[bytes]:
    """Encode all in one frame, or in several where one would be larger than the manager accepts."""
    if not messages:
        return []
    frame = session.frame(*messages)
    if len(frame) <= GOOD_FRAME or len(messages) == 1:
        return [frame]
    half = len(messages) // 2
    return _frames(messages[:half]) + _frames(messages[half:])
