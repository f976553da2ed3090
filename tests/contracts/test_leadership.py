"""The store's contract for leader election."""

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


async def test_new_leader_fences_the_old_one(store: Store, new_store: NewStore) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.leadership.resign()
    other = new_store("two")
    fence = (await other.leadership.campaign()).fence
    assert fence > 0
    store.fenced.fence = fence - 1  # it stalled and believes that it still leads
    assert await store.tasks.assign([Assignment("t", 0, "w", epoch, "{}")]) is None
    assert await store.tasks.snapshot(1000) is None
    assert (await store.leadership.campaign()).fence == 0
    assert await give(other, "t", "w", epoch) == Assigned('{"x": 1}', "")


async def test_silent_leader_is_replaced(new_store: NewStore) -> None:
    timeouts = StoreTimeouts(leader_ms=1)
    first, second = new_store("one", timeouts), new_store("two", timeouts)
    earlier = (await first.leadership.campaign()).fence
    await second.tasks.submit([task("t")])  # takes more than a millisecond to be on disk
    async with asyncio.timeout(10):
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
    found = await other.tasks.snapshot(1000)
    assert found is not None
    assert {(each.id, each.state, each.attempt, each.worker) for each in found.tasks} == {
        ("waits", "queued", 0, ""),
        ("runs", "running", 1, "w"),
    }
    assert found.workers == ("w",)


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
