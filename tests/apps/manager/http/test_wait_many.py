"""One request that waits for many tasks."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gpu_orchestrator.apps.manager.http import wait_stream
from gpu_orchestrator.apps.manager.tasks.completion import CompletionWaiters
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.events.test_event_feed import key_of

pytestmark = pytest.mark.real
NO_GPU = {"gpus": 0}


class Waiting:
    """The events of one such request, as they come."""

    def __init__(self, site: Site, names: Sequence[str], **headers: str) -> None:
        self.told: list[tuple[str, Any]] = []
        self.news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read(site, list(names), headers))

    async def until(self, count: int) -> list[tuple[str, Any]]:
        async with asyncio.timeout(20):
            while len(self.told) < count and not self._reading.done():
                self.news.clear()
                await asyncio.wait(
                    [self._reading, waits := asyncio.ensure_future(self.news.wait())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                waits.cancel()
        return self.told

    async def all(self) -> list[tuple[str, Any]]:
        """Return all events once the server has ended the answer."""
        async with asyncio.timeout(20):
            await self._reading
        return self.told

    async def _read(self, site: Site, names: list[str], headers: dict[str, str]) -> None:
        async with site.http.post("/tasks/wait", json={"task_ids": names}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            event = ""
            async for line in answer.content:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    event = value
                elif field == "data":
                    self.told.append((event, json.loads(value)))
                    self.news.set()


def ended(told: Sequence[tuple[str, Any]]) -> list[tuple[str, str, Any]]:
    return [
        (event, data["task_id"], data.get("result")) if data else (event, "", None) for event, data in told
    ]


async def test_tasks_are_told_as_they_end_each_once(site: Site) -> None:
    worker = await site.join(max_concurrent=8)
    before, first, second, waits = [await site.submit(resources=NO_GPU) for _ in range(4)]
    assigned = {each.task: each for each in [await worker.take() for _ in range(4)]}
    await worker.finish(assigned[before], "before")
    await site.wait(before)
    waiting = Waiting(site, [first, before, second, waits, "nonsense", first])
    assert sorted(ended(await waiting.until(2))) == [
        ("missing", "nonsense", None),
        ("task", before, "before"),
    ]
    await worker.finish(assigned[second], "second")
    assert ended(await waiting.until(3))[2:] == [("task", second, "second")]
    await worker.finish(assigned[first], "first")
    await worker.finish(assigned[waits], "last")
    assert ended(await waiting.all())[3:] == [
        ("task", first, "first"),
        ("task", waits, "last"),
        ("end", "", None),
    ]
    assert not site.running.manager.waiters._waiting


@pytest.mark.parametrize("how", ["told", "message lost"])
async def test_tasks_that_end_through_another_process_are_told(
    new_site: NewSite, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "message lost":
        monkeypatch.setattr(CompletionWaiters, "ended", lambda *_: None)
        monkeypatch.setattr(wait_stream, "RECHECK_S", 0.05)
    site: Site = await new_site()
    other: Site = await new_site("two", redis_url=site.running.manager.store.database.url)
    worker = await site.join()
    name, cancelled = await site.submit(), await site.submit(not_before="1h")
    assign = await worker.take()
    waiting = Waiting(other, [name, cancelled])
    await worker.finish(assign, 7)
    assert ended(await waiting.until(1)) == [("task", name, 7)]
    await site.call("DELETE", f"/tasks/{cancelled}")
    (_, task), end = (await waiting.all())[1:]
    assert (task["task_id"], task["status"], end[0]) == (cancelled, "cancelled", "end")


async def test_tasks_of_another_owner_are_missing(site: Site) -> None:
    mine, other = await key_of(site, "submit", "me"), await key_of(site, "submit", "you")
    headers = {"Authorization": f"Bearer {mine}"}
    _, accepted = await site.call("POST", "/tasks", {"task_type": "echo"}, headers=headers)
    name = accepted["task_id"]
    told = await Waiting(site, [name], Authorization=f"Bearer {other}").all()
    assert [event for event, _ in told] == ["missing", "end"]
    waiting = Waiting(site, [name], Authorization=f"Bearer {mine}")
    await site.call("DELETE", f"/tasks/{name}", headers=headers)
    assert [event for event, _ in await waiting.all()] == ["task", "end"]


async def test_every_hundred_tasks_count_as_one_request(site: Site) -> None:
    headers = {"Authorization": f"Bearer {await key_of(site, 'submit', 'me')}"}
    body = {"task_ids": [f"t{number}" for number in range(10_000)]}
    assert (await site.call("POST", "/tasks/wait", {"task_ids": []}))[0] == 422
    async with site.http.post("/tasks/wait", json=body, headers=headers) as answer:
        assert answer.status == 200
        assert (await answer.read()).count(b"event: missing") == 10_000
    status, refused = await site.call("POST", "/tasks/wait", body, headers=headers)
    assert (status, refused["error"]["code"]) == (429, "too_many_requests")
