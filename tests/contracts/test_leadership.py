"""What the store promises about who leads."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.records import (
    Assigned,
    Assignment,
    Gone,
    Queued,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from tests.support.store_calls import NewStore, give, join, run, task, tell

pytestmark = pytest.mark.real


async def test_a_later_leader_shuts_out_the_earlier(store: Store, new_store: NewStore) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.leadership.resign()
    other = new_store("two")
    fence = (await other.leadership.strive()).fence
    assert fence > 0
    store.fenced.fence = fence - 1  # it was away and believes it still leads
    assert await store.tasks.assign([Assignment("t", 0, "w", epoch, "{}")]) is None
    assert await store.tasks.snapshot(1000) is None
    assert (await store.leadership.strive()).fence == 0
    assert await give(other, "t", "w", epoch) == Assigned('{"x": 1}', "")


async def test_a_leader_that_falls_silent_is_followed(new_store: NewStore) -> None:
    terms = StoreTimeouts(leader_ms=1)
    first, second = new_store("one", terms), new_store("two", terms)
    assert (await first.leadership.strive()).fence == 1
    await second.tasks.submit([task("t")])  # takes more than a millisecond to be on disk
    async with asyncio.timeout(10):
        while not (leading := await second.leadership.strive()).fence:
            pass
    assert leading.fence == 2


async def test_others_leave_news_for_the_leader(store: Store, new_store: NewStore) -> None:
    other = new_store("two")
    await other.tasks.submit([task("t"), task("u")])
    await other.tasks.cancel(["u"])
    news = await store.leadership.news()
    assert [type(each) for each in news] == [Queued, Queued, Gone]
    assert await store.leadership.news() == []


async def test_a_new_leader_finds_everything(store: Store, new_store: NewStore) -> None:
    await store.tasks.submit([task("waits"), task("runs"), task("ended")])
    epoch = await join(store, "w")
    await run(store, "runs", "w", epoch)
    await run(store, "ended", "w", epoch)
    await tell(store, "ended", "w", epoch, "done")
    await store.leadership.resign()
    other = new_store("two")
    await other.leadership.strive()
    found = await other.tasks.snapshot(1000)
    assert found is not None
    assert {(each.id, each.state, each.attempt, each.worker) for each in found.tasks} == {
        ("waits", "queued", 0, ""),
        ("runs", "running", 1, "w"),
    }
    assert found.workers == ("w",)


async def test_who_lost_track_steps_down_all_the_same(store: Store, new_store: NewStore) -> None:
    store.fenced.fence = 0  # it asked to lead, and was stopped before it heard the answer
    await store.leadership.resign()
    assert (await new_store("two").leadership.strive()).fence


async def test_who_steps_down_is_no_longer_among_the_processes(store: Store, new_store: NewStore) -> None:
    other = new_store("two")
    assert not (await other.leadership.strive()).fence
    assert set((await store.leadership.strive()).apis) == {"one", "two"}
    await other.leadership.resign()
    leading = await store.leadership.strive()
    assert leading.fence, "another one's farewell does not end it"
    assert set(leading.apis) == {"one"}
