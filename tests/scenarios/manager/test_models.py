"""Models end to end: a manager, real workers with simulated devices, and classes that hold their memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.manager.conftest import TOKEN, NewSite, Site, new_site
from tests.support.patience import PATIENCE_S
from tests.support.workers import Worker, gone_within

pytestmark = pytest.mark.real
__all__ = ["new_site"]

CLASSES = ("--model", "sized=tests.support.model_classes:Sized")
GIB = 1024


class Models:
    """A site with workers that load models, and tasks for them."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.workers: list[Worker] = []

    async def worker(self, name: str, *options: str) -> Worker:
        """Start a worker with one device, and wait until it is there."""
        log, simulation = self.folder / f"{name}.log", ("--simulation", str(self.folder / f"gpus-{name}"))
        given = (*CLASSES, "--simulate", "1xL4:24GiB", *simulation, *options)
        started = Worker(self.site.running.url, log, *given, token=TOKEN, name=name)
        self.workers.append(started)
        async with asyncio.timeout(PATIENCE_S):
            while (await self.site.call("GET", f"/workers/{name}"))[1].get("status") != "online":  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.05)
        return started

    async def declare(self, name: str, gib: int, **options: Any) -> Any:
        body = {"handler": "sized", "memory": f"{gib}GiB", "options": {"mib": gib * GIB, **options}}
        status, answer = await self.site.call("PUT", f"/models/{name}", body)
        assert status == 200, answer
        return answer

    async def submit(self, model: str, parameters: Any = None, **rest: Any) -> str:
        return await self.site.submit("sized", model_name=model, parameters=parameters or {}, **rest)

    async def run(self, model: str, parameters: Any = None, **rest: Any) -> Any:
        ended = await self.site.wait(await self.submit(model, parameters, **rest))
        assert ended["status"] == "completed", ended
        return ended["result"]

    async def loaded(self, worker: str, *models: str) -> dict[str, Any]:
        """Wait until exactly these models are loaded on a worker."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, shown = await self.site.call("GET", f"/workers/{worker}")
                found = {each["name"]: each for each in shown["loaded_models"]}
                if sorted(found) == sorted(models):
                    return found
                await asyncio.sleep(0.05)

    async def events(self) -> list[tuple[str, str]]:
        _, page = await self.site.call("GET", "/cluster/events?limit=1000&after=0")
        return [
            (each["event"], each["data"]["model_name"])
            for each in page["events"]
            if each["event"].startswith("model_")
        ]


@pytest.fixture
async def models(new_site: NewSite, tmp_path: Path) -> AsyncIterator[Models]:
    running = Models(await new_site(rate_limit_per_minute=0, rate_limit_per_hour=0), tmp_path)
    yield running
    for worker in running.workers:
        worker.close()
        gone_within(worker, PATIENCE_S)
        assert "Traceback" not in worker.log.read_text()


async def test_mixed_trace_swaps_half_as_often_as_first_come_first_served(models: Models) -> None:
    """A B A A C A B C over and over, room for one model: the tasks of one model run together."""
    trace = "ABAACABC" * 3
    journal = models.folder / "journal"
    for name in "ABC":
        await models.declare(name, 14, journal=str(journal), load_s=0.05)
    await models.worker("w")
    await models.run("A", timeout=60)
    tasks = [await models.submit(name, {"seconds": 0.02}) for name in trace]
    for each in tasks:
        assert (await models.site.wait(each))["status"] == "completed"
    fifo = sum(before != after for before, after in zip("A" + trace, trace, strict=False))
    loads = len(journal.read_text().split()) - 1
    assert loads <= fifo / 2, f"{loads} loads where first come, first served needs {fifo}"
    shown = (await models.site.call("GET", "/models/A"))[1]
    assert shown["memory_bytes"] == 14 * GIB**3
    assert ("model_loaded", "A") in await models.events()


async def test_pinned_model_stays_and_its_tasks_are_served(models: Models) -> None:
    for name in ("big", "kept", "other"):
        await models.declare(name, 12 if name == "big" else 8)
    await models.worker("w", "--max-concurrent", "2")
    site = models.site
    status, answer = await site.call(
        "POST", "/models/assign", {"model_name": "kept", "worker_id": "w", "pin": True}
    )
    assert (status, answer["worker_id"], answer["pinned"]) == (202, "w", True)
    assert (await site.wait(answer["task_id"]))["status"] == "completed"
    assert (await models.loaded("w", "kept"))["kept"]["pinned"]
    assert (await models.run("other"))["model"] == "other"
    task = await models.submit("big")
    await asyncio.sleep(0)
    explained = (await site.call("GET", f"/tasks/{task}/explain"))[1]
    assert explained["would_go_to"] is None, explained
    assert (await models.run("kept"))["task"] == 1
    assert (await site.call("POST", "/models/unload", {"model_name": "kept"}))[0] == 409
    assert (await site.call("POST", "/models/unpin", {"model_name": "kept"}))[1]["pinned_on"] == []
    assert (await site.wait(task))["status"] == "completed"
    found = await models.loaded("w", "big", "kept")
    assert found["big"]["memory_usage_bytes"] == 12 * GIB**3


async def test_model_in_use_is_unloaded_by_force_alone(models: Models, tmp_path: Path) -> None:
    await models.declare("a", 8)
    await models.worker("w")
    gate = tmp_path / "gate"
    task = await models.submit("a", {"gate": str(gate)})
    await models.loaded("w", "a")
    status, refused = await models.site.call("POST", "/models/unload", {"model_name": "a"})
    assert (status, refused["error"]["details"]["task_ids"]) == (409, [task])
    gate.touch()
    assert (await models.site.wait(task))["status"] == "completed"
    status, told = await models.site.call("POST", "/models/unload", {"model_name": "a", "worker_id": "w"})
    assert (status, told["workers"], told["status"]) == (202, ["w"], "unloading")
    await models.loaded("w")
    assert await models.events() == [("model_loaded", "a"), ("model_unloaded", "a")]


async def test_model_larger_than_any_device_and_unknown_model_are_refused(models: Models) -> None:
    await models.declare("giant", 30)
    await models.declare("llama", 8)
    await models.worker("w")
    site, ask = models.site, {"task_type": "sized"}
    status, answer = await site.call("POST", "/tasks", {**ask, "model_name": "giant"})
    assert status == 409
    assert "1 has no GPU of 30GB" in answer["error"]["message"]
    status, answer = await site.call("POST", "/tasks", {**ask, "model_name": "lama"})
    assert status == 422
    assert (
        "unknown model 'lama'; did you mean 'llama'? known to 'sized': giant, llama, sized"
        in (answer["error"]["message"])
    )


async def test_worker_that_is_killed_in_a_load_takes_no_task_along(models: Models) -> None:
    await models.declare("a", 8, load_s=0.3)
    doomed = await models.worker("a")
    task = await models.submit("a")
    async with asyncio.timeout(PATIENCE_S):
        while (await models.site.task(task))["progress"] != "loading model a":  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.02)
    doomed.process.kill()
    await models.worker("b")
    ended = await models.site.wait(task)
    assert (ended["status"], ended["assigned_worker"]) == ("completed", "b")


async def test_model_that_runs_out_of_memory_is_not_retried_on_the_same_device(models: Models) -> None:
    """It says that it takes 4 GiB, and takes 30. With two workers it is tried on each, once."""
    journal = models.folder / "journal"
    status, _ = await models.site.call(
        "PUT",
        "/models/greedy",
        {"handler": "sized", "memory": "4GiB", "options": {"mib": 30 * GIB, "before": str(journal)}},
    )
    assert status == 200
    await models.declare("small", 4)
    for name in "ab":
        await models.worker(name)
    ended = await models.site.wait(await models.submit("greedy", max_retries=5))
    assert (ended["status"], ended["error"]["type"]) == ("failed", "OutOfMemory")
    assert {each["worker"] for each in ended["deaths"]} == {"a", "b"}
    assert len(journal.read_text().split()) == 2
    assert (await models.run("small"))["model"] == "small"


async def test_model_of_a_waiting_task_is_loaded_before_its_turn(models: Models) -> None:
    """The worker's only slot is taken, and there is memory left: the next model is there when the slot is."""
    for name in ("a", "b"):
        await models.declare(name, 8)
    await models.worker("w", "--max-concurrent", "1")
    gate = models.folder / "gate"
    first = await models.submit("a", {"gate": str(gate)})
    second = await models.submit("b")
    await models.loaded("w", "a", "b")
    assert (await models.site.task(second))["status"] == "queued"
    gate.touch()
    ended = await models.site.wait(second)
    assert (ended["status"], ended["result"]["task"]) == ("completed", 1)
    _, log = await models.site.call("GET", f"/tasks/{second}/logs")
    assert "loading model" not in log["text"]
    assert (await models.site.wait(first))["status"] == "completed"


