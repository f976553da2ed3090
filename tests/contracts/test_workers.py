"""The store's contract for workers."""

import pytest

from gpu_orchestrator.adapters.store.keys import KeyRow
from gpu_orchestrator.adapters.store.records import (
    Active,
    Departure,
    Moved,
    NotAssigned,
    Registration,
    Renewal,
    Renewed,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.workers import Removed
from tests.support.store_calls import NewStore, give, join, lose, run, state, task, tell

pytestmark = pytest.mark.real


async def test_worker_resumes_its_epoch_and_keeps_its_tasks(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    assert await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert await give(store, "t", "w", epoch, 1) == NotAssigned(Moved.TASK)
    back = await store.workers.register(Registration("w", "i", "{}", "one", "c2", resume_epoch=epoch))
    assert (back.kind, back.epoch) == ("resumed", epoch)
    assert await store.workers.renew([Renewal("w", epoch, "c2")]) == [Renewed("", (Active("t", 1, 0, 1),))]
    assert not await store.workers.disconnect(Renewal("w", epoch, "c")), (
        "the old connection does not count any more"
    )


async def test_restarted_worker_gets_new_epoch_and_loses_its_tasks(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert await join(store, "w", instance="j") > epoch
    assert await state(store, "t") == "queued"
    assert await tell(store, "t", "w", epoch, "done") == 0
    assert await store.workers.renew([Renewal("w", epoch, "c")]) == [None]


async def test_register_refuses_name_in_use_and_too_many_workers(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(most_workers=1))
    await join(store, "w")
    assert (await store.workers.register(Registration("w", "other", "{}", "one", "c2"))).kind == "taken"
    assert (await store.workers.register(Registration("v", "i", "{}", "one", "c3"))).kind == "full"


async def test_only_expired_lease_removes_worker(new_store: NewStore) -> None:
    store = new_store(timeouts=StoreTimeouts(lease_ms=60_000, grace_ms=0))
    await store.leadership.campaign()
    epoch = await join(store, "w")
    gone = [Departure("w", epoch, "lease over")]
    assert await store.workers.expire(gone) == (False,)
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    (lease,) = (await store.leadership.campaign()).expired
    assert (lease.name, lease.epoch, lease.suspect) == ("w", epoch, 1)
    assert await store.workers.expire(gone) == (True,)
    assert (await store.workers.fetch(["w"]))[0]["state"] == "offline"  # type: ignore[index]


async def test_handed_over_worker_outlives_its_lease_and_resumes(new_store: NewStore) -> None:
    """Its server ends as planned; the next leader takes nothing from it, though the lease is over."""
    store = new_store(timeouts=StoreTimeouts(lease_ms=1, grace_ms=1, hold_ms=60_000))
    await store.leadership.campaign()
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await run(store, "t", "w", epoch)
    await store.workers.hand_over([Renewal("w", epoch, "c"), Renewal("unknown", 1, "c")])
    assert (await store.leadership.campaign()).expired == ()
    assert await store.workers.expire([Departure("w", epoch, "lease over")]) == (False,)
    assert not await store.workers.disconnect(Renewal("w", epoch, "c")), (
        "the end of the session changes nothing"
    )
    back = await store.workers.register(Registration("w", "i", "{}", "two", "c2", resume_epoch=epoch))
    assert (back.kind, await state(store, "t")) == ("resumed", "running")


async def test_handed_over_worker_gets_no_tasks(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.workers.hand_over([Renewal("w", epoch, "c")])
    assert await give(store, "t", "w", epoch) == NotAssigned(Moved.WORKER)


async def test_new_leader_extends_leases_of_suspect_workers(new_store: NewStore) -> None:
    """A worker that lost its connection just before the servers ended could not come back."""
    store = new_store(timeouts=StoreTimeouts(lease_ms=60_000, grace_ms=0))
    epoch = await join(store, "w")
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert [each.name for each in (await store.leadership.campaign()).expired] == ["w"]
    await store.snapshots.begin(store.timeouts.lease_ms)
    assert (await store.leadership.campaign()).expired == ()


@pytest.mark.parametrize(
    ("fields", "wish"),
    [
        pytest.param({"draining": "1"}, "drain", id="drain"),
        pytest.param({"draining": "1", "leaving": "1"}, "leave", id="restart"),
        pytest.param({"leaving": "0"}, "", id="withdrawn"),
    ],
)
async def test_renewal_repeats_the_operators_wish(store: Store, fields: dict[str, str], wish: str) -> None:
    epoch = await join(store, "w")
    await store.workers.control("w", fields)
    assert await store.workers.renew([Renewal("w", epoch, "c")]) == [Renewed(wish, ())]  # type: ignore[arg-type]


async def test_renewal_of_removed_worker_says_so(store: Store) -> None:
    epoch = await join(store, "w")
    await store.workers.leave([Departure("w", epoch, "removed")])
    await store.workers.control("w", {}, forget=True)
    (answer,) = await store.workers.renew([Renewal("w", epoch, "c")])
    assert isinstance(answer, Removed)


async def test_suspect_worker_gets_no_tasks(store: Store) -> None:
    await store.tasks.submit([task("t")])
    epoch = await join(store, "w")
    await store.workers.disconnect(Renewal("w", epoch, "c"))
    assert await give(store, "t", "w", epoch) == NotAssigned(Moved.WORKER)


async def test_operator_flags_survive_reconnect(store: Store) -> None:
    epoch = await join(store, "w")
    assert (await store.workers.control("w", {"cordoned": "1"})).state == "online"
    await lose(store, "w", epoch)
    await join(store, "w")
    assert (await store.workers.fetch(["w"]))[0]["cordoned"] == "1"  # type: ignore[index]
    assert (await store.workers.control("nobody", {"cordoned": "1"})).state == ""


def registration(
    name: str, key: str = "", *uuids: str, instance: str = "i", any_name: int = 0
) -> Registration:
    return Registration(
        name, instance, "{}", "one", f"c-{name}", joined_with=key, takes_any_name=any_name, uuids=uuids
    )


async def make_key(store: Store, id_: str, worker: str = "") -> None:
    row = KeyRow(id_, id_.encode().hex(), id_, id_, "worker", worker=worker)
    assert await store.keys.save(row) == "saved"


async def gone(store: Store, name: str, epoch: int) -> None:
    await store.workers.leave([Departure(name, epoch, "left")])


@pytest.mark.parametrize(
    ("bound_to", "first", "second", "expected"),
    [
        pytest.param("", "a", "b", ("bound", "a"), id="bound by its first use"),
        pytest.param("", "a", "a", ("new", ""), id="the same name again"),
        pytest.param("a", "a", "b", ("bound", "a"), id="created for a name"),
        pytest.param("*", "a", "b", ("new", ""), id="for any name"),
    ],
)
async def test_worker_key_is_for_one_name(
    store: Store, bound_to: str, first: str, second: str, expected: tuple[str, str]
) -> None:
    await make_key(store, "key", bound_to)
    version = (await store.keys.look()).version
    epoch = (await store.workers.register(registration(first, "key"))).epoch
    assert epoch
    (row,) = (await store.keys.look()).rows or ()
    assert row.worker == (bound_to or first)
    assert ((await store.keys.look()).version > version) == (bound_to == "")
    await gone(store, first, epoch)
    found = await store.workers.register(registration(second, "key"))
    assert (found.kind, found.other) == expected


async def test_key_created_for_a_name_refuses_its_first_worker_of_another_name(store: Store) -> None:
    await make_key(store, "key", "a")
    found = await store.workers.register(registration("b", "key"))
    assert (found.kind, found.other) == ("bound", "a")


async def test_key_of_an_older_version_and_the_shared_token_join_under_many_names(
    new_store: NewStore,
) -> None:
    store = new_store(timeouts=StoreTimeouts(most_workers=10))
    await make_key(store, "old")
    await store.database._execute("HDEL", f"{store.database.prefix}k:old", "worker")
    for key in ("old", "bootstrap-worker"):
        for name in (f"{key}-1", f"{key}-2"):
            assert (await store.workers.register(registration(name, key))).kind == "new"
    (row,) = (await store.keys.look()).rows or ()
    assert row.worker == "*"


async def test_name_of_one_key_is_not_for_another_key_while_both_exist(store: Store) -> None:
    for each in ("one", "two"):
        await make_key(store, each, "*")
    epoch = (await store.workers.register(registration("w", "one"))).epoch
    await gone(store, "w", epoch)
    for thief in ("two", "bootstrap-worker"):
        found = await store.workers.register(registration("w", thief))
        assert (found.kind, found.other) == ("owned", "one")
    assert (await store.workers.register(registration("w", "two", any_name=1))).kind == "new", "an admin may"


async def test_name_is_free_once_its_key_is_revoked_or_its_worker_removed(store: Store) -> None:
    for each in ("one", "two", "three"):
        await make_key(store, each, "*")
    await gone(store, "w", (await store.workers.register(registration("w", "one"))).epoch)
    await store.keys.revoke("one")
    await gone(store, "w", (await store.workers.register(registration("w", "two"))).epoch)
    assert (await store.workers.register(registration("w", "three"))).kind == "owned"
    await store.workers.control("w", {}, forget=True)
    assert (await store.workers.register(registration("w", "three"))).kind == "new"


async def test_key_created_for_a_name_takes_it_from_the_shared_token(store: Store) -> None:
    await gone(store, "w", (await store.workers.register(registration("w", "bootstrap-worker"))).epoch)
    await make_key(store, "unnamed")
    await make_key(store, "named", "w")
    assert (await store.workers.register(registration("w", "unnamed"))).kind == "owned"
    assert (await store.workers.register(registration("w", "named"))).kind == "new"


async def test_device_belongs_to_one_worker_until_that_one_is_offline(store: Store) -> None:
    first = (await store.workers.register(registration("a", "", "GPU-1", "GPU-2"))).epoch
    found = await store.workers.register(registration("b", "", "GPU-3", "GPU-2"))
    assert (found.kind, found.uuid, found.other) == ("device", "GPU-2", "a")
    assert (await store.workers.fetch(["b"])) == [None], "a refused worker leaves nothing behind"
    await store.workers.disconnect(Renewal("a", first, "c-a"))
    assert (await store.workers.register(registration("b", "", "GPU-2"))).kind == "device", "it may come back"
    await gone(store, "a", first)
    assert (await store.workers.register(registration("b", "", "GPU-2"))).kind == "new"
    assert (await store.workers.register(registration("a", "", "GPU-1"))).kind == "new"


async def test_worker_that_changes_its_devices_lets_go_of_the_old_ones(store: Store) -> None:
    first = (await store.workers.register(registration("a", "", "GPU-1", "GPU-2"))).epoch
    await gone(store, "a", first)
    assert (await store.workers.register(registration("a", "", "GPU-2", instance="j"))).kind == "new"
    assert (await store.workers.register(registration("b", "", "GPU-1"))).kind == "new"


async def test_removed_worker_leaves_no_devices(store: Store) -> None:
    await gone(store, "a", (await store.workers.register(registration("a", "", "GPU-1"))).epoch)
    await gone(store, "b", (await store.workers.register(registration("b", "", "GPU-2"))).epoch)
    await store.leadership.campaign()
    await store.workers.control("a", {}, forget=True)
    assert await store.workers.tidy(["b"], -1) == ("b",)
    assert await store.database._execute("HLEN", f"{store.database.prefix}devices:worker") == 0
