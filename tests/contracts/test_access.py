"""The store's contract for keys, owners and the audit log."""

import asyncio

import pytest
from msgspec.structs import replace

from gpu_orchestrator.adapters.store.audit import AuditLog
from gpu_orchestrator.adapters.store.keys import KeyRow, StoredKeys
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.tasks import Retried
from tests.support.store_calls import NewStore, task

pytestmark = pytest.mark.real


def row(name: str, **rest: object) -> KeyRow:
    return KeyRow(name, "d" * 64, name, "ann", "read,submit", by="bootstrap", **rest)  # type: ignore[arg-type]


async def test_keys_are_read_only_when_they_changed(store: Store, new_store: NewStore) -> None:
    other = new_store("two")
    assert (await other.keys.look(0)).rows is None, "none yet"
    assert await store.keys.save(row("a", expires_ms=2**45)) == "saved"
    assert await store.keys.save(row("b", limits='{"weight":2.0}')) == "saved"
    page = await other.keys.look(0)
    assert page.rows
    assert [(each.id, each.expires_ms, each.limits) for each in page.rows] == [
        ("a", 2**45, ""),
        ("b", 0, '{"weight":2.0}'),
    ]
    assert page.rows[0].created_ms > 0
    assert (await other.keys.look(page.version)).rows is None
    assert await other.keys.revoke("a")
    again = await store.keys.look(page.version)
    assert again.rows
    assert [bool(each.revoked_ms) for each in again.rows] == [True, False]
    assert not await store.keys.revoke("nobody")
    await store.keys.revoke("a")
    assert (await store.keys.look(again.version)).rows is None, "revoking again changes nothing"


async def test_change_of_keys_is_published(store: Store, new_store: NewStore) -> None:
    messages = new_store("two").database.listen("keys")
    message = asyncio.ensure_future(anext(messages))
    async with asyncio.timeout(60):
        while not message.done():  # until it is subscribed
            await store.keys.save(row("a"))
            await asyncio.wait([message], timeout=0.05)
    assert (await message)[0] == "keys"
    await messages.aclose()  # type: ignore[attr-defined]


async def test_last_used_time_of_a_key_only_grows(store: Store) -> None:
    await store.keys.save(row("a"))
    version = (await store.keys.look()).version
    assert (await store.keys.look(version, [("a", 50), ("gone", 50)])).rows is None, (
        "not a change for other processes"
    )
    await store.keys.look(version, [("a", 40)])
    (found,) = (await store.keys.look()).rows or ()
    assert found.used_ms == 50


async def test_number_of_keys_is_limited_and_old_keys_make_room(store: Store) -> None:
    few = StoredKeys(store.fenced, keep_ms=0, most=2)
    assert await few.save(row("a", expires_ms=1)) == "saved"
    assert await few.save(row("b")) == "saved", "a expired long ago and was deleted"
    assert await few.save(row("c")) == "saved"
    assert await few.save(row("d")) == "full"
    assert [each.id for each in (await few.look()).rows or ()] == ["b", "c"]


async def test_callback_secret_goes_with_the_last_key_of_its_owner(store: Store) -> None:
    few = StoredKeys(store.fenced, keep_ms=0)
    await few.save(replace(row("bob-2"), owner="bob"))
    for owner in ("ann", "bob", "admin"):
        await few.save(replace(row(f"{owner}-1", expires_ms=1), owner=owner))
        await store.database.set(f"callback-secret:{owner}", b"sealed")
    await few.save(replace(row("eve"), owner="eve"))
    left = [await store.database.exists(f"callback-secret:{each}") for each in ("ann", "bob", "admin")]
    assert left == [False, True, True]


def of(owner: str, name: str) -> NewTask:
    return task(name, tenant=owner)


async def test_tasks_are_listed_by_owner(store: Store) -> None:
    await store.tasks.submit([of("ann", "a1"), of("bob", "b1"), of("ann", "a2")])
    await store.tasks.cancel(["a1"], owner="ann")

    async def listed(owner: str, *states: str) -> tuple[int, set[str]]:
        page = await store.tasks.page(states=states, owner=owner, offset=0, limit=10)
        return page.total, set(page.ids)

    assert await listed("ann") == (2, {"a1", "a2"})
    assert await listed("ann", "queued") == (1, {"a2"})
    assert await listed("ann", "cancelled") == (1, {"a1"})
    assert await listed("bob") == (1, {"b1"})
    assert await listed("nobody") == (0, set())
    assert (await listed(""))[0] == 3


async def test_owner_cannot_change_tasks_of_others(store: Store) -> None:
    await store.tasks.submit([of("ann", "a1")])
    (cancelled,) = await store.tasks.cancel(["a1"], owner="bob")
    assert cancelled.state == ""
    assert (await store.tasks.cancel(["a1"], owner="ann"))[0].state == "queued"
    assert await store.tasks.retry(["a1"], owner="bob") == [Retried("")]
    assert await store.tasks.retry(["a1"], owner="ann") == [Retried("cancelled")]
    assert (await store.tasks.cancel(["a1"]))[0].state == "queued", "without an owner, any task"


async def test_trimmed_task_leaves_its_owners_lists(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(keep_ms=1))
    await store.leadership.campaign()
    await store.tasks.submit([of("ann", "a1")])
    await store.tasks.cancel(["a1"])
    async with asyncio.timeout(60):
        while not await store.tasks.trim():  # noqa: ASYNC110 - the store's clock must pass
            await asyncio.sleep(0.01)
    assert (await store.tasks.page(owner="ann", offset=0, limit=10)).total == 0
    assert await store.database._execute("KEYS", "*o:ann*") == []
    assert await store.database._execute("SMEMBERS", f"{store.database.prefix}owners") == []


async def test_audit_numbers_have_no_gaps_across_streams(store: Store) -> None:
    await store.audit.write([("changes", "1"), ("traffic", "2")])
    await store.audit.write([("traffic", "3"), ("changes", "4"), ("traffic", "5")])
    page = await store.audit.page(limit=3)
    assert (page.total, [(each.number, each.text) for each in page.entries]) == (
        5,
        [(5, "5"), (4, "4"), (3, "3")],
    )
    rest = await store.audit.page(before=3, limit=3)
    assert [each.number for each in rest.entries] == [2, 1]
    assert (await store.audit.page(before=1, limit=3)).entries == ()


async def test_full_audit_stream_drops_its_oldest_and_keeps_the_other(store: Store) -> None:
    small = AuditLog(store.fenced, keep=100)
    await small.write([("changes", "first")])
    for _ in range(10):
        await small.write([("traffic", "x")] * 100)
    page = await small.page(limit=1000)
    assert 101 <= page.total <= 301
    assert (page.entries[0].number, page.entries[-1].text) == (1001, "first")
