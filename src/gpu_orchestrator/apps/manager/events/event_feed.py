"""The feed of cluster events for all watchers of this process: one reader of the store's stream fills a
window of the latest events in memory, and each watcher reads from it at its own pace.

Nothing is queued per watcher. One that lags behind the window reads from the store; one that lags behind the
store gets a `reset`, because it missed events. So a slow watcher costs no more than a fast one.

Watchers share the process with all else, perhaps with the leader. So they are woken some at a time, and a
pause follows that grows with their number: what they cost has a bound, whatever happens in the cluster.
"""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.events import READ_MOST, START, Events, Id, Page, id_of
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.errors import Unavailable
from gpu_orchestrator.apps.manager.events.encoding import Batch, EncodedEvent, encoded, reset

log = structlog.get_logger()

WINDOW = 4096
GATHER_S, PER_WATCHER_S = 0.02, 0.00025
"""The reader waits between reads, so that it gets several events at once: this long, or this long for each
watcher if that is more. To wake a watcher and write to it takes about a tenth of that."""
WOKEN_AT_ONCE = 50
BATCH_EVENTS, BATCH_BYTES = 500, 256 << 10
"""The most that is written to a watcher at once; what a slow one has not read is kept in memory."""
CATCHING_UP, PAGE_S, PAGES_KEPT = 2, 0.005, 8
"""How many watchers read old events from the store at a time, how long a page takes each of them at least,
and how many pages are kept for others that start at the same event."""
PAUSE_S = 0.2


class WatchEnded(Exception):
    """The watcher gets no more events; the message is the reason for the client."""


@dataclass(slots=True, eq=False)
class Watcher:
    """One client that watches: events of the feed if `reads`, else the log of a task. When it must leave,
    `ended` is set and `end_reason` says why."""

    key: Key
    reads: bool = True
    end_reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _news: "asyncio.Future[None] | None" = None

    @property
    def waits(self) -> bool:
        return self._news is not None and not self._news.done()

    def expect(self) -> "asyncio.Future[None]":
        """Return a future that ends when there is news from now on."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        return self._news

    def wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Feed:
    def __init__(self, events: Events, most_watchers: int) -> None:
        self._events, self._most = events, most_watchers
        self._window: list[EncodedEvent] = []
        self._floor = self._last = START
        """The window holds all events after `_floor`, up to and including `_last`."""
        self._batches: dict[Id, Batch] = {}
        self._pages: dict[Id, Batch] = {}
        self._catching_up = asyncio.Semaphore(CATCHING_UP)
        self._reading: asyncio.Task[None] | None = None
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
            news = watcher.expect()
            batch = self._from_window(at) if self._covers(at) else await self._from_store(at)
            if batch.events or asyncio.get_running_loop().time() >= deadline:
                return batch
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await news

    async def latest(self) -> Id:
        """Return the id of the latest event; a watcher that starts there sees all later events."""
        return id_of((await self._events.page(None, 0)).last)

    def disconnect(self, unwanted: Callable[[Key], bool], reason: str) -> None:
        """End all watchers whose key is unwanted, with a reason for the client."""
        for watcher in self._watchers:
            if unwanted(watcher.key):
                watcher.end_reason = reason
                watcher.ended.set()
                watcher.wake()

    def _count_of(self, owner: str) -> int:
        return sum(watcher.key.owner == owner for watcher in self._watchers)

    async def _read(self) -> None:
        """Fill the window from the stream until cancelled; start over after an error of the store."""
        while True:
            with contextlib.suppress(StoreError):
                self._floor = self._last = await self.latest()
                self._window.clear()
                self._batches.clear()
                await self._wake()
                await self._follow()
            await asyncio.sleep(PAUSE_S)

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._events.follow(self._last)) as following:
            unseen = 0
            async for entries in following:
                self._append([encoded(entry) for entry in entries])
                unseen += len(entries)
                if len(entries) == READ_MOST and unseen < WINDOW:
                    continue  # there are more: first read them all
                unseen = 0
                await self._wake()
                await asyncio.sleep(max(GATHER_S, PER_WATCHER_S * len(self)))

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
        self._batches.clear()

    def _covers(self, at: Id) -> bool:
        return self._reading is not None and self._floor <= at <= self._last and at != START

    def _from_window(self, at: Id) -> Batch:
        if at == self._last:
            return Batch((), at)
        batch = self._batches.get(at)
        if batch is None:
            first = bisect_right(self._window, at, key=lambda each: each.id)
            events = _bounded(self._window[first : first + BATCH_EVENTS])
            batch = self._batches[at] = Batch(events, events[-1].id)
        return batch

    async def _from_store(self, at: Id) -> Batch:
        """Read a page of old events. Many watchers that do so at once must not slow down the rest."""
        async with self._catching_up:
            batch = self._pages.get(at)
            if batch is None:
                batch = _batch(at, await self._events.page(at, BATCH_EVENTS))
                if len(batch.events) >= BATCH_EVENTS:  # a page that is not full gets more events
                    self._keep_page(at, batch)
            await asyncio.sleep(PAGE_S)
            return batch

    def _keep_page(self, at: Id, batch: Batch) -> None:
        self._pages[at] = batch
        if len(self._pages) > PAGES_KEPT:
            del self._pages[next(iter(self._pages))]
        asyncio.get_running_loop().call_later(PAUSE_S, self._pages.pop, at, None)

    async def _wake(self) -> None:
        """Wake the watchers, some at a time: what else this process has to do goes on in between."""
        waiting = [each for each in self._watchers if each.waits]
        for at in range(0, len(waiting), WOKEN_AT_ONCE):
            for watcher in waiting[at : at + WOKEN_AT_ONCE]:
                watcher.wake()
            await asyncio.sleep(0)


def _bounded(events: Sequence[EncodedEvent]) -> Sequence[EncodedEvent]:
    """Return the first of these events, at least one, that are not too large together."""
    size = 0
    for number, each in enumerate(events):
        size += len(each.json)
        if size > BATCH_BYTES and number:
            return events[:number]
    return events


def _batch(at: Id, page: Page) -> Batch:
    events, last = [encoded(entry) for entry in page.entries], id_of(page.last)
    # A watcher that disconnects right after the reset resumes from the reset's id. If events come with the
    # reset, that id is the watcher's old position, so that it does not miss them.
    return Batch([*([reset(at, at if events else last)] if page.lost else []), *events], last)
