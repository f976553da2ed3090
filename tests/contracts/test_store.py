"""What the store promises, on the embedded server and on one as operators run it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.store.database import Database
from gpu_orchestrator.adapters.store.events import START, Id, id_of
from gpu_orchestrator.adapters.store.history import Ring
from gpu_orchestrator.adapters.store.store import Store, Terms
from gpu_orchestrator.adapters.store.values import (
    Assignment,
    Departure,
    Ended,
    Gone,
    Newcomer,
    NewTask,
    Note,
    Outcome,
    OutcomeKind,
    Queued,
    Renewal,
    Told,
    Worker,
)
from tests import stores

pytestmark = pytest.mark.real

SPEC = '{"task_type":"echo"}'
SHORT = Terms(lease_ms=60, grace_ms=30, leader_ms=60_000, most_workers=3)


@pytest.fixture(params=["embedded", "external"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with stores.server(request.param, tmp_path) as address:
        yield address


NewStore = Callable[..., Store]


@pytest.fixture
async def new_store(url: str) -> AsyncIterator[NewStore]:
    opened: list[Store] = []

    def open_store(owner: str = "one", terms: Terms = SHORT) -> Store:
        opened.append(Store(Database(url), owner=owner, terms=terms))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.database.close()


@pytest.fixture
async def store(new_store: NewStore) -> Store:
    """One that leads."""
    leading = new_store()
    await leading.leadership.strive()
    return leading


@pytest.fixture
def heard(store: Store) -> list[Told]:
    news: list[Told] = []
    store.link.hear = news.extend
    return news


def task(name: str, **rest: object) -> NewTask:
    return NewTask(name, SPEC, '{"x": 1}', **rest)  # type: ignore[arg-type]


async def join(store: Store, name: str, *, instance: str = "i", connection: str = "c") -> int:
    greeting = await store.workers.register(Newcomer(name, instance, "{}", store.owner, connection))
    assert greeting.kind == "new"
    return greeting.epoch


async def give(store: Store, name: str, worker: str, epoch: int, attempt: int = 0) -> tuple[str, ...]:
    given = await store.tasks.assign([Assignment(name, attempt, worker, epoch, "{}")])
    assert given is not None
    return given[0]


async def run(store: Store, name: str, worker: str, epoch: int, attempt: int = 0) -> None:
    assert await give(store, name, worker, epoch, attempt) == ('{"x": 1}', "")
    await store.tasks.note([Note(name, attempt + 1, worker, epoch, 0)])


async def tell(store: Store, name: str, worker: str, epoch: int, kind: OutcomeKind, **rest: object) -> int:
    outcome = Outcome(name, int(str(rest.pop("attempt", 1))), worker, epoch, kind, **rest)  # type: ignore[arg-type]
    return (await store.tasks.finish([outcome]))[0].counted


async def row(store: Store, name: str) -> dict[str, str]:
    (found,) = await store.tasks.fetch([name])
    assert found is not None
    return found


async def state(store: Store, name: str) -> str:
    return (await row(store, name))["state"]


async def lose(store: Store, worker: str, epoch: int) -> None:
    assert await store.workers.leave([Departure(worker, epoch, f"{worker} is lost")]) == (True,)


async def test_a_task_goes_its_way_once(store: Store, heard: list[Told]) -> None:
    await store.tasks.submit([task("t", correlation="c-1")])
    epoch = await join(store, "w")
    assert await give(store, "t", "w", epoch) == ('{"x": 1}', "c-1")
    assert await give(store, "t", "w", epoch) == ("task moved on",)
    await store.tasks.note([Note("t", 1, "w", epoch, 0, "half way")])
    assert (await row(store, "t"))["progress"] == "half way"
    assert await state(store, "t") == "running"
    assert await tell(store, "t", "w", epoch, "done", payload='"good"') == 1
    assert await tell(store, "t", "w", epoch, "done", payload='"again"') == 0
    assert (await row(store, "t"))["result"] == '"good"'
    assert (await store.tasks.counts()).stats["late"] == 1
    assert [type(each) for each in heard] == [Queued, Worker, Ended]


async def test_a_leader_queues_and_gives_in_one_write(
    store: Store, new_store: NewStore, heard: list[Told]
) -> None:
    epoch = await join(store, "w")
    heard.clear()
    there = Assignment("here", 0, "w", epoch, "{}")
    gone = Assignment("there", 0, "w", epoch + 1, "{}")
    taken, given = await store.tasks.submit_and_assign([task("here"), task("there")], [there, gone])
    assert [each.fresh for each in taken] == [1, 1]
    assert given == (('{"x": 1}', ""), ("worker moved on",))
    assert [await state(store, name) for name in ("here", "there")] == ["assigned", "queued"]
    assert heard == [], "it has them"
    follower = new_store("two")
    _, nothing = await follower.tasks.submit_and_assign(
        [task("other")], [msgspec.structs.replace(there, id="other")]
    )
    assert (nothing, await state(store, "other")) == ((), "queued")


async def test_many_at_once_keep_their_order(store: Store) -> None:
    names = [f"t{number:03}" for number in range(300)]
    taken = await store.tasks.submit([task(name) for name in names])
    assert [each.id for each in taken] == names
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
async def test_only_who_holds_the_attempt_may_speak(
    store: Store, worker: str, epoch_off: int, attempt: int
) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    assert await tell(store, "t", worker, epoch + epoch_off, "done", attempt=attempt) == 0
    assert await state(store, "t") == "running"


async def test_the_same_wish_twice_is_one_task(store: Store) -> None:
    first, second, other = await store.tasks.submit(
        [
            task("a", idempotency="k"),
            task("b", idempotency="k"),
            NewTask("c", SPEC, '{"x": 2}', idempotency="k"),
        ]
    )
    assert (first.id, first.fresh) == ("a", 1)
    assert (second.id, second.fresh) == ("a", 0)
    assert (other.id, other.fresh) == ("a", -1)
    assert (await store.tasks.counts()).states["queued"] == 1


async def test_a_later_leader_shuts_out_the_earlier(store: Store, new_store: NewStore) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.leadership.resign()
    other = new_store("two")
    fence = (await other.leadership.strive()).fence
    assert fence > 0
    store.link.fence = fence - 1  # it was away and believes it still leads
    assert await store.tasks.assign([Assignment("t", 0, "w", epoch, "{}")]) is None
    assert await store.tasks.snapshot(1000) is None
    assert (await store.leadership.strive()).fence == 0
    assert await give(other, "t", "w", epoch) == ('{"x": 1}', "")


async def test_a_leader_that_falls_silent_is_followed(new_store: NewStore) -> None:
    terms = Terms(leader_ms=1)
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


async def test_what_can_be_retried_is_and_then_no_more(store: Store, heard: list[Told]) -> None:
    await store.tasks.submit([task("t", retries=1)])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    assert await tell(store, "t", "w", epoch, "failed", payload="{}", retryable=True, delay_ms=500) == 1
    again = heard[-1]
    assert isinstance(again, Queued)
    assert again.attempt == 1
    assert again.after_ms > again.created_ms
    await run(store, "t", "w", epoch, attempt=1)
    await tell(store, "t", "w", epoch, "failed", attempt=2, payload='{"type":"E"}', retryable=True)
    assert await state(store, "t") == "dead"


async def test_a_final_error_is_not_retried(store: Store) -> None:
    await store.tasks.submit([task("t", retries=5)])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    await tell(store, "t", "w", epoch, "failed", payload='{"type":"E"}')
    assert (await row(store, "t"))["error"] == '{"type":"E"}'
    assert await state(store, "t") == "failed"


async def test_a_refusal_for_want_of_memory_costs_no_retry(store: Store) -> None:
    await store.tasks.submit([task("t", retries=0)])
    epoch = await join(store, "w")
    for attempt in range(3):
        await give(store, "t", "w", epoch, attempt)
        await tell(store, "t", "w", epoch, "refused", attempt=attempt + 1, payload="2 of 4 GiB are free")
    assert await state(store, "t") == "queued"
    assert (await row(store, "t"))["reason"] == "2 of 4 GiB are free"


async def test_two_workers_dead_of_one_task_is_enough(store: Store) -> None:
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


async def test_cancelling(store: Store, heard: list[Told]) -> None:
    await store.tasks.submit([task("waits"), task("runs"), task("wins"), task("lost")])
    epoch = await join(store, "w")
    for name in ("runs", "wins", "lost"):
        await run(store, name, "w", epoch)
    before = await store.tasks.cancel(["waits", "runs", "wins", "lost", "unknown"])
    assert [each.state for each in before] == ["queued", "running", "running", "running", ""]
    assert (before[1].worker, before[1].attempt, before[1].api) == ("w", 1, "one")
    assert Gone("waits") in heard
    assert await state(store, "waits") == "cancelled"
    await tell(store, "runs", "w", epoch, "cancelled")
    await tell(store, "wins", "w", epoch, "done")
    await lose(store, "w", epoch)
    assert [await state(store, name) for name in ("runs", "wins", "lost")] == [
        "cancelled",
        "completed",
        "cancelled",
    ]


async def test_what_ended_badly_can_be_queued_by_hand(store: Store) -> None:
    await store.tasks.submit([task("t", retries=0), task("good")])
    epoch = await join(store, "w")
    for name, kind in (("t", "died"), ("good", "done")):
        await run(store, name, "w", epoch)
        await tell(store, name, "w", epoch, kind)  # type: ignore[arg-type]
    retried = await store.tasks.retry(["t", "good", "unknown"])
    assert [each.state for each in retried] == ["dead", "completed", ""]
    again = await row(store, "t")
    assert (again["state"], again["tries"], again["attempt"], again["deaths"]) == ("queued", "0", "1", "")


async def test_a_worker_resumes_its_epoch_and_keeps_its_tasks(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    assert await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert await give(store, "t", "w", epoch, 1) == ("task moved on",)
    back = await store.workers.register(Newcomer("w", "i", "{}", "one", "c2", resume_epoch=epoch))
    assert (back.kind, back.epoch) == ("resumed", epoch)
    ((active,),) = await store.workers.renew([Renewal("w", epoch, "c2")])  # type: ignore[misc]
    assert (active.id, active.attempt, active.cancel) == ("t", 1, 0)
    assert not await store.workers.disconnect(Renewal("w", epoch, "c")), "the old connection has no say"


async def test_a_worker_started_anew_has_a_new_epoch_and_nothing_else(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert await join(store, "w", instance="j") > epoch
    assert await state(store, "t") == "queued"
    assert await tell(store, "t", "w", epoch, "done") == 0
    assert await store.workers.renew([Renewal("w", epoch, "c")]) == [None]


async def test_a_name_with_a_live_connection_is_taken(new_store: NewStore) -> None:
    store = new_store(terms=Terms(most_workers=1))
    await join(store, "w")
    assert (await store.workers.register(Newcomer("w", "other", "{}", "one", "c2"))).kind == "taken"
    assert (await store.workers.register(Newcomer("v", "i", "{}", "one", "c3"))).kind == "full"


async def test_only_a_lease_that_is_over_expires(new_store: NewStore) -> None:
    store = new_store(terms=Terms(lease_ms=60_000, grace_ms=0))
    await store.leadership.strive()
    epoch = await join(store, "w")
    gone = [Departure("w", epoch, "lease over")]
    assert await store.workers.expire(gone) == (False,)
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    (over,) = (await store.leadership.strive()).over
    assert (over.name, over.epoch, over.suspect) == ("w", epoch, 1)
    assert await store.workers.expire(gone) == (True,)
    assert (await store.workers.fetch(["w"]))[0]["state"] == "offline"  # type: ignore[index]


async def test_nothing_is_given_to_a_worker_that_is_suspect(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert await give(store, "t", "w", epoch) == ("worker moved on",)


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


async def test_parameters_are_given_to_who_asks_for_them(store: Store) -> None:
    await store.tasks.submit([task("a")])
    (whole,), (lean,) = await store.tasks.fetch(["a"], parameters=True), await store.tasks.fetch(["a"])
    assert whole == {**(lean or {}), "params": '{"x": 1}'}
    assert "params" not in (lean or {})
    assert await store.tasks.fetch(["b"]) == [None]


async def test_a_page_far_back_is_the_one_that_follows(store: Store) -> None:
    """Pages far back are found another way than the first ones; together they are all tasks, each once."""
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


async def test_an_operator_s_word_stays_with_the_worker(store: Store) -> None:
    epoch = await join(store, "w")
    assert (await store.workers.control("w", {"cordoned": "1"})).state == "online"
    await lose(store, "w", epoch)
    await join(store, "w")
    assert (await store.workers.fetch(["w"]))[0]["cordoned"] == "1"  # type: ignore[index]
    assert (await store.workers.control("nobody", {"cordoned": "1"})).state == ""


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
    assert numbers == list(range(len(numbers))), "no number is left out"


async def test_a_short_task_is_started_before_it_is_completed(store: Store) -> None:
    await store.tasks.submit([task("a")])
    epoch = await join(store, "w")
    await give(store, "a", "w", epoch)
    await tell(store, "a", "w", epoch, "done", payload="1", duration_ms=3)
    assert [name for name, _ in await events(store)][1:] == ["task_started", "task_completed"]


async def test_what_ends_badly_is_told_with_its_error(store: Store) -> None:
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
    told = [data for name, data in await events(store) if name == "task_failed"]
    assert [each["status"] for each in told] == ["failed", "dead"]
    assert told[0]["error"] == error
    assert found["worker_status_changed"] == {"worker_id": "w", "status": "offline", "reason": "gone"}


async def test_who_reads_on_sees_each_event_once_and_is_told_of_a_gap(store: Store) -> None:
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


async def test_ids_of_another_store_are_not_mistaken_for_ours(store: Store) -> None:
    await join(store, "w")
    elsewhere = await store.events.page(Id(1, 7))
    later = await store.events.page(Id(9_999_999_999_999, 7))
    assert (elsewhere.lost, later.lost, later.entries) == (1, 1, ())
    assert later.last == (await store.events.page(None, 1)).last


async def test_history_overwrites_itself(store: Store) -> None:
    """A ring of four buckets of 2 ms, written a hundred times."""
    ring, task_count = Ring("tiny", 2, 4), 3
    await store.tasks.submit([task(name) for name in "abc"])
    for _ in range(100):
        assert await store.history.record({"workers": 1.5}, [ring])
    kept = await store.database._ask("HLEN", store.database.prefix + "h:tiny")
    assert 1 <= kept <= 4
    for bucket in await store.history.read(ring):
        assert (bucket.mean("workers"), bucket.mean("queued")) == (1.5, task_count)
        assert bucket.counters["submitted"] == task_count


class Count(msgspec.Struct, frozen=True):
    number: int


async def test_what_ended_is_kept_for_its_time_and_no_longer(new_store: NewStore) -> None:
    store = new_store(terms=Terms(leader_ms=60_000, keep_ms=700))
    await store.leadership.strive()
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
    ], "what waits stays, and longer what needs a look"
    assert (await store.tasks.page(offset=0, limit=10)).total == 2
    await until_trimmed(store)
    assert [found is not None for found in await store.tasks.fetch(["waits", "dead"])] == [True, False]
    assert (await store.tasks.page(offset=0, limit=10)).total == 1


async def test_a_dead_letter_of_an_older_version_is_forgotten_in_the_end(new_store: NewStore) -> None:
    store = new_store(terms=Terms(leader_ms=60_000, keep_ms=100))
    await store.leadership.strive()
    await store.tasks.submit([task("old", retries=0)])
    epoch = await join(store, "w")
    await run(store, "old", "w", epoch)
    assert await tell(store, "old", "w", epoch, "died", payload="signal 9")
    await store.database._ask("PERSIST", store.database.prefix + "t:old")  # these had no expiry
    await until_trimmed(store)
    assert await store.tasks.fetch(["old"]) == [None]
    assert (await store.tasks.page(offset=0, limit=10)).total == 0


async def test_how_full_the_store_may_become(store: Store) -> None:
    database, mib = store.database, 1024 * 1024
    assert 0 < (await database.room()).used < 50 * mib
    assert (await database.room()).most > 100 * mib, "half of the machine"
    assert (await database.room(70 * mib)).most == 70 * mib
    await database._ask("CONFIG", "SET", "maxmemory", 100 * mib)
    try:
        found = [(await database.room(wanted * mib)).most for wanted in (0, 70, 500)]
    finally:
        await database._ask("CONFIG", "SET", "maxmemory", 0)
    assert found == [80 * mib, 70 * mib, 80 * mib], "never more than the server allows itself"


async def until_trimmed(store: Store) -> None:
    async with asyncio.timeout(20):
        while not await store.tasks.trim():  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.02)
