"""The store's contract for tasks."""

import asyncio

import msgspec
import pytest

from gpu_orchestrator.adapters.store.records import (
    Accepted,
    Assigned,
    Assignment,
    Ended,
    Gone,
    KeyConflict,
    Moved,
    NewsItem,
    NewTask,
    NotAssigned,
    Note,
    Queued,
    Worker,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.tasks import Retried
from tests.support.store_calls import SPEC, NewStore, give, join, lose, row, run, state, task, tell

pytestmark = pytest.mark.real


async def test_task_runs_once_and_late_outcome_is_dropped(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit([task("t", correlation="c-1")])
    epoch = await join(store, "w")
    assert await give(store, "t", "w", epoch) == Assigned('{"x": 1}', "c-1")
    assert await give(store, "t", "w", epoch) == NotAssigned(Moved.TASK)
    await store.tasks.note([Note("t", 1, "w", epoch, 0, "half way")])
    assert (await row(store, "t"))["progress"] == "half way"
    assert await state(store, "t") == "running"
    assert await tell(store, "t", "w", epoch, "done", payload='"good"') == 1
    assert await tell(store, "t", "w", epoch, "done", payload='"again"') == 0
    assert (await row(store, "t"))["result"] == '"good"'
    assert (await store.tasks.counts()).stats["late"] == 1
    assert [type(each) for each in news] == [Queued, Worker, Ended]


async def test_leader_queues_and_assigns_in_one_write(
    store: Store, new_store: NewStore, news: list[NewsItem]
) -> None:
    epoch = await join(store, "w")
    news.clear()
    there = Assignment("here", 0, "w", epoch, "{}")
    gone = Assignment("there", 0, "w", epoch + 1, "{}")
    taken, given = await store.tasks.submit_and_assign([task("here"), task("there")], [there, gone])
    assert [isinstance(each, Accepted) and each.fresh for each in taken] == [1, 1]
    assert given == [Assigned('{"x": 1}', ""), NotAssigned(Moved.WORKER)]
    assert [await state(store, name) for name in ("here", "there")] == ["assigned", "queued"]
    assert news == [], "the dispatcher knows these tasks"
    follower = new_store("two")
    _, nothing = await follower.tasks.submit_and_assign(
        [task("other")], [msgspec.structs.replace(there, id="other")]
    )
    assert (nothing, await state(store, "other")) == ([], "queued")


async def test_tasks_of_one_call_keep_their_order(store: Store) -> None:
    names = [f"t{number:03}" for number in range(300)]
    taken = await store.tasks.submit([task(name) for name in names])
    assert [each.id for each in taken if isinstance(each, Accepted)] == names
    page = await store.tasks.page(states=["queued"], offset=10, limit=5)
    assert page.total == 300
    assert len(page.ids) == 5


@pytest.mark.parametrize(
    ("worker", "epoch_off", "attempt"),
    [
        pytest.param("other", 0, 1, id="another worker"),
        pytest.param("w", 1, 1, id="another epoch"),
        pytest.param("w", 0, 2, id="another attempt"),
    ],
)
async def test_outcome_of_another_holder_is_dropped(
    store: Store, worker: str, epoch_off: int, attempt: int
) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    assert await tell(store, "t", worker, epoch + epoch_off, "done", attempt=attempt) == 0
    assert await state(store, "t") == "running"


async def test_same_idempotency_key_yields_one_task(store: Store) -> None:
    first, second, other = await store.tasks.submit(
        [
            task("a", idempotency="k"),
            task("b", idempotency="k"),
            NewTask("c", SPEC, '{"x": 2}', idempotency="k"),
        ]
    )
    assert isinstance(first, Accepted)
    assert (first.id, first.fresh) == ("a", 1)
    assert second == Accepted("a", first.created_ms, 0)
    assert other == KeyConflict("a")
    assert (await store.tasks.counts()).states["queued"] == 1


async def test_retryable_failure_is_retried_until_no_retries_are_left(
    store: Store, news: list[NewsItem]
) -> None:
    await store.tasks.submit([task("t", retries=1)])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    assert await tell(store, "t", "w", epoch, "failed", payload="{}", retryable=True, delay_ms=500) == 1
    again = news[-1]
    assert isinstance(again, Queued)
    assert again.attempt == 1
    assert again.after_ms > again.created_ms
    await run(store, "t", "w", epoch, attempt=1)
    await tell(store, "t", "w", epoch, "failed", attempt=2, payload='{"type":"E"}', retryable=True)
    assert await state(store, "t") == "dead"


async def test_final_error_is_not_retried(store: Store) -> None:
    await store.tasks.submit([task("t", retries=5)])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    await tell(store, "t", "w", epoch, "failed", payload='{"type":"E"}')
    assert (await row(store, "t"))["error"] == '{"type":"E"}'
    assert await state(store, "t") == "failed"


async def test_refusal_by_worker_costs_no_retry(store: Store) -> None:
    await store.tasks.submit([task("t", retries=0)])
    epoch = await join(store, "w")
    for attempt in range(3):
        await give(store, "t", "w", epoch, attempt)
        await tell(store, "t", "w", epoch, "refused", attempt=attempt + 1, payload="2 of 4 GiB are free")
    assert await state(store, "t") == "queued"
    assert (await row(store, "t"))["reason"] == "2 of 4 GiB are free"


async def test_task_is_dead_after_killing_two_workers(store: Store) -> None:
    await store.tasks.submit([task("poison", retries=9), task("waits", retries=0)])
    for number, worker in enumerate(("w1", "w2")):
        epoch = await join(store, worker)
        await run(store, "poison", worker, epoch, attempt=number)
        await give(store, "waits", worker, epoch, attempt=number)
        await lose(store, worker, epoch)
    dead = await row(store, "poison")
    assert dead["state"] == "dead"
    assert dead["reason"] == "two different workers died running it"
    assert '"worker":"w1"' in dead["deaths"]
    assert '"worker":"w2"' in dead["deaths"]
    assert await state(store, "waits") == "queued"


async def test_runner_deaths_use_up_retries(store: Store) -> None:
    await store.tasks.submit([task("t", retries=1)])
    epoch = await join(store, "w")
    for attempt in range(2):
        await run(store, "t", "w", epoch, attempt)
        await tell(store, "t", "w", epoch, "died", attempt=attempt + 1, payload="signal 9")
    dead = await row(store, "t")
    assert dead["state"] == "dead"
    assert dead["deaths"].count("signal 9") == 2


async def test_cancel_queued_and_running_tasks(store: Store, news: list[NewsItem]) -> None:
    await store.tasks.submit([task("waits"), task("runs"), task("wins"), task("lost")])
    epoch = await join(store, "w")
    for name in ("runs", "wins", "lost"):
        await run(store, name, "w", epoch)
    before = await store.tasks.cancel(["waits", "runs", "wins", "lost", "unknown"])
    assert [each.state for each in before] == ["queued", "running", "running", "running", ""]
    assert (before[1].worker, before[1].attempt, before[1].api) == ("w", 1, "one")
    assert Gone("waits") in news
    assert await state(store, "waits") == "cancelled"
    await tell(store, "runs", "w", epoch, "cancelled")
    await tell(store, "wins", "w", epoch, "done")
    await lose(store, "w", epoch)
    assert [await state(store, name) for name in ("runs", "wins", "lost")] == [
        "cancelled",
        "completed",
        "cancelled",
    ]


async def test_retry_queues_dead_task_again(store: Store) -> None:
    await store.tasks.submit([task("t", retries=0), task("good")])
    epoch = await join(store, "w")
    for name, kind in (("t", "died"), ("good", "done")):
        await run(store, name, "w", epoch)
        await tell(store, name, "w", epoch, kind)  # type: ignore[arg-type]
    retried = await store.tasks.retry(["t", "good", "unknown"])
    assert retried == [Retried("dead"), Retried("completed"), Retried("")]
    again = await row(store, "t")
    assert (again["state"], again["tries"], again["attempt"], again["deaths"]) == ("queued", "0", "1", "")


async def test_tasks_are_found_by_state_and_worker(store: Store) -> None:
    await store.tasks.submit([task(f"t{number}") for number in range(4)])
    epoch = await join(store, "w")
    await run(store, "t1", "w", epoch)
    await run(store, "t2", "w", epoch)
    await tell(store, "t2", "w", epoch, "done")
    everything = await store.tasks.page(offset=0, limit=10)
    assert (everything.total, set(everything.ids)) == (4, {"t0", "t1", "t2", "t3"})
    of_worker = await store.tasks.page(worker="w", states=["completed"], offset=0, limit=10)
    assert of_worker.ids == ("t2",)


async def test_fetch_returns_parameters_only_on_request(store: Store) -> None:
    await store.tasks.submit([task("a")])
    (whole,), (lean,) = await store.tasks.fetch(["a"], parameters=True), await store.tasks.fetch(["a"])
    assert whole == {**(lean or {}), "params": '{"x": 1}'}
    assert "params" not in (lean or {})
    assert await store.tasks.fetch(["b"]) == [None]


async def test_far_pages_continue_the_near_ones(store: Store) -> None:
    """Far pages are found by bisection, near ones directly; together they list every task once."""
    for batch in range(10):
        await store.tasks.submit([task(f"{batch}-{number:03}", tenant="ann") for number in range(350)])
        await store.tasks.cancel([f"{batch}-{number:03}" for number in range(0, 350, 3)])
    for owner in ("", "ann"):
        pages = [await store.tasks.page(owner=owner, offset=at, limit=250) for at in range(0, 3750, 250)]
        found = [name for page in pages for name in page.ids]
        assert {page.total for page in pages} == {3500}
        assert len(found) == len(set(found)) == 3500
        assert [name[0] for name in found] == [str(9 - at // 350) for at in range(3500)], "newest first"
        alone = await store.tasks.page(owner=owner, offset=2345, limit=3)
        assert alone.ids == tuple(found[2345:2348])


async def test_ended_tasks_are_trimmed_after_their_time(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(leader_ms=60_000, keep_ms=700))
    await store.leadership.campaign()
    await store.tasks.submit([task("done"), task("waits"), task("dead", retries=0)])
    epoch = await join(store, "w")
    for name in ("done", "dead"):
        await run(store, name, "w", epoch)
    assert await tell(store, "done", "w", epoch, "done", payload="1")
    assert await tell(store, "dead", "w", epoch, "died", payload="signal 9")
    assert (await row(store, "done"))["result"] == "1"
    await until_trimmed(store)
    assert [found is not None for found in await store.tasks.fetch(["done", "waits", "dead"])] == [
        False,
        True,
        True,
    ], "queued tasks stay, and dead ones stay longer"
    assert (await store.tasks.page(offset=0, limit=10)).total == 2
    await until_trimmed(store)
    assert [found is not None for found in await store.tasks.fetch(["waits", "dead"])] == [True, False]
    assert (await store.tasks.page(offset=0, limit=10)).total == 1


async def test_dead_letter_without_expiry_is_trimmed(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(leader_ms=60_000, keep_ms=100))
    await store.leadership.campaign()
    await store.tasks.submit([task("old", retries=0)])
    epoch = await join(store, "w")
    await run(store, "old", "w", epoch)
    assert await tell(store, "old", "w", epoch, "died", payload="signal 9")
    await store.database._execute("PERSIST", store.database.prefix + "t:old")  # older versions set no expiry
    await until_trimmed(store)
    assert await store.tasks.fetch(["old"]) == [None]
    assert (await store.tasks.page(offset=0, limit=10)).total == 0


async def test_memory_limit_of_the_store(store: Store) -> None:
    database, mib = store.database, 1024 * 1024
    assert 0 < (await database.room()).used < 50 * mib
    assert (await database.room()).most > 100 * mib, "half of the machine"
    assert (await database.room(70 * mib)).most == 70 * mib
    await database._execute("CONFIG", "SET", "maxmemory", 100 * mib)
    try:
        found = [(await database.room(wanted * mib)).most for wanted in (0, 70, 500)]
    finally:
        await database._execute("CONFIG", "SET", "maxmemory", 0)
    assert found == [80 * mib, 70 * mib, 80 * mib], "never more than the server allows itself"


async def until_trimmed(store: Store) -> None:
    async with asyncio.timeout(20):
        while not await store.tasks.trim():  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.02)
