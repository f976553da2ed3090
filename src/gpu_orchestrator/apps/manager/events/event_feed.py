"""The events of the cluster for all who watch at this process: one reader of the store's stream, a window of
the latest events in memory, and whoever watches takes from it at his own pace.

Nothing is queued per watcher: one that lags behind the window reads from the store, and one that lags behind
that is told what he missed was lost. So a slow watcher costs no more than a quick one.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
"""So long the reader waits before it reads on: what happened meanwhile comes in one go."""
PAUSE_S = 0.2
RESET = "reset"
_encode = msgspec.json.Encoder().encode


class Over(Exception):
    """Nothing more comes: the reason in words."""


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event as it is sent, made once for all who watch."""

    id: Id
    owner: str
    event: schema.Event
    json: bytes

    @property
    def frame(self) -> bytes:
        """As a server-sent event."""
        head = f"id: {self.event.id}\nevent: {self.event.event}\ndata: "
        return b"%b%b\n\n" % (head.encode(), self.json)


@dataclass(slots=True, eq=False)
class Watcher:
    """`over` says why nothing more comes; empty while something does."""

    key: Key
    over: str = ""

    def sees(self, event: EncodedEvent) -> bool:
        """Events of one's own tasks, and those that concern all."""
        return not event.owner or self.key.sees in ("", event.owner)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a watcher gets next; `last` is where he is then."""

    events: Sequence[EncodedEvent]
    last: Id


class Feed:
    def __init__(self, events: Events, most_watchers: int) -> None:
        self._events, self._most = events, most_watchers
        self._window: list[EncodedEvent] = []
        self._floor = self._last = START
        """The window has all events after the floor up to the last."""
        self._reading: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._watchers: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._watchers)

    @contextlib.contextmanager
    def watching(self, key: Key) -> Iterator[Watcher]:
        """The stream is read as long as somebody watches. No owner may have all the places."""
        if len(self) >= self._most:
            raise Unavailable(f"{len(self)} watch already, as many as MAX_WATCHERS allows; try again later")
        if not key.is_unlimited and self._of(key.owner) >= (self._most + 1) // 2:
            raise Unavailable(
                f"half of MAX_WATCHERS are {key.owner}'s already; close some, or try again later"
            )
        watcher = Watcher(key)
        self._watchers.add(watcher)
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            if not self._watchers and self._reading is not None:
                self._reading.cancel()
                self._reading = None

    async def after(self, at: Id, watcher: Watcher, within_s: float) -> Batch:
        """What came after an event; empty when nothing came in time. Raises `Over`, or `StoreError`."""
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            if watcher.over:
                raise Over(watcher.over)
            news = self._expect()
            batch = self._from_window(at) if self._covers(at) else _batch(at, await self._events.page(at))
            left_s = deadline - asyncio.get_running_loop().time()
            if batch.events or left_s <= 0:
                return batch
            await asyncio.wait([news], timeout=left_s)

    async def latest(self) -> Id:
        """The last event there is: whoever watches from here sees what comes."""
        return id_of((await self._events.page(None, 0)).last)

    def part_from(self, unwanted: Callable[[Key], bool], reason: str) -> None:
        """Let go all whose key is unwanted."""
        for watcher in self._watchers:
            if unwanted(watcher.key):
                watcher.over = reason
                self._wake()

    def _of(self, owner: str) -> int:
        return sum(watcher.key.owner == owner for watcher in self._watchers)

    async def _read(self) -> None:
        """As long as it is let."""
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
                self._take([encoded(entry) for entry in entries])
                await asyncio.sleep(GATHER_S)

    def _take(self, events: Sequence[EncodedEvent]) -> None:
        for each in events:
            if not self._last.is_before(each.id):
                self._window.clear()  # those in between were lost to us; the store says so to whoever asks
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
    # Whoever leaves right after a reset must not miss what comes with it: he goes on from where he was.
    return Batch([*([_reset(at, at if events else last)] if page.lost else []), *events], last)


def _reset(missed: Id, at: Id) -> EncodedEvent:
    """Says that events after `missed` are gone: look at everything anew, and go on from `at`."""
    why = {
        "after": str(missed),
        "reason": "events after this one are no longer kept; look at everything anew",
    }
    event = schema.Event(id=str(at), event=RESET, timestamp="", data=msgspec.Raw(_encode(why)))
    return EncodedEvent(at, "", event, _encode(event))
