"""What `GET /workers` keeps from one request to the next is never older than the store."""

from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import Site
from tests.support import scripted_worker

pytestmark = pytest.mark.real


async def listed(site: Site, name: str = "w") -> Any:
    """Return a worker of the list; it must be as the worker is shown alone, which is read each time."""
    _, page = await site.call("GET", "/workers")
    (found,) = [each for each in page["workers"] if each["worker_id"] == name]
    _, alone = await site.call("GET", f"/workers/{name}")
    assert found == {field: alone[field] for field in found}
    return found


async def test_listed_worker_is_as_the_store_has_it_after_each_change(site: Site) -> None:
    worker = await site.join()
    seen = [await listed(site)]

    async def change(what: str) -> Any:
        seen.append(await listed(site))
        assert seen[-1] != seen[-2], f"{what} is not shown"
        return seen[-1]

    async def call(path: str) -> None:
        assert (await site.call("POST", f"/workers/w/{path}"))[0] == 200

    await worker.send(session.Report((scripted_worker.reading(0, others_gib=6), scripted_worker.reading(1))))
    await worker.send(session.Renew(1))
    await worker.receive(session.Renewed)
    while (await listed(site))["gpu_info"][0]["memory_used_bytes"] == 0:
        pass
    await change("a report")
    await site.submit(resources={"gpu_memory": "2GiB"})
    assign = await worker.take()
    assert (await change("an assignment"))["current_tasks"] == 1
    assert sum(each["memory_reserved_bytes"] for each in seen[-1]["gpu_info"]) == 2 << 30
    await worker.finish(assign)
    assert (await change("an outcome"))["current_tasks"] == 0
    await call("devices/0/cordon")
    await change("a cordoned device")
    await call("cordon")
    assert (await change("a cordon"))["status"] == "cordoned"
    await call("uncordon")
    await change("the end of a cordon")
    await worker.vanish()
    await site.missed("w")
    assert (await change("a lost connection"))["status"] in ("suspect", "offline")


async def test_list_reads_only_workers_that_changed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.join("a")
    await site.join("b")
    workers = site.running.manager.store.workers
    read: list[list[str]] = []

    def holding(names: Any) -> Any:
        read.append(list(names))
        return type(workers).holding(workers, names)

    await site.call("GET", "/workers")
    monkeypatch.setattr(workers, "holding", holding)
    await site.call("GET", "/workers")
    await site.call("POST", "/workers/b/cordon")
    _, page = await site.call("GET", "/workers")
    assert read == [[], ["b"]]
    assert [(each["worker_id"], each["status"]) for each in page["workers"]] == [
        ("a", "online"),
        ("b", "cordoned"),
    ]
