"""The feed of cluster events for all watchers of this process: one reader of the store's stream fills a
window of the latest events in memory, and each watcher reads from it at its own pace.

Nothing is queued per watcher. One that lags behind the window reads from the store; one that lags behind the
store gets a `reset`, because it missed events. So a slow watcher costs no more than a fast one.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.events import START, Entry, Events, Id, Page, id_of
from gpu_orchestrator.apps.manager import schema, views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.errors import Unavailable

log = structlog.get_logger()

WINDOW = 4096
GATHER_S = 0.02
"""The reader waits this long between reads, so that it gets several events at once."""
PAUSE_S = 0.2
RESET = "reset"
_encode = msgspec.json.Encoder().encode


class WatchEnded(Exception):
    """The watcher gets no more events; the message is the reason for the client."""


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event as it is sent, encoded once for all watchers."""

    id: Id
    owner: str
    event: schema.Event
    json: bytes

    @property
    def frame(self) -> bytes:
        """Return the event as a server-sent event."""
        head = f"id: {self.event.id}\nevent: {self.event.event}\ndata: "
        return b"%b%b\n\n" % (head.encode(), self.json)


@dataclass(slots=True, eq=False)
class Watcher:
    """One client that watches: events of the feed if `reads`, else the log of a task. When it must leave,
    `ended` is set and `end_reason` says why."""

    key: Key
    reads: bool = True
    end_reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def sees(self, event: EncodedEvent) -> bool:
        """Return True for events of the owner's tasks and of the whole cluster."""
        return not event.owner or self.key.sees in ("", event.owner)


@dataclass(frozen=True, slots=True)
class Batch:
    """The next events of a watcher; `last` is its position after them."""

    events: Sequence[EncodedEvent]
    last: Id


class Feed:
    def __init__(self, events: Events, most_watchers: int) -> None:
        self._events, self._most = events, most_watchers
        self._window: list[EncodedEvent] = []
        self._floor = self._last = START
        """The window holds all events after `_floor`, up to and including `_last`."""
        self._reading: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._watchers: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._watchers)

    @contextlib.contextmanager
    def watching(self, key: Key, *, reads: bool = True) -> Iterator[Watcher]:
        """Register a watcher. The feed reads the stream while there are watchers that read. One owner gets at
        most half of all watchers, so that others can watch too."""
        if len(self) >= self._most:
            raise Unavailable(
                f"{len(self)} clients watch already, the most that MAX_WATCHERS allows; retry later"
            )
        if not key.is_unlimited and self._count_of(key.owner) >= (self._most + 1) // 2:
            raise Unavailable(f"half of MAX_WATCHERS are {key.owner}'s already; close some, or retry later")
        watcher = Watcher(key, reads)
        self._watchers.add(watcher)
        if reads and self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if self._reading is not None and not any(each.reads for each in self._watchers):
                self._reading.cancel()
                self._reading = None

    async def after(self, at: Id, watcher: Watcher, within_s: float) -> Batch:
        """Return the events after `at`, or none after `within_s`. Raise `WatchEnded` or `StoreError`."""
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            if watcher.end_reason:
                raise WatchEnded(watcher.end_reason)
            news = self._expect()
            batch = self._from_window(at) if self._covers(at) else _batch(at, await self._events.page(at))
            left_s = deadline - asyncio.get_running_loop().time()
            if batch.events or left_s <= 0:
                return batch
            await asyncio.wait([news], timeout=left_s)

    async def latest(self) -> Id:
        """Return the id of the latest event; a watcher that starts there sees all later events."""
        return id_of((await self._events.page(None, 0)).last)

    def disconnect(self, unwanted: Callable[[Key], bool], reason: str) -> None:
        """End all watchers whose key is unwanted, with a reason for the client."""
        for watcher in self._watchers:
            if unwanted(watcher.key):
                watcher.end_reason = reason
                watcher.ended.set()
                self._wake()

    def _count_of(self, owner: str) -> int:
        return sum(watcher.key.owner == owner for watcher in self._watchers)

    async def _read(self) -> None:
        """Fill the window from the stream until cancelled; start over after an error of the store."""
        while True:
            with contextlib.suppress(StoreError):
                self._floor = self._last = await self.latest()
                self._window.clear()
                self._wake()
                await self._follow()
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._events.follow(self._last)) as following:
            async for entries in following:
                self._append([encoded(entry) for entry in entries])
                await asyncio.sleep(GATHER_S)

    def _append(self, events: Sequence[EncodedEvent]) -> None:
        for each in events:
            if not self._last.is_before(each.id):
                self._window.clear()  # we missed events in between; watchers that need them read the store
                self._floor = self._last = each.id
                continue
            self._window.append(each)
            self._last = each.id
        if len(self._window) > 2 * WINDOW:
            self._floor = self._window[-WINDOW - 1].id
            self._window = self._window[-WINDOW:]
        self._wake()

    def _covers(self, at: Id) -> bool:
        return self._reading is not None and self._floor <= at <= self._last and at != START

    def _from_window(self, at: Id) -> Batch:
        if at == self._last:
            return Batch((), at)
        first = bisect_right(self._window, at, key=lambda each: each.id)
        return Batch(self._window[first:], self._last)

    def _expect(self) -> "asyncio.Future[None]":
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def encoded(entry: Entry) -> EncodedEvent:
    event = schema.Event(
        id=entry.id,
        event=entry.name,
        timestamp=views.when(entry.at_ms) or "",
        data=msgspec.Raw(entry.data),
    )
    return EncodedEvent(id_of(entry.id), entry.owner, event, _encode(event))


def _batch(at: Id, page: Page) -> Batch:
    events, last = [encoded(entry) for entry in page.entries], id_of(page.last)
    # A watcher that disconnects right after the reset resumes from the reset's id. If events come with the
    # reset, that id is the watcher's old position, so that it does not miss them.
    return Batch([*([_reset(at, at if events else last)] if page.lost else []), *events], last)


def _reset(missed: Id, at: Id) -> EncodedEvent:
    """Return the event for: events after `missed` are gone, reload the full state, resume from `at`."""
    why = {
        "after": str(missed),
        "reason": "events after this one are no longer kept; reload the full state",
    }
    event = schema.Event(id=str(at), event=RESET, timestamp="", data=msgspec.Raw(_encode(why)))
    return EncodedEvent(at, "", event, _encode(event))
