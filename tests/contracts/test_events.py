"""The store's contract for events and history."""

import msgspec
import pytest

from gpu_orchestrator.adapters.store.events import START, Id, id_of
from gpu_orchestrator.adapters.store.history import Ring
from gpu_orchestrator.adapters.store.records import (
    Departure,
)
from gpu_orchestrator.adapters.store.store import Store
from tests.support.store_calls import give, join, run, task, tell

pytestmark = pytest.mark.real


async def events(store: Store, after: Id | None = START) -> list[tuple[str, dict[str, object]]]:
    page = await store.events.page(after, 1000)
    return [(each.name, msgspec.json.decode(each.data)) for each in page.entries]


async def test_every_step_of_a_task_is_an_event_of_its_owner(store: Store) -> None:
    await store.tasks.submit([task("a", tenant="me")])
    epoch = await join(store, "w")
    await run(store, "a", "w", epoch)
    await tell(store, "a", "w", epoch, "failed", payload='{"type":"E","message":"no"}', retryable=True)
    await run(store, "a", "w", epoch, attempt=1)
    await tell(store, "a", "w", epoch, "done", attempt=2, payload='"ok"', duration_ms=1500)
    page = await store.events.page(START)
    mine = [each for each in page.entries if each.owner == "me"]
    assert [each.name for each in mine] == [
        "task_started",
        "task_requeued",
        "task_started",
        "task_completed",
    ]
    last = msgspec.json.decode(mine[-1].data)
    assert (last["task_id"], last["worker_id"], last["attempt"]) == ("a", "w", 2)
    assert [each.name for each in page.entries if not each.owner] == ["worker_registered"]
    numbers = [id_of(each.id).number for each in page.entries]
    assert numbers == list(range(len(numbers))), "no number is missing"


async def test_short_task_has_started_event_before_completed(store: Store) -> None:
    await store.tasks.submit([task("a")])
    epoch = await join(store, "w")
    await give(store, "a", "w", epoch)
    await tell(store, "a", "w", epoch, "done", payload="1", duration_ms=3)
    assert [name for name, _ in await events(store)][1:] == ["task_started", "task_completed"]


async def test_failed_task_event_has_its_error(store: Store) -> None:
    await store.tasks.submit([task(name, retries=0) for name in "abc"])
    epoch = await join(store, "w")
    await run(store, "a", "w", epoch)
    await run(store, "b", "w", epoch)
    error = {"type": "ValueError", "message": 'say "no"', "retryable": False}
    await tell(store, "a", "w", epoch, "failed", payload=msgspec.json.encode(error).decode())
    await store.workers.leave([Departure("w", epoch, "gone")])
    await store.tasks.cancel(["c"])
    found = dict(await events(store))
    assert found["task_cancelled"]["task_id"] == "c"
    failed = [data for name, data in await events(store) if name == "task_failed"]
    assert [each["status"] for each in failed] == ["failed", "dead"]
    assert failed[0]["error"] == error
    assert found["worker_status_changed"] == {"worker_id": "w", "status": "offline", "reason": "gone"}


async def test_reader_sees_each_event_once_and_learns_of_a_gap(store: Store) -> None:
    await store.events.keep(100)
    await join(store, "w")
    first = await store.events.page(START)
    for number in range(1500):
        await store.events.emit("scale_event", Count(number))
    behind = await store.events.page(id_of(first.last))
    assert behind.lost
    assert 100 <= len(behind.entries) < 400, "bounded, in pages of the store's own size"
    rest = await store.events.page(id_of(behind.entries[9].id))
    assert not rest.lost
    assert rest.entries == behind.entries[10:]
    at_end = await store.events.page(id_of(rest.last))
    assert (at_end.lost, at_end.entries, at_end.last) == (0, (), rest.last)
    (latest,) = (await store.events.page(None, 1)).entries
    assert msgspec.json.decode(latest.data) == {"number": 1499}


async def test_event_id_of_another_store_counts_as_lost(store: Store) -> None:
    await join(store, "w")
    elsewhere = await store.events.page(Id(1, 7))
    later = await store.events.page(Id(9_999_999_999_999, 7))
    assert (elsewhere.lost, later.lost, later.entries) == (1, 1, ())
    assert later.last == (await store.events.page(None, 1)).last


async def test_history_ring_overwrites_its_oldest_buckets(store: Store) -> None:
    """A ring of four buckets of 2 ms, written a hundred times."""
    ring, task_count = Ring("tiny", 2, 4), 3
    await store.tasks.submit([task(name) for name in "abc"])
    for _ in range(100):
        assert await store.history.record({"workers": 1.5}, [ring])
    kept = await store.database._execute("HLEN", store.database.prefix + "h:tiny")
    assert 1 <= kept <= 4
    for bucket in await store.history.read(ring):
        assert (bucket.mean("workers"), bucket.mean("queued")) == (1.5, task_count)
        assert bucket.counters["submitted"] == task_count


class Count(msgspec.Struct, frozen=True):
    number: int
