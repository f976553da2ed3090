"""Workers that are offline for long are forgotten, and old counters of the others are dropped."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.records import Registration
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support.store_calls import SHORT, join, lose, run, task, tell

pytestmark = pytest.mark.real


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="one", timeouts=SHORT) as made:
        await made.leadership.campaign()
        yield made


async def test_offline_worker_is_forgotten_with_its_counters(store: Store) -> None:
    epochs = {name: await join(store, name) for name in ("gone", "cordoned", "here")}
    await store.tasks.submit([task("a")])
    await run(store, "a", "gone", epochs["gone"])
    await tell(store, "a", "gone", epochs["gone"], "done", payload="1")
    await store.workers.control("cordoned", {"cordoned": "1"})
    for name in ("gone", "cordoned"):
        await lose(store, name, epochs[name])
    names = list(epochs)
    assert await store.workers.tidy(names, 60_000) == ()
    await asyncio.sleep(0.01)  # more than its retention must pass
    assert await store.workers.tidy(names, 5) == ("gone",)
    assert set((await store.tasks.counts()).workers) == {"cordoned", "here"}
    left = [name async for part in store.database.scan(100) for name in part]
    assert not [name for name in left if name.endswith(":gone")]


async def test_forgotten_worker_leaves_its_devices_to_others(store: Store) -> None:
    devices = f"{store.database.prefix}devices:worker"
    for name in ("gone", "here"):
        await store.workers.register(Registration(name, "i", "{}", "one", "c", uuids=(f"GPU-{name}",)))
    (row,) = await store.workers.fetch(["gone"])
    assert row is not None
    await lose(store, "gone", int(row["epoch"]))
    await asyncio.sleep(0.01)  # more than its retention must pass
    assert await store.workers.tidy(["gone", "here"], 5) == ("gone",)
    assert await store.database._execute("HGETALL", devices) == [b"GPU-here", b"here"]


async def test_worker_that_resumes_takes_no_device_from_another(store: Store) -> None:
    def hello(name: str, *uuids: str, epoch: int = 0, instance: str = "i") -> Registration:
        return Registration(name, instance, "{}", "one", "c", resume_epoch=epoch, uuids=uuids)

    honest = await store.workers.register(hello("honest", "GPU-1"))
    other = await store.workers.register(hello("other", "GPU-2"))
    again = await store.workers.register(hello("other", "GPU-1", "GPU-2", epoch=other.epoch))
    assert again.kind == "resumed"
    await lose(store, "honest", honest.epoch)
    assert (await store.workers.register(hello("honest", "GPU-1", instance="j"))).kind == "new"


async def test_worker_that_others_lead_is_not_forgotten(store: Store) -> None:
    epoch = await join(store, "gone")
    await lose(store, "gone", epoch)
    await asyncio.sleep(0.01)  # more than its retention must pass
    store.fenced.drop_fence()
    assert await store.workers.tidy(["gone"], 5) == ()


async def test_counters_of_old_days_are_dropped(store: Store) -> None:
    epoch = await join(store, "w")
    await store.tasks.submit([task("a")])
    await run(store, "a", "w", epoch)
    await tell(store, "a", "w", epoch, "done", payload="1")
    for day in (1, 2):
        await store.database.set_field("d:w", f"done:{day}", "5")
    assert await store.workers.tidy(["w"], 60_000) == ()
    (row,) = await store.workers.fetch(["w"])
    assert row is not None
    days = [name for name in row if name.startswith("done:")]
    assert len(days) == 1
    assert "done:1" not in row
    assert row["done"] == "1"
