"""The store's contract for workers."""

import pytest

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
