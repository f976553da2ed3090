"""The worker's one WebSocket: gathers what is said into few frames, hands on what it hears."""

import asyncio
from collections.abc import Callable

import aiohttp

from gpu_orchestrator.api import session

LARGEST_FRAME = 64 << 20
CONNECT_S = 5.0
FOR_EVER = (401, 403, 404)


class Refused(Exception):
    """The server does not want this worker; trying again would not help."""


class Link:
    def __init__(self, url: str, token: str, hear: Callable[[session.ToWorker], None]) -> None:
        self._url, self._hear = url, hear
        self._headers = {"Authorization": f"Bearer {token}"}
        self._outbox: list[session.Message] = []
        self._wake = asyncio.Event()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._closing: asyncio.Future[bool] | None = None

    def say(self, message: session.Message) -> None:
        """Lost when there is no connection: what must not be lost is said again after the next `Welcome`."""
        if self._socket is not None:
            self._outbox.append(message)
            self._wake.set()

    async def talk(self, http: aiohttp.ClientSession, hello: Callable[[], session.Hello]) -> None:
        """One connection, from `Hello` until it is closed or lost."""
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await http.ws_connect(
                    self._url, headers=self._headers, max_msg_size=LARGEST_FRAME, timeout=timeout
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in FOR_EVER:
                raise Refused(f"{self._url} answered {error.status} {error.message}") from error
            raise
        async with socket:
            await self._converse(socket, hello())

    def hang_up(self) -> None:
        """Ends the connection from our side; `talk` returns."""
        if self._socket is not None:
            self._closing = asyncio.ensure_future(self._socket.close())

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse, hello: session.Hello) -> None:
        self._outbox, self._socket = [hello], socket
        self._wake.set()
        writer = asyncio.create_task(self._write(socket))
        try:
            async for message in socket:
                if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                    for said in session.read_by_worker(message.data):
                        self._hear(said)
        finally:
            self._socket = None
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            messages, self._outbox = _worth_saying(self._outbox), []
            if messages:
                await socket.send_bytes(session.frame(*messages))


def _worth_saying(messages: list[session.Message]) -> list[session.Message]:
    """Without the `Started` of attempts whose outcome goes in the same frame."""
    ended = {(m.task, m.attempt) for m in messages if isinstance(m, session.Outcome)}
    if not ended:
        return messages
    return [m for m in messages if not (isinstance(m, session.Started) and (m.task, m.attempt) in ended)]
