"""Send a task's log to one client as it grows, as server-sent events. The route of logs calls this.

`log` events have the next part of the log, and the position to resume from as their id. One `end` event
follows when the task has ended and all of its log was sent.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from gpu_orchestrator.adapters.store import logs
from gpu_orchestrator.adapters.store.logs import LogPart, LogText
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.events.event_feed import WatchEnded, Watcher
from gpu_orchestrator.apps.manager.http.event_streams import KEEPALIVE_S, ServerSent, until_more
from gpu_orchestrator.apps.manager.manager import Manager

PART_BYTES = 64 << 10
SOON_S, LATER_S, SLOWER = 0.2, 2.0, 1.5
"""How often to look for text that another process stored: soon after some came, else less and less often."""

GATHER_S = 0.1
"""The pause after some text, so that a client gets several lines at once."""

_encode = msgspec.json.Encoder().encode


async def read(manager: Manager, name: str, owner: str, after: int, most_bytes: int) -> task_schema.TaskLog:
    """Return a part of a log. A task of another owner is reported as missing."""
    part = await manager.store.logs.read(name, after, most_bytes)
    if not part.state or (owner and part.owner != owner):
        raise manager.tasks.no_task(name)
    return _task_log(name, part, logs.text_of(part, after, most_bytes))


def _task_log(name: str, part: LogPart, text: LogText) -> task_schema.TaskLog:
    return task_schema.TaskLog(
        task_id=name,
        attempt=part.attempt,
        status=part.state,
        offset=text.offset,
        next=text.next,
        text=text.text,
        omitted_bytes=text.omitted,
        ended=part.state in task.FINAL and text.next >= part.end,
    )


class LogStream(ServerSent):
    """Sends a log until the task has ended, or the client or the server closes the stream."""

    def __init__(self, manager: Manager, name: str, key: Key, after: int) -> None:
        super().__init__(manager.feed, key, reads=False)
        self._manager, self._name, self._after = manager, name, after

    async def _frames(self, watcher: Watcher) -> AsyncIterator[bytes]:
        yield b": from here on\n\n"
        after, pause_s, quiet_s = self._after, SOON_S, 0.0
        with self._manager.task_logs.followers.following(self._name) as news:
            while True:
                news.clear()
                try:
                    part = await read(self._manager, self._name, self._key.sees, after, PART_BYTES)
                except errors.NotFound:  # its time of retention ended while this client followed it
                    yield _end("gone")
                    return
                after = part.next
                if part.text or part.omitted_bytes:
                    pause_s, quiet_s = SOON_S, 0.0
                    yield b"id: %d\nevent: log\ndata: %b\n\n" % (after, _encode(part))
                if part.ended:
                    yield _end(part.status)
                    return
                if part.text:
                    await asyncio.sleep(GATHER_S if len(part.text) < PART_BYTES / 2 else 0)
                else:
                    await until_more(self._manager.waiters, self._name, watcher, news, pause_s)
                    quiet_s, pause_s = quiet_s + pause_s, min(pause_s * SLOWER, LATER_S)
                if watcher.end_reason:
                    raise WatchEnded(watcher.end_reason)
                if quiet_s >= KEEPALIVE_S:
                    quiet_s = 0.0
                    yield b": nothing new\n\n"


def _end(status: str) -> bytes:
    return b"event: end\ndata: %b\n\n" % _encode({"status": status})


def position_of(given: str) -> int:
    """Return the position in a `Last-Event-ID`; empty means the beginning."""
    if not given:
        return 0
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise errors.Unprocessable(f"Last-Event-ID {given[:40]!r} is not a position in a log; give a number")
    return int(given)
