"""The worker's one WebSocket: gathers what is said into few frames, hands on what it hears."""

import asyncio
from collections.abc import Callable

import aiohttp

from gpu_orchestrator.api import session

LARGEST_FRAME = 64 << 20
GOOD_FRAME = 4 << 20
CONNECT_S = ANSWER_S = 5.0
LEISURE_S = 0.02
"""A beginning waits so long for the end to go with it: most short tasks then cost one frame."""
FOR_EVER = (401, 403, 404)
WORDS = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


class NotWanted(Exception):
    """The server does not want this worker; trying again would not help."""


class Connection:
    def __init__(self, url: str, token: str, hear: Callable[[session.ToWorker], None]) -> None:
        self._url, self._hear = url, hear
        self._headers = {"Authorization": f"Bearer {token}"}
        self._outbox: list[session.Message] = []
        self._wake = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_answered = False
        self._closing: asyncio.Future[bool] | None = None
        self._leisure: asyncio.TimerHandle | None = None

    def say(self, message: session.Message) -> None:
        """Lost before the server answered our `Hello`: what must not be lost is said again after that."""
        if self._is_answered:
            self._outbox.append(message)
            if not isinstance(message, session.Started):
                self._wake.set()
            elif self._leisure is None:
                self._leisure = asyncio.get_running_loop().call_later(LEISURE_S, self._leisure_over)

    async def talk(self, http: aiohttp.ClientSession, hello: Callable[[], session.Hello]) -> None:
        """One connection, from `Hello` until it is closed or lost."""
        async with await self._connect(http) as self._socket:
            writer = asyncio.create_task(self._write(self._socket))
            try:
                await self._socket.send_bytes(session.frame(hello()))
                await self._listen(self._socket)
            finally:
                self._is_answered = False
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    def hang_up(self) -> None:
        """Ends the connection from our side; `talk` returns."""
        self._is_answered = False
        if self._socket is not None:
            self._closing = asyncio.ensure_future(self._socket.close())

    def _leisure_over(self) -> None:
        self._leisure = None
        self._wake.set()

    async def _connect(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        closing = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(CONNECT_S):
                return await http.ws_connect(
                    self._url, headers=self._headers, max_msg_size=LARGEST_FRAME, timeout=closing
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in FOR_EVER:
                raise NotWanted(f"{self._url} answered {error.status} {error.message}") from error
            raise
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise NotWanted(
                f"the certificate of {self._url} is not trusted ({error}); give who signed it with --ca FILE"
            ) from error

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async with asyncio.timeout(ANSWER_S) as patience:
            async for message in socket:
                if message.type in WORDS:
                    patience.reschedule(None)
                    self._is_answered = not socket.closed
                    for said in session.read_by_worker(message.data):
                        self._hear(said)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._outbox.clear()
        while True:
            await self._wake.wait()
            self._wake.clear()
            messages, self._outbox = _worth_saying(self._outbox), []
            for frame in _frames(messages):
                await socket.send_bytes(frame)


def _worth_saying(messages: list[session.Message]) -> list[session.Message]:
    """Without the `Started` of attempts whose outcome goes in the same frame."""
    ended = {(m.task, m.attempt) for m in messages if isinstance(m, session.Outcome)}
    if not ended:
        return messages
    return [m for m in messages if not (isinstance(m, session.Started) and (m.task, m.attempt) in ended)]


def _frames(messages: list[session.Message]) -> list[bytes]:
    """All in one frame, or in several where one would be too large for the server to take."""
    if not messages:
        return []
    frame = session.frame(*messages)
    if len(frame) <= GOOD_FRAME or len(messages) == 1:
        return [frame]
    half = len(messages) // 2
    return _frames(messages[:half]) + _frames(messages[half:])
