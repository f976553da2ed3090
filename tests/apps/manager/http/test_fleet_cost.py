"""Lists of workers, status and metrics cost what changed, not what there is; and they are right."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpu_orchestrator.adapters.store.records import Registration
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.dispatch.task_table import QueueDepth
from gpu_orchestrator.apps.manager.fleet import rows
from tests.apps.manager.conftest import NewSite, Site
from tests.support import scripted_worker
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.real
WORKERS = 50


@contextmanager
def store_calls(site: Site) -> Iterator[Counter[str]]:
    """Count the scripts that are called meanwhile, by name."""
    database, calls = site.running.manager.store.database, Counter[str]()
    call = database.call

    async def counted(script: Any, *arguments: Any) -> Any:
        calls[script.name] += 1
        return await call(script, *arguments)

    database.call = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        database.call = call  # type: ignore[method-assign]


async def register(site: Site, name: str) -> None:
    """Register a worker that never connects: its tasks stay assigned."""
    hello = scripted_worker.hello(name, max_concurrent=4)
    store = site.running.manager.store
    registration = Registration(name, "i", rows.encode(hello), store.owner, "c")
    assert (await store.workers.register(registration)).kind == "new"


@pytest.fixture
async def fleet(new_site: NewSite) -> Site:
    """Return a server with fifty workers, each with a task on both of its devices."""
    site: Site = await new_site(max_workers=WORKERS)
    for number in range(WORKERS):
        await register(site, f"w{number:02}")
    for _ in range(2 * WORKERS):
        await site.submit(resources={"gpu_memory": "16GiB"})
    async with asyncio.timeout(30):
        while (await site.call("GET", "/cluster/status"))[1]["tasks"]["assigned"] < 2 * WORKERS:
            pass
    return site


async def test_cost_of_reading_the_fleet(fleet: Site) -> None:
    site = fleet
    with store_calls(site) as calls:
        _, shown = await site.call("GET", "/workers")
    assert calls["workers"] == 1
    assert calls["counts"] <= 2  # one is the leader's own
    assert not calls["list"] + calls["fetch"]
    taken = [gpu["memory_reserved_bytes"] for each in shown["workers"] for gpu in each["gpu_info"]]
    assert (shown["total"], sum(taken)) == (WORKERS, 2 * WORKERS * 16 * 2**30)
    with store_calls(site) as calls:
        _, one = await site.call("GET", "/workers/w07")
    assert (calls["workers"], calls["list"], calls["fetch"], one["current_tasks"]) == (1, 0, 0, 2)
    assert (await site.call("GET", "/workers/w99"))[0] == 404

    await site.call("GET", "/cluster/status")
    with store_calls(site) as calls:
        _, status = await site.call("GET", "/cluster/status")
    assert (status["active_workers"], calls["worker_stamps"]) == (WORKERS, 1)
    assert not calls["fetch"] + calls["workers"] + calls["list"], "nothing changed, so no row is read"
    await site.call("POST", "/workers/w03/cordon")
    with store_calls(site) as calls:
        await site.call("GET", "/cluster/status")
    assert calls["fetch"] == 1, "one worker changed"

    queued = await site.submit(resources={"gpu_memory": "16GiB"})
    for _ in range(2):
        with store_calls(site) as calls:
            _, explained = await site.call("GET", f"/tasks/{queued}/explain")
        assert len(explained["workers"]) == WORKERS
    assert not calls["workers"], "the second time nothing had changed"


async def test_status_of_a_follower_equals_that_of_the_leader(new_site: NewSite) -> None:
    one: Site = await new_site("one")
    assert one.running.embedded is not None
    two: Site = await new_site("two", redis_url=one.running.embedded.url)
    worker = await one.join("a", max_concurrent=8)
    for others in (0, 5):
        readings = scripted_worker.reading(0, others_gib=others), scripted_worker.reading(1)
        await worker.send(session.Report(readings, 1024))
        name = await one.submit(resources={"gpu_memory": "2GiB"})
        await worker.take()
        async with asyncio.timeout(PATIENCE_S):
            while (await one.task(name))["status"] != "running":
                pass
        await two.running.manager.overview.cluster()
        answers = [(await site.call("GET", "/cluster/status"))[1] for site in (one, two)]
        for shown in answers:
            del shown["uptime"], shown["uptime_seconds"]
        assert answers[0] == answers[1]


async def test_counters_equal_a_recount_after_random_events(site: Site) -> None:
    """Submit, finish, cancel, lose the worker; the metrics then show what a walk over all tasks finds."""
    chance = random.Random(17)
    worker = await site.join("w", max_concurrent=3)
    taken: list[session.Assign] = []
    names: list[str] = []
    for _ in range(40):
        match chance.randrange(4):
            case 0 | 1:
                level = chance.choice(["low", "normal", "high"])
                names.append(await site.submit(resources={"gpus": 0}, priority=level, max_retries=1))
            case 2 if names:
                await site.call("DELETE", f"/tasks/{chance.choice(names)}")
            case 3:
                taken += [each for each in worker.received if isinstance(each, session.Assign)][len(taken) :]
                if taken:
                    await worker.finish(chance.choice(taken), 1)
    await worker.vanish()
    dispatcher = site.running.manager.leader.dispatcher
    assert dispatcher is not None
    async with asyncio.timeout(30):
        while dispatcher.depth() != (counted := _recounted(dispatcher)):
            await site.call("GET", "/health")
    assert sum(counted.waiting.values()) + sum(counted.running_of.values()) == len(dispatcher.tasks) > 0
    async with site.http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    shown = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("queue_depth")}
    assert shown == {f'queue_depth{{priority="{level}"}}': n for level, n in counted.waiting.items()}


def _recounted(dispatcher: Any) -> QueueDepth:
    """Ask the engine for the state of every task, as a scrape once did."""
    found = QueueDepth()
    for name, known in dispatcher.tasks.items():
        waits = dispatcher.engine.state_of(name) not in ("held", "in flight")
        (found.waiting_of if waits else found.running_of)[known.spec.tenant] += 1
        if waits:
            found.waiting[known.spec.priority] += 1
    return found
