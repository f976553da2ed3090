"""Tasks with a time: scheduled ones wait outside of the queue, and waiting ones expire."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from gpu_orchestrator.adapters.store.callbacks import Take
from gpu_orchestrator.adapters.store.records import Limit, NewsItem, NewTask, NoRoom, Queued, Unit
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import backup
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support.scale import Scale
from tests.support.store_calls import SHORT, give, join, lose, row, run, state, task, tell

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000
EXPIRING = '{"task_type":"echo","expires":"1s","callback_url":"http://x"}'


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one", timeouts=SHORT) as made:
        await made.leadership.campaign()
        yield made


@pytest.fixture
def news(store: Store) -> list[NewsItem]:
    items: list[NewsItem] = []
    store.fenced.attach(items.extend, lambda: None)
    return items


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await check():  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.01)


async def test_scheduled_task_is_queued_when_its_time_has_come(store: Store, news: list[NewsItem]) -> None:
    (taken,) = await store.tasks.submit([task("a", not_before_ms=-100, tenant="ann")])
    assert getattr(taken, "state", "") == "scheduled"
    snapshot = await store.snapshots.begin(1000)
    assert snapshot is not None
    assert [page async for page in store.snapshots.pages(snapshot) if page] == []
    assert (await store.tasks.counts()).states["scheduled"] == 1
    assert (await store.tasks.page(owner="ann", offset=0, limit=9)).ids == ("a",)
    assert not news

    async def is_queued() -> bool:
        await store.tasks.due()
        return await state(store, "a") == "queued"

    await until(is_queued)
    (item,) = news
    assert isinstance(item, Queued)
    begins = int((await row(store, "a"))["not_before"])
    assert (item.id, item.after_ms) == ("a", begins)
    assert begins > item.created_ms
    levels = await store.tasks.submit([task("b")], [Unit("", 0, 1, 0, (0, 1, 0, 0))], [1])
    assert levels == [NoRoom(Limit.LEVEL_QUEUE)]  # from now on it counts as queued


async def test_past_time_means_now_and_the_leader_is_told(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit_and_assign([task("a", not_before_ms=1)], [])
    assert await state(store, "a") == "queued"
    assert [item.id for item in news if isinstance(item, Queued)] == ["a"]


async def test_waiting_task_expires_with_error_event_and_callback(store: Store) -> None:
    await store.tasks.submit(
        [
            NewTask("a", EXPIRING, "1", expires_ms=-1),
            NewTask("b", EXPIRING, "1", expires_ms=-1, not_before_ms=-HOUR_MS),
            NewTask("c", EXPIRING, "1", expires_ms=-HOUR_MS),
        ]
    )
    ended: list[str] = []

    async def two_ended() -> bool:
        ended.extend((await store.tasks.due()).ended)
        return len(ended) == 2

    await until(two_ended)
    assert sorted(ended) == ["a", "b"]
    for name in ("a", "b"):
        found = await row(store, name)
        assert found["state"] == "failed"
        assert '"type":"Expired"' in found["error"]
    assert await state(store, "c") == "queued"
    due, _ = await store.callbacks.take(Take(10, 1000, {}, 10, 0))
    assert sorted(each.task for each in due) == ["a", "b"]
    counts = await store.tasks.counts()
    assert counts.stats["tasks_expired"] == 2
    assert counts.states == {**dict.fromkeys(counts.states, 0), "failed": 2, "queued": 1}


async def test_label_is_not_taken_for_a_callback(store: Store) -> None:
    labelled = {"labels": {"callback_url": "https://other.example/"}, "worker_labels": {"a": "callback_url"}}
    called = {"callback_url": "https://slow.example/"}
    specs = {"a": labelled, "b": {**labelled, **called}, "c": called}
    await store.tasks.submit([NewTask(name, encode(spec).decode(), "1") for name, spec in specs.items()])
    await store.tasks.cancel(list(specs))
    due, _ = await store.callbacks.take(Take(10, 1000, {"slow.example": 1}, 10, 0))
    assert [each.task for each in due] == ["b"]  # it counts for the host that gets it, and `a` has none
    assert await store.database._execute("ZCARD", f"{store.database.prefix}callbacks") == 2


async def test_running_task_does_not_expire_but_its_retry_does(store: Store, news: list[NewsItem]) -> None:
    epoch = await join(store, "w")
    await store.tasks.submit([NewTask("a", EXPIRING, '{"x": 1}', expires_ms=-50)])
    await run(store, "a", "w", epoch)
    await asyncio.sleep(0.06)  # its time must pass while it runs
    assert (await store.tasks.due()).ended == ()
    assert await state(store, "a") == "running"
    news.clear()
    await tell(store, "a", "w", epoch, "failed", payload='{"type":"X","message":""}', retryable=True)
    assert not any(isinstance(item, Queued) for item in news)  # else the leader would begin it again
    assert (await store.tasks.due()).ended == ("a",)


async def test_no_attempt_begins_after_expiry(store: Store) -> None:
    epoch = await join(store, "w")
    await store.tasks.submit([NewTask("a", EXPIRING, '{"x": 1}', expires_ms=-1)])
    await asyncio.sleep(0.005)  # its time must pass
    answer = await give(store, "a", "w", epoch)
    assert "task moved on" in str(answer)


@pytest.mark.parametrize(
    "times", [{"not_before_ms": -HOUR_MS}, {"not_before_ms": -HOUR_MS, "expires_ms": -2 * HOUR_MS}]
)
async def test_cancelled_scheduled_task_can_be_retried_and_then_has_no_times(
    store: Store, times: dict[str, Any]
) -> None:
    await store.tasks.submit([NewTask("a", EXPIRING, "1", tenant="ann", **times)])
    (before,) = await store.tasks.cancel(["a"])
    assert before.state == "scheduled"
    assert await state(store, "a") == "cancelled"
    assert await _due_size(store) == 0
    await store.tasks.retry(["a"])
    found = await row(store, "a")
    assert found["state"] == "queued"
    assert "expires" not in found
    assert "not_before" not in found


async def test_scheduled_tasks_count_for_the_limits(store: Store) -> None:
    later = [task(f"t{at}", not_before_ms=-HOUR_MS, tenant="ann") for at in range(3)]
    own = Unit("ann", 2, 0, 0, (0, 1, 0, 0))
    answers = [(await store.tasks.submit([each], [own], [1]))[0] for each in later]
    assert answers[2] == NoRoom(Limit.OWNER_QUEUE)
    every = Unit("bob", 0, 2, 0, (0, 1, 0, 0))
    bobs = task("bobs", not_before_ms=-HOUR_MS, tenant="bob")
    assert await store.tasks.submit([bobs], [every], [1]) == [NoRoom(Limit.LEVEL_QUEUE)]


async def test_backup_keeps_the_times(store: Store, tmp_path: Path) -> None:
    await store.tasks.submit([NewTask("a", EXPIRING, "1", not_before_ms=-50, expires_ms=-HOUR_MS)])
    await backup.save(store.database, tmp_path / "file", {})
    (tmp_path / "other").mkdir()
    async with embedded(tmp_path / "other") as server, Store(Database(server.url), owner="two") as restored:
        await backup.load(restored.database, tmp_path / "file")
        await restored.leadership.campaign()
        assert await _due_size(restored) == 2

        async def is_queued() -> bool:
            await restored.tasks.due()
            return await state(restored, "a") == "queued"

        await until(is_queued)


async def test_task_may_lose_as_many_workers_as_it_says(store: Store) -> None:
    await store.tasks.submit([task("a", lost_workers=3, retries=9), task("b", lost_workers=1)])
    epoch = await join(store, "w0")
    await run(store, "b", "w0", epoch)
    await run(store, "a", "w0", epoch)
    await lose(store, "w0", epoch)
    assert (await row(store, "b"))["reason"] == "its worker died running it"
    for number in (1, 2):
        assert await state(store, "a") == "queued"
        epoch = await join(store, f"w{number}")
        await run(store, "a", f"w{number}", epoch, attempt=number)
        await lose(store, f"w{number}", epoch)
    assert (await row(store, "a"))["reason"] == "3 different workers died running it"


async def test_many_scheduled_tasks_are_queued_in_parts(store: Store, scale: Scale) -> None:
    count = scale(test=3000, accept=100_000)
    for start in range(0, count, 1000):
        await store.tasks.submit(
            [task(f"t{at}", not_before_ms=-1) for at in range(start, min(start + 1000, count))]
        )
    await store.tasks.submit([task("later", not_before_ms=-HOUR_MS)])
    await asyncio.sleep(0.01)  # the time of the last must pass
    rounds = 0
    while (await store.tasks.due(500)).more:
        rounds += 1
    assert rounds == count // 500
    states = (await store.tasks.counts()).states
    assert (states["queued"], states["scheduled"]) == (count, 1)


async def _due_size(store: Store) -> int:
    names = [name async for part in store.database.scan(100) for name in part]
    return sum(name.startswith("due:") for name in names)
