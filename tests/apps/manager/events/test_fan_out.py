"""Many watchers: events are joined once for all, watchers woken some at a time, old events read once."""

import asyncio
from typing import Any

import pytest

from gpu_orchestrator.adapters.store.events import START, Entry, Id, Page
from gpu_orchestrator.apps.manager.access.keys import key_of
from gpu_orchestrator.apps.manager.events import event_feed
from gpu_orchestrator.apps.manager.events.encoding import Batch, EncodedEvent, encoded
from gpu_orchestrator.apps.manager.events.event_feed import BATCH_BYTES, Feed, Watcher

KEY = key_of("k" * 64, "admin")


def event(number: int, owner: str = "", size: int = 1) -> EncodedEvent:
    return encoded(Entry(f"1-{number}", "scale_event", owner, 1, '"' + "x" * size + '"'))


class Stream:
    """A stored stream of 1,200 events; `reads` counts its pages."""

    def __init__(self) -> None:
        self.reads = 0

    async def page(self, after: Id, most: int) -> Page:
        self.reads += 1
        first = after.number + 1 if after != START else 0
        entries = [
            Entry(f"1-{at}", "scale_event", "", 1, "1") for at in range(first, min(first + most, 1200))
        ]
        return Page(0, entries[-1].id if entries else str(after), tuple(entries))


async def test_watchers_at_one_position_share_the_same_bytes() -> None:
    batch = Batch([event(0), event(1, "ann"), event(2, "bob")], Id(1, 2))
    assert batch.socket_frames("ann") is batch.socket_frames("ann")
    assert batch.server_sent("") == b"".join(each.server_sent for each in batch.events)
    assert batch.socket_frames("ann") == batch.events[0].socket_frame + batch.events[1].socket_frame


@pytest.mark.parametrize(("size", "head"), [(10, 2), (1000, 4), (70_000, 10)])
def test_frame_has_a_head_of_the_size_that_the_protocol_asks_for(size: int, head: int) -> None:
    one = event(0, size=size)
    frame = one.socket_frame
    assert (frame[0], frame[head:]) == (0x81, one.json)
    assert int.from_bytes(frame[2:head], "big") in (0, len(one.json))


async def test_watchers_are_woken_some_at_a_time() -> None:
    feed = Feed(Stream(), 1000)  # type: ignore[arg-type]
    watchers = [Watcher(KEY) for _ in range(event_feed.WOKEN_AT_ONCE * 4)]
    feed._watchers.update(watchers)
    waiting = [each.expect() for each in watchers]
    woken_per_turn: list[int] = []

    async def other_work() -> None:
        while not waiting[-1].done() or sum(woken_per_turn) < len(waiting):
            woken_per_turn.append(sum(each.done() for each in waiting) - sum(woken_per_turn))
            await asyncio.sleep(0)

    await asyncio.gather(feed._wake(), other_work())
    assert max(woken_per_turn) <= event_feed.WOKEN_AT_ONCE


async def test_watchers_that_start_with_the_oldest_event_share_its_pages() -> None:
    stream = Stream()
    feed = Feed(stream, 1000)  # type: ignore[arg-type]

    async def catch_up(watcher: Watcher) -> int:
        at, seen = START, 0
        while seen < 1000:
            batch = await feed.after(at, watcher, 1.0)
            at, seen = batch.last, seen + len(batch.events)
            assert len(batch.events) <= event_feed.BATCH_EVENTS
        return seen

    assert await asyncio.gather(*(catch_up(Watcher(KEY)) for _ in range(20))) == [1000] * 20
    assert stream.reads == 2, "two full pages, for all twenty"


async def test_batch_has_a_bound_in_bytes() -> None:
    feed: Any = Feed(Stream(), 10)  # type: ignore[arg-type]
    feed._append([event(0)])
    feed._append([event(number, size=BATCH_BYTES // 3) for number in range(1, 9)])
    feed._reading, at, sizes = object(), Id(1, 0), []
    while at != feed._last:
        batch = feed._from_window(at)
        at = batch.last
        sizes.append(len(batch.events))
    assert sizes == [2, 2, 2, 2]
