"""A large task and a gang beside a stream of small tasks, on a whole server: places are kept for them."""

import asyncio
from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import NewSite, Site
from tests.support.patience import PATIENCE_S
from tests.support.scripted_worker import ScriptedWorker

ONE = {"gpus": 1}
LARGE: dict[str, dict[str, Any]] = {
    "task": {"resources": {"gpus": 2}},
    "gang": {"resources": ONE, "gang": {"size": 2}},
}


class Stream:
    """Small tasks on a worker of two GPUs. The next one ends only when another has begun in place of the one
    before, as long as others begin: so both GPUs are never free at once."""

    def __init__(self, site: Site, worker: ScriptedWorker) -> None:
        self.site, self.worker = site, worker
        self.running: list[session.Assign] = []
        self.begun: list[str] = []

    async def begin(self) -> None:
        for _ in range(4):
            await self.site.submit(resources=ONE)
        for _ in range(2):
            self.running.append(await self.worker.take())

    async def step(self) -> bool:
        """End one; return True if another small one began."""
        await self.site.submit(resources=ONE)
        await self.worker.finish(self.running.pop(0))
        begun = await self._next()
        if begun is not None:
            self.begun.append(begun.task)
            self.running.append(begun)
        return begun is not None

    async def _next(self) -> session.Assign | None:
        """Return what begins; None if a place is kept."""
        dispatcher = self.site.running.manager.leader.dispatcher
        assert dispatcher is not None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if any(isinstance(each, session.Assign) for each in self.worker.received):
                    return await self.worker.take()
                if dispatcher.engine.kept() or not self.running:
                    return None
                await asyncio.sleep(0.001)


async def submit(site: Site, what: str) -> str:
    status, answer = await site.call("POST", "/tasks", {"task_type": "echo", **LARGE[what]})
    assert status == 202, answer
    return str(answer["task_id"])


async def explained(site: Site, name: str) -> str:
    status, answer = await site.call("GET", f"/tasks/{name}/explain")
    assert status == 200, answer
    return str(answer["reason"])


@pytest.mark.parametrize("what", list(LARGE))
async def test_small_tasks_pass_it_forever_without_reservations(new_site: NewSite, what: str) -> None:
    site: Site = await new_site(reservations=0)
    stream = Stream(site, await site.join(address="10.0.0.1"))
    await stream.begin()
    large = await submit(site, what)
    for _ in range(50):
        assert await stream.step()
    assert (await site.task(large))["status"] == "queued"


@pytest.mark.parametrize("what", list(LARGE))
async def test_place_is_kept_for_what_small_tasks_pass(new_site: NewSite, what: str) -> None:
    site: Site = await new_site()
    stream = Stream(site, await site.join(address="10.0.0.1"))
    await stream.begin()
    large = await submit(site, what)
    async with asyncio.timeout(PATIENCE_S):
        while await stream.step():
            pass
    waits = await site.task(large)
    assert waits["status"] == "queued"
    assert "on w is kept: it begins by " in waits["reason"]
    assert "on w is kept: it begins by " in await explained(site, large)
    told = await explained(site, await site.submit(resources=ONE))
    assert (
        f"the place on w that would take it is kept for {large.removesuffix('-0')}, which begins by " in told
    )
    await stream.worker.finish(stream.running.pop())
    begun = {(await stream.worker.take()).task for _ in range(2 if what == "gang" else 1)}
    assert large in begun


async def test_every_server_tells_of_places_and_a_new_leader_keeps_them_again(new_site: NewSite) -> None:
    first: Site = await new_site("one")
    assert first.running.embedded is not None
    second: Site = await new_site("two", redis_url=first.running.embedded.url)
    stream = Stream(first, await first.join())
    await stream.begin()
    large = await submit(first, "task")
    async with asyncio.timeout(PATIENCE_S):
        while await stream.step():
            pass
        while "is kept: it begins by " not in await explained(second, large):  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    small = await first.submit(resources=ONE)
    assert "the place on w that would take it is kept for" in await explained(second, small)
    leader = first.running.manager.leader
    leader._invalidate()
    async with asyncio.timeout(PATIENCE_S):
        await first.ready()
        stream.running.append(await stream.worker.take())  # the other GPU is kept for nobody now
        while await stream.step():
            pass
    await stream.worker.finish(stream.running.pop())
    assert (await stream.worker.take()).task == large
