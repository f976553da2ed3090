"""The store's contract for logs: what holders of an attempt print, once, in order, within the bounds."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.logs import LogPiece, LogText, text_of
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey import backup
from tests.support.store_calls import NewStore, give, join, run, task, tell

pytestmark = pytest.mark.real

ANY = 1 << 30
KEPT = 4096
COST = 64 + 320
"""What a log of one entry costs beside its text, as the store counts it."""
SMALL = StoreTimeouts(leader_ms=60_000, log_bytes=KEPT, most_workers=3)


async def running(store: Store, *names: str) -> int:
    """Run tasks on a worker, and return its epoch."""
    await store.tasks.submit([task(name) for name in names])
    epoch = await join(store, "w")
    for name in names:
        await run(store, name, "w", epoch)
    return epoch


async def shown(store: Store, name: str, after: int = 0, most: int = ANY) -> str:
    return text_of(await store.logs.read(name, after, most), after, most).text


async def test_log_is_read_from_any_position(store: Store) -> None:
    epoch = await running(store, "t")
    assert (await store.logs.read("t", 0, ANY)).entries == ()
    pieces = [LogPiece("t", 1, "w", epoch, 0, "one\n"), LogPiece("t", 1, "w", epoch, 4, "z€ro\x00\n")]
    assert await store.logs.append(pieces, ANY) == (1, 1)
    part = await store.logs.read("t", 0, ANY)
    assert (part.state, part.attempt, part.end) == ("running", 1, 12)
    assert await shown(store, "t") == "one\nz€ro\x00\n"
    assert await shown(store, "t", after=4) == "z€ro\x00\n"
    assert await shown(store, "t", after=12) == ""
    assert [entry.end for entry in (await store.logs.read("t", 0, 1)).entries] == [4], (
        "no more than asked for"
    )


@pytest.mark.parametrize(
    ("worker", "epoch_off", "attempt"),
    [
        pytest.param("other", 0, 1, id="another worker"),
        pytest.param("w", 1, 1, id="another epoch"),
        pytest.param("w", 0, 2, id="another attempt"),
    ],
)
async def test_text_of_another_holder_is_dropped(
    store: Store, worker: str, epoch_off: int, attempt: int
) -> None:
    epoch = await running(store, "t")
    piece = LogPiece("t", attempt, worker, epoch + epoch_off, 0, "not mine\n")
    assert await store.logs.append([piece], ANY) == (0,)
    assert await shown(store, "t") == ""


async def test_text_after_the_outcome_is_dropped(store: Store) -> None:
    epoch = await running(store, "t")
    await store.logs.append([LogPiece("t", 1, "w", epoch, 0, "in time\n")], ANY)
    await tell(store, "t", "w", epoch, "done")
    assert await store.logs.append([LogPiece("t", 1, "w", epoch, 8, "late\n")], ANY) == (0,)
    assert await shown(store, "t") == "in time\n"


async def test_repeated_text_is_stored_once_and_missing_text_leaves_a_gap(store: Store) -> None:
    epoch = await running(store, "t")
    for at, text in (
        (0, "one\n"),
        (0, "one\n"),
        (0, "one\ntwo\n"),
        (4, "two\n"),
        (108, "three\n"),
        (20, "old\n"),
    ):
        await store.logs.append([LogPiece("t", 1, "w", epoch, at, text)], ANY)
    assert await shown(store, "t") == "one\ntwo\n[100 bytes are not kept]\nthree\n"
    assert (await store.logs.read("t", 0, ANY)).end == 114


async def test_log_continues_over_attempts_with_a_line_between(store: Store) -> None:
    epoch = await running(store, "t")
    await store.logs.append([LogPiece("t", 1, "w", epoch, 0, "first\nhalf")], ANY)
    await tell(store, "t", "w", epoch, "failed", payload="{}", retryable=True)
    await run(store, "t", "w", epoch, attempt=1)
    assert await store.logs.append([LogPiece("t", 1, "w", epoch, 10, "late\n")], ANY) == (0,)
    await store.logs.append([LogPiece("t", 2, "w", epoch, 0, "second\n")], ANY)
    await store.logs.append([LogPiece("t", 2, "w", epoch, 0, "second\nmore\n")], ANY)
    assert await shown(store, "t") == "first\nhalf\n--- attempt 2 on w ---\nsecond\nmore\n"


async def test_log_keeps_its_newest_part(new_store: NewStore) -> None:
    store = new_store(timeouts=SMALL)
    await store.leadership.campaign()
    epoch = await running(store, "t")
    line, at = "x" * 99 + "\n", 0
    for _ in range(300):
        await store.logs.append([LogPiece("t", 1, "w", epoch, at, line)], ANY)
        at += len(line)
        part = await store.logs.read("t", 0, ANY)
        kept = sum(len(entry.text) for entry in part.entries)
        assert part.end == at
        assert min(at, KEPT / 2) <= kept <= KEPT * 1.25
    text = text_of(part, 0, ANY)
    assert (text.next, text.omitted) == (at, at - kept)
    assert await store.logs.size() <= KEPT * 1.25 + COST
    await store.logs.append([LogPiece("t", 1, "w", epoch, at, "é" * 10_000)], ANY)
    assert await shown(store, "t") == "é" * (KEPT // 2), "a piece larger than the bound is cut"


async def test_logs_together_keep_within_a_bound_and_the_oldest_go_first(store: Store) -> None:
    names = [f"t{number}" for number in range(10)]
    epoch = await running(store, *names)
    for name in names:
        await store.logs.append([LogPiece(name, 1, "w", epoch, 0, "x" * 1000)], 4 * (1000 + COST))
        await asyncio.sleep(0.002)
    assert await store.logs.size() == 4 * (1000 + COST)
    assert [bool(await shown(store, name)) for name in names] == [False] * 6 + [True] * 4
    await store.logs.append([LogPiece("t6", 1, "w", epoch, 1000, "y")], 9000)
    await store.logs.trim(3000)
    assert [name for name in names if await shown(store, name)] == ["t6", "t9"]
    await store.logs.append([LogPiece("t0", 1, "w", epoch, 1000, "again\n")], 9000)
    part = await store.logs.read("t0", 0, ANY)
    assert text_of(part, 0, ANY).omitted == 1000, "positions go on after a log was dropped"
    await store.logs.trim(0)
    assert await store.logs.size() == 0


async def test_dropped_log_says_how_much_is_missing_and_its_positions_go_on(store: Store) -> None:
    epoch = await running(store, "t")
    await store.logs.append([LogPiece("t", 1, "w", epoch, 0, "first\n" * 100)], ANY)
    await store.logs.trim(0)
    part = await store.logs.read("t", 0, ANY)
    assert text_of(part, 0, ANY) == LogText(600, 600, 600, ""), "all is missing"
    assert text_of(part, 100, ANY).omitted == 500
    await tell(store, "t", "w", epoch, "failed", payload="{}", retryable=True)
    await run(store, "t", "w", epoch, attempt=1)
    await store.logs.append([LogPiece("t", 2, "w", epoch, 0, "second\n")], ANY)
    text = "--- attempt 2 on w ---\nsecond\n"
    assert await shown(store, "t", after=600) == text, (
        "a reader at the end of the first attempt gets the next"
    )
    assert await store.logs.size() == len(text) + COST
    await store.logs.trim(0)
    await store.logs.append([LogPiece("t", 2, "w", epoch, 0, "second\nmore\n")], ANY)
    assert await shown(store, "t") == "more\n", "what was dropped does not come back"
    assert await store.logs.size() == len("more\n") + COST


async def test_log_expires_with_its_task(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(leader_ms=60_000, keep_ms=300))
    await store.leadership.campaign()
    epoch = await running(store, "done", "runs", "again")
    for name in ("done", "runs", "again"):
        await store.logs.append([LogPiece(name, 1, "w", epoch, 0, f"{name}\n")], ANY)
    await tell(store, "done", "w", epoch, "done")
    await tell(store, "again", "w", epoch, "failed", payload="{}")
    await store.tasks.retry(["again"])
    async with asyncio.timeout(20):
        while await shown(store, "done"):  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.02)
    assert await store.logs.trim(ANY) == 0
    known = await store.database._execute("ZRANGE", store.database.prefix + "logs", 0, -1)
    assert set(known) == {b"runs", b"again"}
    assert await store.logs.size() == len("runs\nagain\n") + 2 * COST
    assert [await shown(store, name) for name in ("runs", "again")] == ["runs\n", "again\n"]


async def test_every_position_of_a_long_log_is_found(store: Store) -> None:
    epoch = await running(store, "t")
    await store.logs.append([LogPiece("t", 1, "w", epoch, 4 * n, f"{n:03}\n") for n in range(300)], ANY)
    whole = "".join(f"{n:03}\n" for n in range(300))
    for after in range(0, 1201, 7):
        assert await shown(store, "t", after) == whole[after:]
        part = await shown(store, "t", after, 50)
        assert whole[after : after + 50].startswith(part)
        assert len(part) > 46 or after + len(part) == len(whole)


async def test_trim_looks_at_all_logs_in_turns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_orchestrator.adapters.store.logs.TRIM_AT_ONCE", 4)
    store.logs._keep_ms = -1
    names = [f"t{number}" for number in range(10)]
    epoch = await running(store, *names)
    await store.logs.append([LogPiece(name, 1, "w", epoch, 0, "text\n") for name in names], ANY)
    for name in ("t1", "t2", "t9"):
        await store.database._execute("DEL", f"{store.database.prefix}log:{name}")
    skip, calls = 0, 0
    while True:
        skip, calls = await store.logs.trim(ANY, skip), calls + 1
        if not skip:
            break
    assert calls == 3
    assert await store.logs.size() == 7 * (5 + COST)


async def test_backup_has_no_logs(store: Store, tmp_path_factory: pytest.TempPathFactory) -> None:
    epoch = await running(store, "t")
    await store.logs.append([LogPiece("t", 1, "w", epoch, 0, "not in the backup\n")], ANY)
    await give(store, "t", "w", epoch)
    file = tmp_path_factory.mktemp("backup") / "all.backup"
    await backup.save(store.database, file, {})
    names = [entry.name for _, entry in backup._records(file) if entry is not None]
    assert "t:t" in names
    assert not [name for name in names if name.startswith("log")]


async def test_flood_of_one_owner_leaves_the_older_logs_of_others(store: Store) -> None:
    bound = 5 * (1000 + COST)
    flood = [f"t{number}" for number in range(10)]
    await store.tasks.submit([task("bob", tenant="bob"), *(task(name, tenant="ann") for name in flood)])
    epoch = await join(store, "w")
    for name in ("bob", *flood):
        await run(store, name, "w", epoch)
        await store.logs.append([LogPiece(name, 1, "w", epoch, 0, "x" * 1000)], bound)
        await asyncio.sleep(0.002)
    kept = [name for name in ("bob", *flood) if await shown(store, name)]
    assert kept == ["bob", *flood[-4:]]
    await store.logs.trim(2 * (1000 + COST))
    assert [name for name in kept if await shown(store, name)] == ["bob", "t9"]
    await store.logs.trim(0)
    assert await store.logs.size() == 0


async def test_logs_of_an_older_version_go_before_those_with_an_owner(store: Store) -> None:
    await store.tasks.submit(
        [task("old", tenant="bob"), task("new", tenant="ann"), task("more", tenant="ann")]
    )
    epoch = await join(store, "w")
    for name in ("old", "new", "more"):
        await run(store, name, "w", epoch)
        await store.logs.append([LogPiece(name, 1, "w", epoch, 0, "x" * 1000)], ANY)
        await asyncio.sleep(0.002)
    prefix = store.database.prefix
    await store.database._execute("HDEL", f"{prefix}logs:of", "old")
    await store.database._execute("ZREM", f"{prefix}logs:owners", "bob")
    await store.logs.trim(2 * (1000 + COST))
    assert [name for name in ("old", "new", "more") if await shown(store, name)] == ["new", "more"]
    await store.logs.trim(0)
    assert await store.logs.size() == 0
