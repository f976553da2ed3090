"""The store's contract for workers."""

import pytest

from gpu_orchestrator.adapters.store.records import (
    Departure,
    Moved,
    NotAssigned,
    Registration,
    Renewal,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
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
    ((active,),) = await store.workers.renew([Renewal("w", epoch, "c2")])  # type: ignore[misc]
    assert (active.id, active.attempt, active.cancel) == ("t", 1, 0)
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
