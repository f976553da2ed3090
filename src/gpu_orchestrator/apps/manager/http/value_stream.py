"""Send what a task sends before its end to one client, as server-sent events. The route of streams calls
this.

`attempt` events say that an attempt began: the values of the one before are superseded. `values` events have
the next values, and the place to resume from as their id. One `end` event follows when the task has ended and
all its values were sent. After SEGMENT_BYTES, or when the task waits for a reader, the stream ends with
`more`: the client asks for the rest, and so acknowledges what it has. That is what lets a named reader hold a
task back without losing what is on its way.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from gpu_orchestrator.adapters.store import values
from gpu_orchestrator.adapters.store.values import Lines, Place, Reader, ValuesPart
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.events.event_feed import WatchEnded, Watcher
from gpu_orchestrator.apps.manager.http.event_streams import KEEPALIVE_S, ServerSent, until_more
from gpu_orchestrator.apps.manager.manager import Manager

PART_BYTES = 64 << 10
SEGMENT_BYTES = 2 << 20
SOON_S, LATER_S, SLOWER = 0.2, 2.0, 1.5
"""How often to look for values that another process stored, in case its message is lost, or the reader has no
name: soon after some came, else less and less often."""

_PLACE = re.compile(r"(\d{1,15})-(\d{1,15})")
_encode = msgspec.json.Encoder().encode


async def read(
    manager: Manager, name: str, key: Key, after: Place, most_bytes: int, reader: Reader | None = None
) -> ValuesPart:
    """Return a part of what a task has sent. A task of another owner is reported as missing."""
    part = await manager.store.values.read(name, after, most_bytes, reader)
    if not part.state or (key.sees and part.owner != key.sees):
        raise manager.tasks.no_task(name)
    return part


def shown(name: str, part: ValuesPart, lines: Lines) -> task_schema.TaskValues:
    return task_schema.TaskValues(
        task_id=name,
        attempt=part.attempt,
        status=part.state,
        first=lines.first,
        next=str(Place(part.attempt, lines.next)),
        values=msgspec.Raw(_array(lines)),
        missed=lines.missed,
        ended=part.state in task.FINAL and lines.next >= part.count,
    )


def _array(lines: Lines) -> bytes:
    return b"[%b]" % lines.text.replace("\n", ",").encode()


class ValueStream(ServerSent):
    """Sends values until the task has ended, a segment is full, or the client or the server closes the
    stream."""

    def __init__(self, manager: Manager, name: str, key: Key, after: Place, reader: Reader) -> None:
        super().__init__(manager.feed, key, reads=False)
        self._manager, self._name, self._after, self._reader = manager, name, after, reader

    async def _frames(self, watcher: Watcher) -> AsyncIterator[bytes]:
        yield b": from here on\n\n"
        at, sent, pause_s, quiet_s = self._after, 0, SOON_S, 0.0
        with self._manager.task_values.followers.following(self._name) as news:
            while True:
                news.clear()
                try:
                    part = await read(self._manager, self._name, self._key, at, PART_BYTES, self._reader)
                except errors.NotFound:  # its time of retention ended while this client followed it
                    yield _event("end", {"status": "gone", "attempt": at.attempt, "count": at.number})
                    return
                if part.attempt != at.attempt:
                    at = Place(part.attempt)
                    yield b"id: %b\n" % str(at).encode() + _event("attempt", {"attempt": at.attempt})
                lines = values.lines_of(part, at)
                at = Place(part.attempt, lines.next)
                if lines.text or lines.missed:
                    pause_s, quiet_s, sent = SOON_S, 0.0, sent + len(lines.text)
                    yield _values(at, lines)
                if part.state in task.FINAL and at.number >= part.count:
                    end = {"status": part.state, "attempt": part.attempt, "count": part.count}
                    yield _event("end", end)
                    return
                if sent >= SEGMENT_BYTES or (sent and part.refused):
                    yield _event("more", {})
                    return
                if not lines.text and not lines.missed:
                    await until_more(self._manager.waiters, self._name, watcher, news, pause_s)
                    quiet_s, pause_s = quiet_s + pause_s, min(pause_s * SLOWER, LATER_S)
                if watcher.end_reason:
                    raise WatchEnded(watcher.end_reason)
                if quiet_s >= KEEPALIVE_S:
                    quiet_s = 0.0
                    yield b": nothing new\n\n"


def _values(at: Place, lines: Lines) -> bytes:
    head = b'{"attempt":%d,"first":%d,"next":"%b","missed":%d,"values":' % (
        at.attempt,
        lines.first,
        str(at).encode(),
        lines.missed,
    )
    return b"id: %b\nevent: values\ndata: %b%b}\n\n" % (str(at).encode(), head, _array(lines))


def _event(name: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(data))


def place_of(given: str, where: str) -> Place:
    """Return the place in `after` or in a `Last-Event-ID`; empty means the beginning."""
    if not given:
        return Place()
    if not (found := _PLACE.fullmatch(given)):
        raise errors.Unprocessable(
            f"{where} {given[:40]!r} is not a place among the values of a task; "
            "give the `next` of an answer, such as 1-250"
        )
    return Place(int(found[1]), int(found[2]))
