"""Why tasks wait: for a worker that has not joined, and not for one that has left."""

import asyncio

import pytest

from gpu_orchestrator.adapters.store.records import Departure
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.tasks import waiting
from tests.apps.manager.conftest import NewSite, Site

pytestmark = pytest.mark.real
NO_GPU = {"gpus": 0}


@pytest.fixture(autouse=True)
def _fresh_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FRESH_S", -1.0)


async def test_task_that_came_before_a_worker_without_gpu_is_told_what_helps(site: Site) -> None:
    name = await site.submit()
    await site.join(devices=())
    shown = await site.task(name)
    assert shown["reason"] == (
        "0/1 workers fit: 1 has no GPU; start a worker on a machine with a GPU, or one with --simulate 4 to "
        "try things out"
    )
    assert shown["waits_for_worker"]
    _, explained = await site.call("GET", f"/tasks/{name}/explain")
    assert explained["reason"] == shown["reason"]
    worker = await site.join("gpu")
    assert (await worker.take()).task == name
    assert not (await site.task(name))["waits_for_worker"]


async def offline(site: Site, name: str) -> None:
    """Wait until the connection's end is known, then end the grace period."""
    workers = site.running.manager.store.workers
    async with asyncio.timeout(30):
        while (row := (await workers.fetch([name]))[0] or {})["state"] != "suspect":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await workers.leave([Departure(name, int(row["epoch"]), "its lease is over")]) == (True,)


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "other process"])
async def test_worker_that_left_is_not_a_reason_but_a_lost_one_is(new_site: NewSite, leads: bool) -> None:
    site: Site = await new_site()
    asked = site if leads else await new_site("two", redis_url=site.running.manager.store.database.url)
    left, lost = await site.join("left"), await site.join("lost")
    await site.join("here", devices=())
    await left.send(session.Leaving())
    await left.close()
    await lost.vanish()
    for name in ("left", "lost"):
        await offline(site, name)
    waits = await site.submit()
    assert (await asked.task(waits))["reason"] == "0/2 workers fit: 1 has no GPU, 1 is offline"
    _, explained = await asked.call("GET", f"/tasks/{waits}/explain")
    assert {each["worker_id"] for each in explained["workers"]} == {"here", "lost"}
    back = await site.join("left", instance="left-2")
    assert (await back.take()).task == waits


async def test_ended_task_is_explained_by_where_it_ran_last(site: Site) -> None:
    worker = await site.join()
    name = await site.submit()
    await worker.finish(await worker.take())
    await site.wait(name)
    _, answer = await site.call("GET", f"/tasks/{name}/explain")
    assert (answer["status"], answer["workers"], answer["last_worker"]) == ("completed", [], "w")
    assert answer["last_devices"] == (await site.task(name))["devices"] != []


async def test_memory_without_a_gpu_is_refused(site: Site) -> None:
    body = {"task_type": "echo", "resources": {"gpus": 0, "gpu_memory": "4GB"}}
    status, answer = await site.call("POST", "/tasks", body)
    assert status == 422
    assert answer["error"]["message"] == (
        "resources.gpu_memory is '4GB' and resources.gpus is 0; memory is reserved on GPUs: leave gpu_memory "
        "out, or give gpus 1 or more"
    )
    assert await site.submit(resources={"gpus": 0, "gpu_memory": ""})
