"""What carries a worker's session: a WebSocket, or for a worker behind a proxy that knows none, long polling.

A session reads and writes frames; it does not know which of both brings them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import Key

FIRST_WORD_S = 10.0


class Disconnected(Exception):
    """The other side is gone."""


class Transport(Protocol):
    """Raises `Parted` when nobody is there any more."""

    async def receive(self) -> bytes | str: ...

    async def send(self, frame: bytes) -> None: ...

    async def close(self) -> None: ...


Serve = Callable[[Transport, str, Key], Coroutine[Any, Any, None]]
"""Run the session of the worker of this name, which joined with this key."""


class WebSocketTransport:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> bytes | str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        text: bytes | str = message.get("bytes") or message.get("text") or b"[]"
        return text

    async def send(self, frame: bytes) -> None:
        try:
            await self._websocket.send_bytes(frame)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise Disconnected from error

    async def close(self) -> None:
        try:
            await self._websocket.close()
        except (WebSocketDisconnect, RuntimeError) as error:
            raise Disconnected from error


class LongPollTransport:
    """Frames wait here until the worker asks for them. Who does not ask for `silence_s` is gone."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._in: asyncio.Queue[bytes] = asyncio.Queue()
        self._out: list[bytes] = []
        self._more = asyncio.Event()
        self._asked = 0
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

    async def exchange(self, said: bytes, timeout_s: float) -> list[bytes]:
        """Hand in a frame, take what is there; wait for something if nothing is. Who asks again has given up
        what he asked before: nothing is taken for that any more."""
        self._in.put_nowait(said)
        asked = self._asked = self._asked + 1
        if not self._out and not self.closed:
            self._more.clear()
            await wait_until_set(self._more, timeout_s)
        if asked != self._asked:
            return []
        taken, self._out = self._out, []
        return taken


@dataclass(frozen=True, slots=True)
class Poll:
    key: Key
    epoch: int
    long_poll: LongPollTransport
    serving: "asyncio.Task[None]"


class Polls:
    """Workers that poll: each has a mailbox, behind which the same session runs as behind a WebSocket."""

    def __init__(self, serve: Serve, silence_s: float) -> None:
        self._serve, self._silence_s = serve, silence_s
        self._open: dict[str, Poll] = {}

    async def register(self, hello: session.Hello, key: Key) -> session.Welcome:
        """Begins a session; raises `Conflict` with the reason if the worker is not wanted."""
        long_poll = LongPollTransport(self._silence_s)
        serving = asyncio.get_running_loop().create_task(self._serve(long_poll, hello.name, key))
        frames = await long_poll.exchange(session.frame(hello), FIRST_WORD_S)
        said = [message for frame in frames for message in session.read_by_worker(frame)]
        welcome = next((each for each in said if isinstance(each, session.Welcome)), None)
        if welcome is None:
            serving.cancel()
            goodbye = next((each.reason for each in said if isinstance(each, session.Goodbye)), "no answer")
            raise errors.Conflict(goodbye)
        poll = self._open[hello.name] = Poll(key, welcome.epoch, long_poll, serving)
        serving.add_done_callback(lambda _: self._forget(hello.name, poll))
        return welcome

    async def heartbeat(self, name: str, key: Key, epoch: int, said: bytes, timeout_s: float) -> list[bytes]:
        """Frames for the worker. Raises `Conflict` for who must register anew."""
        poll = self._open.get(name)
        if poll is not None and poll.key.id != key.id:
            raise errors.Forbidden(f"worker {name} joined with another key; use that one")
        if poll is None or poll.epoch != epoch:
            raise errors.Conflict(f"worker {name} has no session of epoch {epoch} here; register anew")
        return await poll.long_poll.exchange(said, timeout_s)

    def _forget(self, name: str, poll: Poll) -> None:
        if self._open.get(name) is poll:
            del self._open[name]
