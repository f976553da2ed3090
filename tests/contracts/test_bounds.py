"""What scripts read and write is bounded in bytes and in number, whatever is in the store."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.records import Assigned, Assignment, Moved, NewTask, NotAssigned
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from tests.support.store_calls import NewStore, join, row, run, task, tell

pytestmark = pytest.mark.real
MIB = 1 << 20


async def test_assignments_beyond_the_bytes_of_one_answer_come_later(store: Store) -> None:
    epoch = await join(store, "w")
    params = '"' + "x" * (5 * MIB) + '"'
    names = [f"t{number}" for number in range(4)]
    await store.tasks.submit([NewTask(name, "{}", params) for name in names])
    given = await store.tasks.assign([Assignment(name, 0, "w", epoch, "{}") for name in names])
    assert given == [Assigned(params, ""), Assigned(params, ""), *[NotAssigned(Moved.LATER)] * 2]
    assert [(await row(store, name))["state"] for name in names] == ["assigned"] * 2 + ["queued"] * 2
    rows = await store.tasks.fetch(names, parameters=True)
    assert [each and len(each["params"]) for each in rows] == [len(params)] * 4, "in several calls"


async def test_large_parameters_go_when_the_task_completes(store: Store) -> None:
    """Nobody runs it again; a repeated submission is still told from a different one."""
    epoch = await join(store, "w")

    def new(text: str) -> NewTask:
        return NewTask("a", "{}", f'"{text * 5000}"', idempotency="k")

    await store.tasks.submit([new("x")])
    await store.tasks.assign([Assignment("a", 0, "w", epoch, "{}")])
    assert await tell(store, "a", "w", epoch, "done", payload="1")
    (found,) = await store.tasks.fetch(["a"], parameters=True)
    assert "params" not in (found or {})
    ((same,), (other,)) = (await store.tasks.submit([new("x")]), await store.tasks.submit([new("y")]))
    assert (type(same).__name__, type(other).__name__) == ("Accepted", "KeyConflict")
    assert await store.tasks.conflicts([new("x"), new("y")]) == ("", "a")


async def test_trim_is_bounded_with_thousands_of_owners(new_store: NewStore) -> None:
    """Each call looks at a part of the owners; those of an older version are found in the end."""
    store = new_store(timeouts=StoreTimeouts(leader_ms=60_000, keep_ms=1))
    await store.leadership.campaign()
    names = [f"t{number}" for number in range(1000)]
    await store.tasks.submit([NewTask(name, "{}", "{}", tenant=f"owner-{name}") for name in names])
    await store.tasks.cancel(names)
    await store.database._execute("DEL", store.database.prefix + "ended")  # as if an older version ended them
    async with asyncio.timeout(30):
        while await store.database.exists("owners"):
            before = await store.database._execute("SCARD", store.database.prefix + "owners")
            await store.tasks.trim()
            after = await store.database._execute("SCARD", store.database.prefix + "owners")
            assert before - after < 300, "a part of them"
    assert (await store.tasks.page(owner="owner-t7", offset=0, limit=1)).total == 0


async def test_dead_letters_are_forgotten_last(store: Store) -> None:
    epoch = await join(store, "w")
    await store.tasks.submit([task("dead", retries=0), task("failed"), task("done"), task("waits")])
    for name in ("dead", "failed", "done"):
        await run(store, name, "w", epoch)
    assert await tell(store, "dead", "w", epoch, "died", payload="signal 9")
    assert await tell(store, "failed", "w", epoch, "failed", payload="{}")
    assert await tell(store, "done", "w", epoch, "done", payload="1")
    order = []
    for _ in range(4):
        await store.results.forget("test", most=1)
        rows = await store.tasks.fetch(["done", "failed", "dead", "waits"])
        order.append([each is not None for each in rows])
    assert order == [
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
        [False, False, False, True],
    ]
    assert (await store.results.held()).forgetting == "test"