async def test_full_worker_gives_a_model_to_its_empty_twin_and_no_task_fails(models: Models) -> None:
    await models.worker("full")
    for name, gib in (("a", 6), ("b", 6), ("c", 5)):
        await models.declare(name, gib)
        await models.run(name)
    await models.loaded("full", "a", "b", "c")
    await models.worker("empty")
    call = models.site.call
    status, dry = await call("POST", "/cluster/rebalance", {"dry_run": True})
    assert (status, dry["status"], len(dry["operations"])) == (202, "planned", 1), dry
    await models.loaded("empty")
    _, found = await call("POST", "/cluster/rebalance", {})
    moved = found["operations"][0]["model_name"]
    tasks = [await models.submit(name) for name in ("a", "b", "c", moved)]  # some of them use what moves
    async with asyncio.timeout(PATIENCE_S):
        while (shown := (await call("GET", "/cluster/rebalance"))[1])["status"] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert shown["operations"][0]["status"] in ("moved", "kept"), shown
    assert {(await models.site.wait(each))["status"] for each in tasks} == {"completed"}
    # A task may have taken another model there as well, so its models are not exactly those that moved.
    wanted = [("model_loaded", moved)] * 2  # once on each worker
    if shown["operations"][0]["status"] == "moved":
        wanted.append(("model_unloaded", moved))
    async with asyncio.timeout(PATIENCE_S):
        while not Counter(wanted) <= Counter(await models.events()):  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)
    _, listed = await call("GET", "/tasks?limit=100")
    assert {(each["status"], each["attempt"]) for each in listed["tasks"]} == {("completed", 1)}
