"""Transports of a worker's session: a WebSocket, or long polling for a worker behind a proxy without
WebSockets.

A session reads and writes frames; it does not know which transport carries them.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.api import session, websocket
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import Key

SEND = "send"
"""The name of a WebSocket's own `send` in the state of its request: past the layers of the framework, which
have nothing to do with the messages of a session that is open."""
WELCOME_S = 10.0
ANSWER_BYTES = 4 << 20
"""The largest answer to a poll, unless a single message is larger."""


class Disconnected(Exception):
    """The other side closed the connection or went silent."""


class Transport(Protocol):
    """Carries frames both ways; raises `Disconnected` when the other side is gone."""

    async def receive(self) -> bytes | str: ...

    async def send(self, frame: bytes) -> None: ...

    async def close(self) -> None: ...


class Sessions(Protocol):
    """What runs the sessions: `workers/sessions.py`, which documents these."""

    async def serve(self, transport: Transport, name: str, key: Key | None = None) -> None: ...

    async def adopted(self, name: str, epoch: int, key: Key) -> session.Hello | None: ...

    async def reclaim(self, name: str) -> bool: ...


class WebSocketTransport:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._send = websocket.scope["state"][SEND]

    async def receive(self) -> bytes | str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        text: bytes | str = message.get("bytes") or message.get("text") or b"[]"
        return text

    async def send(self, frame: bytes) -> None:
        try:
            frames = websocket.encoded(websocket.BINARY, frame)
            await self._send({"type": "websocket.send", "frames": frames})
        except OSError as error:
            raise Disconnected from error

    async def close(self) -> None:
        try:
            await self._websocket.close()
        except (WebSocketDisconnect, RuntimeError) as error:
            raise Disconnected from error


class LongPollTransport:
    """Queues frames until the worker polls. A worker that does not poll for `silence_s` counts as gone."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._in: asyncio.Queue[bytes] = asyncio.Queue()
        self._out: list[bytes] = []
        self._more = asyncio.Event()
        self._last_poll = 0
        self.closed = False

    async def receive(self) -> bytes | str:
        try:
            async with asyncio.timeout(self._silence_s):
                return await self._in.get()
        except TimeoutError as error:
            self.closed = True
            raise Disconnected from error

    async def send(self, frame: bytes) -> None:
        self._out.append(frame)
        self._more.set()

    async def close(self) -> None:
        self.closed = True
        self._more.set()

    async def exchange(self, frame: bytes, timeout_s: float) -> list[bytes]:
        """Pass on the worker's frame and return the queued ones; wait for one if none is queued. A new poll
        means that the worker gave up the previous one, which then returns nothing."""
        self._in.put_nowait(frame)
        poll_number = self._last_poll = self._last_poll + 1
        if not self._out and not self.closed:
            self._more.clear()
            await wait_until_set(self._more, timeout_s)
        if poll_number != self._last_poll:
            return []
        return self._taken()

    def _taken(self) -> list[bytes]:
        """Take frames for one answer; the next poll gets the rest."""
        count, size = 1, len(self._out[0]) if self._out else 0
        while count < len(self._out) and size + len(self._out[count]) <= ANSWER_BYTES:
            size += len(self._out[count])
            count += 1
        taken, self._out = self._out[:count], self._out[count:]
        return taken


@dataclass(frozen=True, slots=True)
class Poll:
    key: Key
    epoch: int
    long_poll: LongPollTransport
    serving: "asyncio.Task[None]"


class Polls:
    """Sessions of workers that poll; each runs over its own `LongPollTransport`. The processes behind a load
    balancer take a session over from each other: the store says who had it last."""

    def __init__(self, sessions: Sessions, silence_s: float) -> None:
        self._sessions, self._silence_s = sessions, silence_s
        self._open: dict[str, Poll] = {}

    async def register(self, hello: session.Hello, key: Key) -> session.Welcome:
        """Start a session; raises `Conflict` with the reason if the worker is refused."""
        hello = msgspec.structs.replace(hello, pieces=False)  # they are for WebSockets
        long_poll = LongPollTransport(self._silence_s)
        serving = asyncio.get_running_loop().create_task(self._sessions.serve(long_poll, hello.name, key))
        frames = await long_poll.exchange(session.frame(hello), WELCOME_S)
        messages = [message for frame in frames for message in session.read_by_worker(frame)]
        welcome = next((each for each in messages if isinstance(each, session.Welcome)), None)
        if welcome is None:
            serving.cancel()
            goodbyes = (each.reason for each in messages if isinstance(each, session.Goodbye))
            raise errors.Conflict(next(goodbyes, "no answer"))
        poll = self._open[hello.name] = Poll(key, welcome.epoch, long_poll, serving)
        serving.add_done_callback(lambda _: self._forget(hello.name, poll))
        return welcome

    async def heartbeat(self, name: str, key: Key, epoch: int, frame: bytes, timeout_s: float) -> list[bytes]:
        """Return frames for the worker. Raises `Conflict` if the worker must register again."""
        poll = self._open.get(name)
        if poll is not None and poll.key.id != key.id:
            raise errors.Forbidden(f"worker {name} joined with another key; use that one")
        if poll is None or poll.epoch != epoch or not await self._sessions.reclaim(name):
            poll = await self._adopt(name, key, epoch)
        return await poll.long_poll.exchange(frame, timeout_s)

    async def _adopt(self, name: str, key: Key, epoch: int) -> Poll:
        hello = await self._sessions.adopted(name, epoch, key)
        if hello is None or (await self.register(hello, key)).epoch != epoch:
            raise errors.Conflict(
                f"there is no session of worker {name} with epoch {epoch} and this key; register again with "
                "POST /workers, with resume_epoch and the attempts that run"
            )
        return self._open[name]

    def _forget(self, name: str, poll: Poll) -> None:
        if self._open.get(name) is poll:
            del self._open[name]
