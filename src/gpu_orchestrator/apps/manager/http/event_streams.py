"""How events reach whoever watches: as server-sent events or over a WebSocket, the same events with the same
ids. Whoever does not take what is sent in time is let go, with a reason, and resumes from the last id he has.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.events import Id
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.events.event_feed import EncodedEvent, Feed, Over, Watcher
from gpu_orchestrator.apps.manager.http.responses import done_before, until_left

log = structlog.get_logger()

QUIET_S = 15.0
"""After so long without an event a word is sent, so that nobody in between thinks the connection dead."""
TAKE_S = 30.0
TRY_AGAIN = 1013


async def watch(feed: Feed, at: Id, watcher: Watcher) -> AsyncIterator[Sequence[EncodedEvent]]:
    """Events this watcher may see, as they come; an empty batch every so often when none do."""
    while True:
        batch = await feed.after(at, watcher, QUIET_S)
        at = batch.last
        yield [each for each in batch.events if watcher.sees(each)]


class EventStream(Response):
    """Server-sent events until one of both leaves."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, at: Id, key: Key) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed, self._at, self._key = feed, at, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

        async def take(body: bytes) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": True})

        with self._feed.watching(self._key) as watcher:
            await send(start)
            await take(b": from here on\nid: %b\n\n" % str(self._at).encode())
            reason = _reason(await done_before(self._send_all(watcher, take), until_left(receive)))
        if reason:
            await send({"type": "http.response.body", "body": b": %b\n\n" % reason.encode()})

    async def _send_all(self, watcher: Watcher, take: Callable[[bytes], Awaitable[None]]) -> None:
        async for events in watch(self._feed, self._at, watcher):
            async with asyncio.timeout(TAKE_S):
                await take(b"".join(each.frame for each in events) or b": nothing new\n\n")


async def serve_socket(feed: Feed, websocket: WebSocket, at: Id) -> None:
    """The same over a WebSocket, one event a message; the server's pings keep it alive."""

    async def send_all(watcher: Watcher) -> None:
        async for events in watch(feed, at, watcher):
            for each in events:
                async with asyncio.timeout(TAKE_S):
                    await websocket.send_text(each.json.decode())

    async def left() -> None:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass

    with feed.watching(websocket.state.key) as watcher:
        await websocket.accept()
        reason = _reason(await done_before(send_all(watcher), left()))
    if reason:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close(TRY_AGAIN, reason)


def _reason(sent: "asyncio.Future[None] | None") -> str:
    """Why nothing more is sent; empty when the watcher left."""
    match sent and sent.exception():
        case Over() | StoreError() as error:
            return str(error)
        case TimeoutError():
            return f"what was sent was not taken within {TAKE_S:g} s; resume from the last id"
        case WebSocketDisconnect() | None:
            return ""
        case error:
            log.error("a watcher was let go", exc_info=error)
            return "something went wrong here; resume from the last id"
