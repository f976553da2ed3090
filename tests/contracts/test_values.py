"""The store's contract for partial results: what holders of an attempt send, once, in order, and bounded."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.values import Place, Reader, ValuesPiece, Verdict, lines_of
from tests.contracts.test_logs import ANY, running
from tests.support.store_calls import NewStore, lose, run, task, tell

pytestmark = pytest.mark.real

KEPT = 8192
COST = 64 + 320
"""What values in one entry cost beside their text, as the store counts them."""
NOBODY, START = Reader(), Place()


def piece(
    epoch: int, at: int, *values: str, attempt: int = 1, taken: int = 0, name: str = "t"
) -> ValuesPiece:
    return ValuesPiece(name, attempt, "w", epoch, at, len(values), taken, "\n".join(values))


async def append(store: Store, *pieces: ValuesPiece, most_of_all: int = ANY) -> list[tuple[int, int]]:
    return [(each.taken, each.later) for each in await store.values.append(pieces, most_of_all)]


async def shown(
    store: Store, name: str = "t", after: Place = START, most: int = ANY, reader: Reader = NOBODY
) -> tuple[int, list[str]]:
    """Return the number of the first value that is kept behind a place, and the values from there."""
    lines = lines_of(await store.values.read(name, after, most, reader), after)
    return lines.first, lines.text.split("\n") if lines.text else []


async def begun_long_ago(store: Store) -> None:
    """Let the time be over in which a task waits for its first reader."""
    await store.database._execute("HSET", f"{store.database.prefix}t:t", "assigned", "1")


@pytest.fixture
async def small(new_store: NewStore) -> Store:
    store: Store = new_store(timeouts=StoreTimeouts(leader_ms=60_000, values_bytes=KEPT, most_workers=3))
    await store.leadership.campaign()
    return store


async def test_values_are_read_from_any_number(store: Store) -> None:
    epoch = await running(store, "t")
    assert await shown(store) == (0, [])
    assert await append(store, piece(epoch, 0, "0", '"ö"'), piece(epoch, 2, "[2]")) == [(2, 0), (3, 0)]
    long = '"' + "x" * 5000 + '"'
    assert await append(store, piece(epoch, 3, long), piece(epoch, 4, "4", "5")) == [(4, 0), (6, 0)]
    whole = ["0", '"ö"', "[2]", long, "4", "5"]
    for number in range(7):
        assert await shown(store, after=Place(1, number)) == (number, whole[number:])
    assert await shown(store, after=Place(1, 1), most=1) == (1, whole[1:3]), "no more than asked for"
    part = await store.values.read("t", Place(), ANY)
    assert (part.state, part.attempt, part.count, part.refused) == ("running", 1, 6, 0)
    assert (await store.values.read("none", Place(), ANY)).state == ""


async def test_values_that_come_again_count_once_and_those_after_a_loss_are_refused(store: Store) -> None:
    epoch = await running(store, "t")
    await append(store, piece(epoch, 0, "0", "1"))
    assert await append(store, piece(epoch, 0, "0", "1"), piece(epoch, 1, "1", "2")) == [(2, 0), (3, 0)]
    assert await append(store, piece(epoch, 5, "5")) == [(3, 1)], "3 and 4 were lost on the way"
    assert await append(store, piece(epoch, 5, "5", taken=5)) == [(6, 0)], "the store lost them itself"
    assert await shown(store) == (0, ["0", "1", "2"]), "up to the gap"
    assert await shown(store, after=Place(1, 3)) == (5, ["5"])


@pytest.mark.parametrize(
    ("worker", "epoch_off", "attempt"),
    [
        pytest.param("other", 0, 1, id="another worker"),
        pytest.param("w", 1, 1, id="another epoch"),
        pytest.param("w", 0, 2, id="another attempt"),
    ],
)
async def test_values_of_another_holder_are_dropped(
    store: Store, worker: str, epoch_off: int, attempt: int
) -> None:
    epoch = await running(store, "t")
    alien = ValuesPiece("t", attempt, worker, epoch + epoch_off, 0, 1, 0, '"not mine"')
    assert await store.values.append([alien], ANY) == (Verdict(-1, 0),)
    await tell(store, "t", "w", epoch, "done")
    assert await append(store, piece(epoch, 0, '"late"')) == [(-1, 0)]
    assert await shown(store) == (0, [])


async def test_new_attempt_replaces_the_values_of_the_one_before(store: Store) -> None:
    epoch = await running(store, "t")
    await append(store, piece(epoch, 0, "0", "1", "2"))
    await tell(store, "t", "w", epoch, "failed", payload="{}", retryable=True)
    assert (await store.values.read("t", Place(1, 3), ANY)).count == 3, "until the next begins"
    await run(store, "t", "w", epoch, attempt=1)
    part = await store.values.read("t", Place(1, 3), ANY)
    assert (part.attempt, part.count, part.entries) == (2, 0, ())
    assert await append(store, piece(epoch, 0, "10", attempt=2)) == [(1, 0)]
    assert await shown(store, after=Place(1, 3)) == (0, ["10"]), "a place in another attempt is its beginning"
    assert await store.logs.size() == 2 + COST


async def test_oldest_values_go_first_and_their_number_is_known(small: Store) -> None:
    epoch = await running(small, "t")
    await begun_long_ago(small)
    value = '"' + "x" * 98 + '"'
    for number in range(300):
        assert await append(small, piece(epoch, number, value)) == [(number + 1, 0)]
        assert await small.logs.size() <= KEPT + 320
    first, kept = await shown(small)
    assert first == 300 - len(kept)
    assert KEPT / 2 < sum(map(len, kept)) <= KEPT
    huge = '"' + "x" * (2 * KEPT) + '"'
    assert await append(small, piece(epoch, 300, huge)) == [(301, 0)]
    assert await shown(small) == (300, [huge]), "a value larger than the bound is kept alone"


async def test_task_that_has_just_begun_waits_for_its_first_reader(small: Store) -> None:
    epoch = await running(small, "t")
    value = '"' + "x" * 3000 + '"'
    verdicts = await append(small, *[piece(epoch, number, value) for number in range(4)])
    assert verdicts == [(1, 0), (2, 0), (2, 1), (2, 1)]
    await begun_long_ago(small)
    assert await append(small, piece(epoch, 2, value)) == [(3, 0)]


async def test_reader_holds_the_task_back_until_it_has_what_was_sent(small: Store) -> None:
    await small.tasks.submit([task("t", tenant="ann")])
    epoch = await running(small)
    await run(small, "t", "w", epoch)
    value = '"' + "x" * 3000 + '"'
    sent = 0

    async def send_all() -> int:
        nonlocal sent
        while not (await append(small, piece(epoch, sent, value)))[0][1]:
            sent += 1
            assert sent < 100
        return sent

    at_first = Reader("laptop", "ann", Place())
    await shown(small, reader=at_first)
    assert await send_all() == 2
    assert (await small.values.read("t", Place(1, 2), ANY, at_first)).refused == 1
    assert await shown(small, reader=at_first) == (0, [value] * 2), "what has not arrived is still there"
    await shown(small, after=Place(1, 1), reader=Reader("laptop", "ann", Place(1, 1)))
    assert await send_all() == 3
    await shown(small, after=Place(1, 3), reader=Reader("laptop", "ann", Place(1, 3)))
    await shown(small, after=Place(1, 2), reader=Reader("slower", "ann", Place(1, 2)))
    assert await send_all() == 4, "the slowest counts"
    readers = f"{small.database.prefix}reading:t"
    for name in (b"laptop", b"slower"):
        await small.database._execute("HSET", readers, name, "1 0 1")  # heard of long ago
    for number in range(4, 50):
        assert await append(small, piece(epoch, number, value)) == [(number + 1, 0)]
    stranger = Reader("spy", "bob", Place())
    await shown(small, reader=stranger)
    assert await append(small, piece(epoch, 50, value)) == [(51, 0)], "another owner holds nothing back"
    for number in range(40):
        await shown(small, reader=Reader(f"reader-{number}", "ann", Place(1, 51)))
    assert len(await small.database._execute("HKEYS", readers)) <= 17


async def test_values_and_logs_share_a_bound_and_numbers_go_on(store: Store) -> None:
    epoch = await running(store, "t", "u")
    await append(store, piece(epoch, 0, "0", "1"))
    await asyncio.sleep(0.002)
    await append(store, piece(epoch, 0, "0", name="u"))
    await store.logs.trim(COST + 1)
    part = await store.values.read("t", Place(), ANY)
    assert (part.count, part.entries) == (2, ())
    assert lines_of(part, Place()).missed == 2
    assert await shown(store, "u") == (0, ["0"])
    assert await append(store, piece(epoch, 1, "1", "2")) == [(3, 0)]
    assert await shown(store) == (2, ["2"])
    await store.logs.trim(0)
    assert await store.logs.size() == 0
    assert (await store.values.read("t", Place(1, 3), ANY)).count == 3


async def test_values_expire_with_their_task_and_are_kept_if_it_runs_again(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(leader_ms=60_000, keep_ms=300))
    await store.leadership.campaign()
    epoch = await running(store, "done", "again")
    for name in ("done", "again"):
        await append(store, piece(epoch, 0, "0", name=name))
    await tell(store, "done", "w", epoch, "done")
    await tell(store, "again", "w", epoch, "failed", payload="{}")
    await store.tasks.retry(["again"])
    async with asyncio.timeout(20):
        while (await shown(store, "done"))[1]:  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.02)
    await store.logs.trim(ANY)
    assert await shown(store, "again") == (0, ["0"])
    assert await store.logs.size() == 1 + COST


async def test_lost_worker_keeps_no_hold_of_its_values(store: Store) -> None:
    epoch = await running(store, "t")
    await append(store, piece(epoch, 0, "0"))
    await lose(store, "w", epoch)
    assert await append(store, piece(epoch, 1, "1")) == [(-1, 0)]
