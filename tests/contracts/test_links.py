"""The store's contract for tasks that depend on others: each begins once, after the last of its
dependencies, or is cancelled with the first that fails; rows are kept while they are needed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from gpu_orchestrator.adapters.store.records import Assignment, NewsItem, Outcome, Queued
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey import backup
from tests.support.scale import Scale
from tests.support.store_calls import NewStore, join, row, run, state, task, tell

pytestmark = pytest.mark.real
LONG_MS = 3_600_000


async def see_to_links(store: Store, most: int = 200) -> list[str]:
    """Do all that is to be done about links, in parts of this size; return what was cancelled."""
    cancelled: list[str] = []
    for _ in range(1000):
        found = await store.tasks.see_to_links(most)
        cancelled += found.cancelled
        if not found.more:
            return cancelled
    raise AssertionError("it never ends")


async def end(store: Store, name: str, kind: str = "done") -> None:
    epoch = await epoch_of(store)
    await run(store, name, "w", epoch)
    assert await tell(store, name, "w", epoch, kind, payload="1" if kind == "done" else '{"type":"E"}')  # type: ignore[arg-type]


async def epoch_of(store: Store) -> int:
    """Return the epoch of the one worker."""
    (found,) = await store.workers.fetch(["w"])
    return int(found["epoch"]) if found else await join(store, "w")


async def names(store: Store, *starts: str) -> set[str]:
    return {name async for found in store.database.scan(100) for name in found if name.startswith(starts)}


async def submit(store: Store, name: str, *after: str, on_failure: str = "cancel", **rest: object) -> None:
    await store.tasks.submit([task(name, needs=" ".join([on_failure, *after]) if after else "", **rest)])


async def test_task_begins_once_after_its_last_dependency(store: Store, news: list[NewsItem]) -> None:
    for name in ("a", "b"):
        await submit(store, name)
    await submit(store, "c", "a", "b")
    assert (await state(store, "c"), (await row(store, "c"))["open"]) == ("scheduled", "-1")
    await see_to_links(store)
    await end(store, "a")
    await see_to_links(store)
    assert (await state(store, "c"), (await row(store, "c"))["open"]) == ("scheduled", "1")
    await end(store, "b")
    for _ in range(3):
        await see_to_links(store)
    assert await state(store, "c") == "queued"
    assert [each.id for each in news if isinstance(each, Queued)] == ["a", "b", "c"]
    await end(store, "c")
    await see_to_links(store)
    assert await names(store, "after:", "pins:", "links") == set()


async def test_dependency_that_ended_before_counts(store: Store) -> None:
    await submit(store, "a")
    await end(store, "a")
    await submit(store, "b", "a")
    await see_to_links(store)
    assert await state(store, "b") == "queued"


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
async def test_failure_cancels_all_behind_it(store: Store, kind: str) -> None:
    await submit(store, "a")
    await submit(store, "b", "a")
    await submit(store, "c", "b")
    await submit(store, "careless", "a", "b", on_failure="run")
    await submit(store, "other", "lost")
    await see_to_links(store)
    assert await state(store, "other") == "cancelled", "an unknown dependency counts as failed"
    await end(store, "a", kind)
    assert await see_to_links(store, 1) == ["b", "c"]
    assert (await row(store, "b"))["reason"].startswith("task a, on which it depends, ")
    assert "DependencyFailed" in (await row(store, "c"))["error"]
    assert await state(store, "careless") == "queued"


async def test_rows_are_kept_while_needed_and_expire_afterwards(store: Store) -> None:
    store.tasks.keep_ms = 1
    await submit(store, "a")
    await submit(store, "never")
    await submit(store, "b", "a", "never")
    await see_to_links(store)
    await end(store, "a")
    await see_to_links(store)
    await asyncio.sleep(0.01)
    await store.tasks.trim()
    forgotten = await store.results.forget("full", most=100, store_bytes=1 << 30)
    assert forgotten.tasks == 0
    assert (await row(store, "a"))["result"] == "1", "b needs it"
    await store.tasks.cancel(["b"])
    await see_to_links(store)

    async def gone() -> bool:
        return (await store.tasks.fetch(["a", "b"])) == [None, None]

    async with asyncio.timeout(10):
        while not await gone():  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.01)
    await store.tasks.trim()
    assert (await store.tasks.counts()).states["completed"] == 0
    assert await names(store, "after:", "pins:", "links") == set()


async def test_not_before_and_expiry_hold_beside_dependencies(store: Store) -> None:
    await submit(store, "a")
    await submit(store, "later", "a", not_before_ms=-LONG_MS)
    await submit(store, "never")
    await submit(store, "short", "never", expires_ms=-1)
    await submit(store, "behind", "short")
    await end(store, "a")
    await see_to_links(store)
    assert (await state(store, "later"), (await row(store, "later"))["open"]) == ("scheduled", "0")
    await asyncio.sleep(0.01)
    assert (await store.tasks.due()).ended == ("short",), "also while it waits for another"
    assert '"type":"Expired"' in (await row(store, "short"))["error"]
    assert await see_to_links(store) == ["behind"]
    assert await state(store, "later") == "scheduled"
    assert await names(store, "pins:never", "after:never") == set()


async def test_retried_task_waits_for_a_retried_dependency(store: Store) -> None:
    await submit(store, "a")
    await submit(store, "b", "a")
    await end(store, "a", "failed")
    await see_to_links(store)
    await store.tasks.retry(["a", "b"])
    assert [await state(store, name) for name in "ab"] == ["queued", "scheduled"]
    await see_to_links(store)
    assert await state(store, "b") == "scheduled"
    epoch = await epoch_of(store)
    await run(store, "a", "w", epoch, 1)
    assert await tell(store, "a", "w", epoch, "done", attempt=2, payload="1")
    await see_to_links(store)
    assert await state(store, "b") == "queued"


async def test_cost_is_bounded_whatever_waits(store: Store, scale: Scale) -> None:
    """A thousand tasks wait for one, and one waits for a thousand: no call does more than its part."""
    many = scale(test=300, accept=1000)
    await submit(store, "first")
    await store.tasks.submit([task(f"t{number}", needs="cancel first") for number in range(many)])
    await submit(store, "last", *(f"t{number}" for number in range(many)))
    await end(store, "first")
    calls = 0
    while (await store.tasks.see_to_links(50)).more:
        calls += 1
    assert calls >= 3 * many / 50 - 10
    assert (await store.tasks.counts()).states["queued"] == many
    await run_all(store, [f"t{number}" for number in range(many)])
    await see_to_links(store)
    assert await state(store, "last") == "queued"


async def run_all(store: Store, ids: Sequence[str]) -> None:
    epoch = await epoch_of(store)
    await store.tasks.assign([Assignment(name, 0, "w", epoch, "{}") for name in ids])
    await store.tasks.finish([Outcome(name, 1, "w", epoch, "done", "1") for name in ids])


async def test_random_graphs_run_in_order_under_changing_leaders(
    store: Store, new_store: NewStore, scale: Scale
) -> None:
    """Calls of `links` do a part, leaders change, and tasks are cancelled: every task ends, none begins
    before its dependencies, and nothing is left behind."""
    chance = Random(21)
    size = scale(test=60, accept=400)
    after = {
        f"t{number}": [f"t{chance.randrange(number)}" for _ in range(chance.randrange(4))] if number else []
        for number in range(size)
    }
    leader, ended = store, set[str]()
    waiting = list(after)
    for step in range(100 * size):
        if waiting and chance.random() < 0.5:
            name = waiting.pop(0)
            await submit(
                leader, name, *dict.fromkeys(after[name]), on_failure=chance.choice(["cancel", "run"])
            )
        if chance.random() < 0.1:
            await leader.leadership.resign()
            leader = new_store(f"leader {step}")
            await leader.leadership.campaign()
        await leader.tasks.see_to_links(chance.choice([1, 2, 5, 50]))
        if chance.random() < 0.02:
            await leader.tasks.cancel([chance.choice(list(after))])
        queued = (await leader.tasks.page(states=["queued"], offset=0, limit=9)).ids
        for name in queued[: chance.randrange(4)]:
            assert all([await state(leader, each) in FINAL for each in after[name]]), name
            await end(leader, name, chance.choice(["done", "done", "done", "failed"]))
        counts = (await leader.tasks.counts()).states
        if not waiting and not counts["queued"] and not counts["scheduled"]:
            break
    await see_to_links(leader)
    states = {name: await state(leader, name) for name in after}
    assert set(states.values()) <= FINAL, states
    ended |= set(states)
    assert len(ended) == size
    assert await names(leader, "after:", "pins:", "links") == set()


FINAL = {"completed", "failed", "cancelled"}


async def test_backup_keeps_the_links(store: Store, empty_store: Store, tmp_path: Path) -> None:
    for name in ("done", "runs", "open"):
        await submit(store, name)
    await end(store, "done")
    await submit(store, "waits", "done", "open")
    await submit(store, "begun", "done")
    await submit(store, "later", "runs")
    await see_to_links(store)
    await run(store, "runs", "w", await epoch_of(store))
    await backup.save(store.database, tmp_path / "file", {})
    restored = empty_store
    await backup.load(restored.database, tmp_path / "file")
    await restored.leadership.campaign()
    await see_to_links(restored)
    assert [await state(restored, name) for name in ("waits", "begun")] == ["scheduled", "queued"]
    await restored.tasks.cancel(["begun"])
    await restored.tasks.cancel(["open"])
    await see_to_links(restored)
    assert await state(restored, "waits") == "cancelled"
    assert await names(restored, "after:done", "pins:done", "links") == set()
    assert await restored.database.exists("t:done")
