"""The store's contract for leader election."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.records import (
    Assigned,
    Assignment,
    Ended,
    Gone,
    NewsItem,
    Outcome,
    Queued,
    Snapshot,
)
from gpu_orchestrator.adapters.store.snapshots import NotLeading
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from tests.support.store_calls import NewStore, give, join, run, task, tell, unfinished

pytestmark = pytest.mark.real


async def test_new_leader_fences_the_old_one(store: Store, new_store: NewStore) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.leadership.resign()
    other = new_store("two")
    fence = (await other.leadership.campaign()).fence
    assert fence > 0
    store.fenced.fence = fence - 1  # it stalled and believes that it still leads
    assert await store.tasks.assign([Assignment("t", 0, "w", epoch, "{}")]) is None
    assert await store.snapshots.begin(1000) is None
    with pytest.raises(NotLeading):
        _ = [page async for page in store.snapshots.pages(Snapshot(0, ()))]
    assert (await store.leadership.campaign()).fence == 0
    assert await give(other, "t", "w", epoch) == Assigned('{"x": 1}', "")


async def test_silent_leader_is_replaced(new_store: NewStore) -> None:
    timeouts = StoreTimeouts(leader_ms=1)
    first, second = new_store("one", timeouts), new_store("two", timeouts)
    earlier = (await first.leadership.campaign()).fence
    await second.tasks.submit([task("t")])  # takes more than a millisecond to be on disk
    async with asyncio.timeout(60):
        while not (leading := await second.leadership.campaign()).fence:
            pass
    assert leading.fence > earlier > 0


async def test_followers_leave_news_for_the_leader(store: Store, new_store: NewStore) -> None:
    other = new_store("two")
    await other.tasks.submit([task("t"), task("u")])
    await other.tasks.cancel(["u"])
    news = await store.leadership.news()
    assert [type(each) for each in news] == [Queued, Queued, Gone]
    assert await store.leadership.news() == []


async def test_snapshot_has_all_unfinished_tasks_and_workers(store: Store, new_store: NewStore) -> None:
    await store.tasks.submit([task("waits"), task("runs"), task("ended")])
    epoch = await join(store, "w")
    await run(store, "runs", "w", epoch)
    await run(store, "ended", "w", epoch)
    await tell(store, "ended", "w", epoch, "done")
    await store.leadership.resign()
    other = new_store("two")
    await other.leadership.campaign()
    found = await unfinished(other)
    assert [(each.id, each.state, each.attempt, each.worker) for each in found] == [
        ("runs", "running", 1, "w"),
        ("waits", "queued", 0, ""),
    ]
    snapshot = await other.snapshots.begin(1000)
    assert snapshot is not None
    assert snapshot.workers == ("w",)


async def test_pages_have_each_task_once_also_those_of_one_millisecond(store: Store) -> None:
    names = [f"t{number:02}" for number in range(25)]
    await store.tasks.submit([task(name) for name in names[:20]])
    await store.tasks.submit([task(name) for name in names[20:]])
    for size in (1, 5, 7, 25, 100):
        assert sorted(each.id for each in await unfinished(store, size)) == names


async def test_page_after_a_task_that_left_misses_none_of_its_millisecond(store: Store) -> None:
    names = [f"t{number}" for number in range(6)]
    await store.tasks.submit([task(name) for name in names])
    first = await store.snapshots._page("queued", 3, "", "")
    await store.tasks.cancel([first.last, "t0"])
    rest = await store.snapshots._page("queued", 6, first.last_at, first.last)
    assert {"t3", "t4", "t5"} <= {each.id for each in rest.tasks} <= {"t1", "t3", "t4", "t5"}


async def test_pages_and_news_together_miss_no_task_that_changes_meanwhile(
    store: Store, news: list[NewsItem]
) -> None:
    """Between two pages the last task of a page is cancelled, one that was read is cancelled, one that ran is
    back in the queue, and a new one comes."""
    names = [f"t{number}" for number in range(6)]
    await store.tasks.submit([task(name) for name in names])
    epoch = await join(store, "w")
    await run(store, "t0", "w", epoch)
    snapshot = await store.snapshots.begin(1000)
    assert snapshot is not None
    pages = store.snapshots.pages(snapshot, 2)
    read = {each.id: each.state for page in [await anext(pages) for _ in range(3)] for each in page}
    assert read == {"t0": "running", "t1": "queued", "t2": "queued"}
    news.clear()
    await store.tasks.cancel(["t2", "t1"])
    await store.tasks.finish([Outcome("t0", 1, "w", epoch, "refused")])
    await store.tasks.submit([task("late")])
    read |= {each.id: each.state async for page in pages for each in page}
    for item in news:
        match item:
            case Queued(id=name):
                read[name] = "queued"
            case Gone(id=name) | Ended(id=name):
                read.pop(name, None)
    assert read == dict.fromkeys(["t0", "t3", "t4", "t5", "late"], "queued")


async def test_process_without_fence_can_resign(store: Store, new_store: NewStore) -> None:
    store.fenced.fence = 0  # it was stopped before the answer to its election call arrived
    await store.leadership.resign()
    assert (await new_store("two").leadership.campaign()).fence


async def test_resigned_process_is_removed_from_the_list(store: Store, new_store: NewStore) -> None:
    other = new_store("two")
    assert not (await other.leadership.campaign()).fence
    assert set((await store.leadership.campaign()).apis) == {"one", "two"}
    await other.leadership.resign()
    leading = await store.leadership.campaign()
    assert leading.fence, "another process resigning does not end its term"
    assert set(leading.apis) == {"one"}
