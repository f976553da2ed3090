"""Tell one client of many tasks as they end, as server-sent events. The route for waiting calls this.

One `task` event for each task, with the task and its result, in the order in which they end; `missing` for an
id that names none of the caller's tasks, now or any more. The last event is `end`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.events.event_feed import WatchEnded, Watcher
from gpu_orchestrator.apps.manager.http.event_streams import KEEPALIVE_S, ServerSent
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.tasks.completion import Completion
from gpu_orchestrator.apps.manager.tasks.reading import RECHECK_S

PART = 100
"""How many rows are read from the store at once, so that other clients of it need not wait."""
FEW, GATHER_S = 50, 0.005
"""With more tasks than a few left, those that end within a moment are written at once."""
_encode = msgspec.json.Encoder().encode


class WaitStream(ServerSent):
    """Sends tasks as they end, until all have, or the client or the server closes the stream."""

    def __init__(self, manager: Manager, names: Sequence[str], key: Key) -> None:
        super().__init__(manager.feed, key, reads=False)
        self._manager = manager
        self._names = list(dict.fromkeys(names))
        self._left: set[str] = set(self._names)
        self._ended: deque[tuple[str, Row | None]] = deque()
        self._news = asyncio.Event()

    async def _frames(self, watcher: Watcher) -> AsyncIterator[bytes]:
        yield b": from here on\n\n"
        with self._joined():
            async for frames in self._read(self._names):
                yield frames
            checked = told = asyncio.get_running_loop().time()
            while self._left:
                await self._more(watcher)
                now = asyncio.get_running_loop().time()
                if self._ended:
                    told = now
                    async for frames in self._take():
                        yield frames
                elif now - checked > RECHECK_S * (1 + len(self._left) / PART):
                    checked = now
                    async for frames in self._read([each for each in self._names if each in self._left]):
                        yield frames
                if now - told > KEEPALIVE_S:
                    told = now
                    yield b": nothing new\n\n"
        yield b"event: end\ndata: null\n\n"

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Be told of each task that ends."""
        waiters = self._manager.waiters
        joined = {name: waiters.join(name) for name in self._names}
        for name, completion in joined.items():
            completion.add_done_callback(partial(self._heard, name))
        try:
            yield
        finally:
            for name, completion in joined.items():
                waiters.leave(name, completion)
                completion.cancel()

    def _heard(self, name: str, completion: Completion) -> None:
        if not completion.cancelled():
            self._ended.append((name, completion.result()))
            self._news.set()

    async def _more(self, watcher: Watcher) -> None:
        """Wait until a task ends, but not for long; raise if this client must leave."""
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._news.wait()),
            asyncio.ensure_future(watcher.ended.wait()),
        ]
        try:
            await asyncio.wait(waiting, timeout=RECHECK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if watcher.end_reason:
            raise WatchEnded(watcher.end_reason)
        if self._news.is_set() and len(self._left) > FEW:
            await asyncio.sleep(GATHER_S)
        self._news.clear()

    async def _take(self) -> AsyncIterator[bytes]:
        """Yield the tasks that this process saw end; read those that ended through another one."""
        unread, frames = [], []
        while self._ended:
            name, row = self._ended.popleft()
            if name in self._left:
                if row is None:
                    unread.append(name)
                else:
                    frames.append(await self._frame(name, row))
        if frames:
            yield b"".join(frames)
        async for more in self._read(unread):
            yield more

    async def _read(self, names: Sequence[str]) -> AsyncIterator[bytes]:
        """Yield those of these tasks that have ended, and those that are not there."""
        for at in range(0, len(names), PART):
            part = names[at : at + PART]
            rows = zip(part, await self._manager.tasks.durable_rows(part), strict=True)
            frames = [
                await self._frame(name, row)
                for name, row in rows
                if name in self._left
                and (row is None or not self._is_mine(row) or row["state"] in task.FINAL)
            ]
            if frames:
                yield b"".join(frames)

    def _is_mine(self, row: Row) -> bool:
        return self._key.sees in ("", row.get("tenant"))

    async def _frame(self, name: str, row: Row | None) -> bytes:
        """Return the last that is to be said of a task."""
        self._left.discard(name)
        if row is None or not self._is_mine(row):
            return b"event: missing\ndata: %b\n\n" % _encode({"task_id": name})
        whole = await self._manager.results.whole(row)
        return b"event: task\ndata: %b\n\n" % _encode(views.task_status(name, whole))
