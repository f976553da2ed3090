"""Send events to a watcher as server-sent events or over a WebSocket: the same events with the same ids.

A watcher that does not read in time is disconnected with a reason, and can resume from its last id.
The event routes call this; the events come from `events/event_feed.py`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.events import Id
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.events.encoding import Batch
from gpu_orchestrator.apps.manager.events.event_feed import Feed, WatchEnded, Watcher
from gpu_orchestrator.apps.manager.http.responses import done_before, until_disconnected
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters

log = structlog.get_logger()

KEEPALIVE_S = 15.0
"""After this time without an event the server sends a comment, so that proxies keep the connection open."""
SEND_TIMEOUT_S = 30.0
TRY_AGAIN = 1013


async def watch(feed: Feed, at: Id, watcher: Watcher) -> AsyncIterator[Batch]:
    """Yield the next events; an empty batch after KEEPALIVE_S without any."""
    while True:
        batch = await feed.after(at, watcher, KEEPALIVE_S)
        at = batch.last
        yield batch


class ServerSent(Response):
    """Sends what `_frames` yields until that ends, or client or server closes the stream. `reads`: the
    watcher reads events, and must keep up with them."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, key: Key, *, reads: bool) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed, self._key, self._reads = feed, key, reads

    def _frames(self, watcher: Watcher) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        with self._feed.watching(self._key, reads=self._reads) as watcher:
            await send(start)
            sent = await done_before(self._send_all(watcher, send), until_disconnected(receive))
        if reason := end_reason(sent):
            await send({"type": "http.response.body", "body": b": %b\n\n" % reason.encode()})
        elif sent is not None:
            await send({"type": "http.response.body", "body": b""})

    async def _send_all(self, watcher: Watcher, send: Send) -> None:
        async for frames in self._frames(watcher):
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": frames, "more_body": True})


async def until_more(
    waiters: CompletionWaiters, task: str, watcher: Watcher, news: asyncio.Event, seconds: float
) -> None:
    """Wait for news of what a task says, for its end, or until the watcher must leave; at most so long."""
    ended = waiters.join(task)
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(news.wait()),
        asyncio.ensure_future(watcher.ended.wait()),
    ]
    try:
        await asyncio.wait([*waiting, ended], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiters.leave(task, ended)
        for each in waiting:
            each.cancel()


class EventStream(ServerSent):
    """Sends events."""

    def __init__(self, feed: Feed, at: Id, key: Key) -> None:
        super().__init__(feed, key, reads=True)
        self._at = at

    async def _frames(self, watcher: Watcher) -> AsyncIterator[bytes]:
        yield b": from here on\nid: %b\n\n" % str(self._at).encode()
        async for batch in watch(self._feed, self._at, watcher):
            yield batch.server_sent(self._key.sees) or b": nothing new\n\n"


async def serve_socket(feed: Feed, websocket: WebSocket, at: Id) -> None:
    """Send the same events over a WebSocket, one per message; the server's pings keep the connection open."""

    async def send_all(watcher: Watcher) -> None:
        async for batch in watch(feed, at, watcher):
            if frames := batch.socket_frames(watcher.key.sees):
                async with asyncio.timeout(SEND_TIMEOUT_S):  # see `socket_frames.py` for this message
                    await websocket.send({"type": "websocket.send", "frames": frames})

    async def disconnected() -> None:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass

    with feed.watching(websocket.state.key) as watcher:
        await websocket.accept()
        reason = end_reason(await done_before(send_all(watcher), disconnected()))
    if reason:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close(TRY_AGAIN, reason)


def end_reason(sent: "asyncio.Future[None] | None") -> str:
    """Return why the stream ends; empty if the watcher disconnected."""
    match sent and sent.exception():
        case WatchEnded() as error:
            return str(error)
        case StoreError():  # its message names the store's address, which is not for clients
            return "the store does not answer; resume from the last id"
        case TimeoutError():
            return f"the client did not read for {SEND_TIMEOUT_S:g} s; resume from the last id"
        case WebSocketDisconnect() | None:
            return ""
        case error:
            log.error("a watcher was let go", exc_info=error)
            return "internal error; resume from the last id"
