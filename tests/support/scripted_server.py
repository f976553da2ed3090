"""A scripted manager for tests of the worker: real WebSocket, real messages, no scheduling.

It sends Welcome, Renewed and Ack by itself unless a test turns that off, and keeps all it received.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import WSMsgType, web

from gpu_orchestrator.api import session
from tests.support.patience import PATIENCE_S

TOKEN = "token-of-the-test"
SHORT_LEASE_S = 6.0
T = TypeVar("T", bound=session.Message)
F = TypeVar("F")


class Peer:
    def __init__(self) -> None:
        self.port = 0
        self.epoch = 1
        # Longer than a busy machine may stall: tests of how a lease ends use SHORT_LEASE_S.
        self.lease_s, self.renew_every_s = 60.0, 0.5
        self.welcomes = self.renews = self.acks = self.resumes = True
        self.log_kb = 256
        self.takes_values = self.takes = True
        self.goodbye: session.Goodbye | None = None
        self.received: list[Any] = []
        self.taken: dict[str, int] = {}
        self.connections = 0
        self._socket: web.WebSocketResponse | None = None
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def send(self, *messages: session.Message) -> None:
        assert self._socket is not None
        await self._socket.send_bytes(session.frame(*messages))

    async def assign(self, task: str, task_type: str = "echo", parameters: Any = None, **more: Any) -> None:
        raw = msgspec.Raw(msgspec.json.encode({} if parameters is None else parameters))
        message = {"attempt": 1, "task_type": task_type, "parameters": raw, **more}
        await self.send(session.Assign(task=task, **message))

    async def receive(
        self, kind: type[T], task: str = "", *, within_s: float = PATIENCE_S, after: int = 0
    ) -> T:
        """Wait for a message of this kind (about this task), past or future. Skip the first `after` of
        them."""

        def found() -> T | None:
            messages = [m for m in self.received if isinstance(m, kind)]
            fitting = [m for m in messages if not task or getattr(m, "task", "") == task]
            return fitting[after] if len(fitting) > after else None

        return await self.until(found, within_s)

    async def until(self, found: Callable[[], F | None], within_s: float = PATIENCE_S) -> F:
        async with asyncio.timeout(within_s), self._changed:
            while (message := found()) is None:
                await self._changed.wait()
            return message

    def log(self, task: str) -> str:
        """Return the log of a task; check that repeated parts are the same, and that none is missing."""
        data = b""
        for message in self.received:
            if isinstance(message, session.Log) and message.task == task:
                text = message.text.encode()
                assert message.at <= len(data), f"{message.at - len(data)} bytes are missing before {text!r}"
                assert data[message.at : message.at + len(text)] == text[: len(data) - message.at]
                data = data[: message.at] + text
        return data.decode()

    def values(self, task: str) -> list[Any]:
        """Return what a task has sent; check that repeated values are the same, and that none is missing."""
        found: list[Any] = []
        for message in self.received:
            if isinstance(message, session.Values) and message.task == task:
                values = [msgspec.json.decode(each) for each in message.values]
                assert message.at <= len(found), f"values from {len(found)} to {message.at} are missing"
                assert found[message.at : message.at + len(values)] == values[: len(found) - message.at]
                found = found[: message.at] + values
        return found

    async def drop(self) -> None:
        """Abort the connection without a close message."""
        assert self._socket is not None
        assert self._socket._req is not None
        transport = self._socket._req.transport
        assert transport is not None
        transport.abort()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401, text="no such token")
        socket = web.WebSocketResponse(max_msg_size=1 << 26)
        await socket.prepare(request)
        self._socket = socket
        self.connections += 1
        async for data in socket:
            if data.type in (WSMsgType.BINARY, WSMsgType.TEXT):
                for message in session.read_by_server(data.data):
                    await self._answer(socket, message)
        return socket

    async def _answer(self, socket: web.WebSocketResponse, message: session.ToServer) -> None:
        answer = self._reply(message)
        if answer is not None and not socket.closed:
            await socket.send_bytes(session.frame(answer))
        async with self._changed:
            self.received.append(message)
            self._changed.notify_all()

    def _reply(self, message: session.ToServer) -> session.Message | None:
        match message:
            case session.Hello() if self.goodbye:
                return self.goodbye
            case session.Hello() if self.welcomes:
                resumed = self.resumes and message.resume_epoch == self.epoch
                self.epoch += not resumed
                return session.Welcome(
                    "w-1",
                    self.epoch,
                    self.lease_s,
                    self.renew_every_s,
                    30.0,
                    resumed,
                    self.log_kb,
                    takes_values=self.takes_values,
                )
            case session.Renew(number) if self.renews:
                return session.Renewed(number)
            case session.Values() if self.takes:
                self.taken[message.task] = message.at + len(message.values)
                return session.Taken(message.task, message.attempt, self.taken[message.task])
            case session.Done() | session.Failed() | session.RunnerDied() if self.acks:
                return session.Ack(message.task, message.attempt)
            case session.Refused() | session.Cancelled() if self.acks:
                return session.Ack(message.task, message.attempt)
        return None


@asynccontextmanager
async def serving() -> AsyncIterator[Peer]:
    peer = Peer()
    app = web.Application()
    app.add_routes([web.get("/workers/{name}/session", peer.handle)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    peer.port = runner.addresses[0][1]
    try:
        yield peer
    finally:
        await runner.cleanup()
