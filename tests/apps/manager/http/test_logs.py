"""The log of a task over HTTP: as JSON, as text, and followed as server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gpu_orchestrator.adapters.store.errors import Rejected
from gpu_orchestrator.api import session
from gpu_orchestrator.api.units import MIB
from gpu_orchestrator.apps.manager.tasks import task_logs
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.apps.manager.events.test_event_feed import key_of
from tests.support.fleet import eventually
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.real
FOLLOW = {"Accept": "text/event-stream"}


class Follower:
    """One connection that follows a log."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> tuple[str, Any, str]:
        """Return the next event: its name, its data, its id."""
        async with asyncio.timeout(20):
            while True:
                fields: dict[str, str] = {}
                while line := (await self._answer.content.readline()).decode().rstrip("\n"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
                assert fields, "the stream ended"
                if "data" in fields:
                    return fields["event"], json.loads(fields["data"]), fields.get("id", "")

    async def rest(self) -> str:
        async with asyncio.timeout(20):
            return (await self._answer.content.read()).decode()


@contextlib.asynccontextmanager
async def following(site: Site, name: str, **headers: str) -> AsyncIterator[Follower]:
    async with site.http.get(f"/tasks/{name}/logs", headers={**FOLLOW, **headers}) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield Follower(answer)


async def began(site: Site, **rest: Any) -> tuple[ScriptedWorker, session.Assign]:
    worker = await site.join(**rest)
    await site.submit()
    return worker, await worker.take()


async def says(worker: ScriptedWorker, assign: session.Assign, at: int, text: str) -> None:
    await worker.send(session.Log(assign.task, assign.attempt, at, text))


async def shown(site: Site, name: str, query: str = "") -> Any:
    status, answer = await site.call("GET", f"/tasks/{name}/logs{query}")
    assert status == 200, answer
    return answer


async def until_shown(site: Site, name: str, text: str) -> None:
    async def is_shown() -> bool:
        return bool((await shown(site, name))["text"] == text)

    await eventually(is_shown, 60)


async def test_welcome_says_how_much_is_kept(new_site: NewSite) -> None:
    for kept_mb, log_kb in ((1, 5), (0, 0)):
        site = await new_site(f"site-{kept_mb}", task_log_kb=5, task_logs_mb=kept_mb)
        async with site.http.ws_connect(
            "/workers/w/session", headers={"Authorization": f"Bearer {TOKEN}"}
        ) as socket:
            await socket.send_bytes(session.frame(session.Hello("w", "i")))
            (welcome,) = session.read_by_worker((await socket.receive()).data)
        assert isinstance(welcome, session.Welcome)
        assert welcome.log_kb == log_kb


async def test_beginning_of_an_id_is_enough(site: Site) -> None:
    worker, assign = await began(site)
    await says(worker, assign, 0, "one\n")
    await until_shown(site, assign.task[:8], "one\n")
    assert (await shown(site, assign.task[:4]))["task_id"] == assign.task
    async with following(site, assign.task[:4]) as follower:
        assert (await follower.next())[1]["text"] == "one\n"


async def test_log_is_shown_in_parts_and_as_text(site: Site) -> None:
    worker, assign = await began(site)
    name = assign.task
    assert await shown(site, name) == {
        "task_id": name,
        "attempt": 1,
        "status": (await site.task(name))["status"],
        "offset": 0,
        "next": 0,
        "text": "",
        "omitted_bytes": 0,
        "ended": False,
    }
    text = "first line\nsecond line €\n"
    await says(worker, assign, 0, text)
    await until_shown(site, name, text)
    page = await shown(site, name, "?limit=16")
    assert (page["text"], page["next"], page["ended"]) == ("first line\nsecon", 16, False)
    page = await shown(site, name, f"?after={page['next']}")
    assert (page["offset"], page["text"], page["next"]) == (16, "d line €\n", len(text.encode()))
    await says(worker, assign, 1000, "third line\n")
    assert await worker.finish(assign, 1)
    assert (await shown(site, name, f"?after={page['next']}"))["omitted_bytes"] == 1000 - page["next"]
    async with site.http.get(f"/tasks/{name}/logs", headers={"Accept": "text/plain"}) as answer:
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert await answer.text() == f"{text}[{1000 - page['next']} bytes are not kept]\nthird line\n"
        after = answer.headers["X-Next-Offset"]
    async with site.http.get(f"/tasks/{name}/logs?after=20", headers={"Accept": "text/plain"}) as answer:
        assert (await answer.text()).startswith("ne €\n")
    final = await shown(site, name, f"?after={after}")
    assert (final["text"], final["ended"], final["status"]) == ("", True, "completed")


async def test_text_sent_before_an_outcome_is_stored_before_it(site: Site) -> None:
    """All arrives in one frame; a client that waits for the task reads all of its log."""
    worker, assign = await began(site)
    logs = [session.Log(assign.task, 1, number * 5, f"l {number:02}\n") for number in range(50)]
    error = session.TaskError("ValueError", "no")
    waiting = asyncio.create_task(site.wait(assign.task))
    await worker.send(*logs, session.Progress(assign.task, 1, "l 49"), session.Failed(assign.task, 1, error))
    ended = await waiting
    assert (ended["status"], ended["progress"]) == ("failed", "l 49")
    page = await shown(site, assign.task)
    assert (page["text"], page["ended"]) == ("".join(f"l {number:02}\n" for number in range(50)), True)


async def test_follower_gets_text_as_it_comes_and_one_end(site: Site) -> None:
    name = await site.submit()
    async with following(site, name) as follower:
        worker = await site.join()
        assign = await worker.take()
        await says(worker, assign, 0, "one\n")
        kind, data, position = await follower.next()
        assert (kind, data["text"], position) == ("log", "one\n", "4")
        await says(worker, assign, 4, "two\n")
        assert (await follower.next())[1]["text"] == "two\n"
        error = session.TaskError("Busy", "later", retryable=True)
        await worker.send(session.Failed(name, 1, error))
        again = await worker.take()
        await says(worker, again, 0, "three\n")
        assert (await follower.next())[1]["text"] == "--- attempt 2 on w ---\nthree\n"
        await worker.finish(again)
        assert (await follower.next())[:2] == ("end", {"status": "completed"})
        assert await follower.rest() == "", "the server closes the stream"
    async with following(site, name, **{"Last-Event-ID": "4"}) as follower:
        assert (await follower.next())[1]["text"].startswith("two\n")
    async with following(site, name, **{"Last-Event-ID": "37"}) as follower:
        assert (await follower.next())[0] == "end"
    status, answer = await site.call("GET", f"/tasks/{name}/logs", headers={**FOLLOW, "Last-Event-ID": "x"})
    assert (status, "Last-Event-ID" in answer["error"]["message"]) == (422, True)


async def test_follower_of_another_process_gets_all_text(new_site: NewSite, tmp_path: Any) -> None:
    """The worker is connected to one process, the client to another on the same store."""
    first = await new_site("one")
    url = first.running.embedded.url
    second = await new_site("two", redis_url=url)
    worker, assign = await began(first)
    async with following(second, assign.task) as follower:
        for number in range(3):
            await says(worker, assign, number * 2, f"{number}\n")
            assert (await follower.next())[1]["text"] == f"{number}\n"
        await worker.finish(assign)
        assert (await follower.next())[0] == "end"


async def test_task_of_another_owner_has_no_log(site: Site) -> None:
    mine, other = await key_of(site, "submit", "me"), await key_of(site, "submit", "you")
    headers = {"Authorization": f"Bearer {mine}"}
    _, accepted = await site.call("POST", "/tasks", {"task_type": "echo"}, headers=headers)
    path = f"/tasks/{accepted['task_id']}/logs"
    assert (await site.call("GET", path, headers=headers))[0] == 200
    assert (await site.call("GET", path))[0] == 200, "an admin sees all"
    for headers in ({"Authorization": f"Bearer {other}"}, {"Authorization": f"Bearer {other}", **FOLLOW}):
        status, answer = await site.call("GET", path, headers=headers)
        assert (status, "there is no task" in answer["error"]["message"]) == (404, True)
    assert (await site.call("GET", "/tasks/nonsense/logs"))[0] == 404


async def test_followers_count_as_watchers(new_site: NewSite) -> None:
    site = await new_site(max_watchers=1)
    name = await site.submit()
    async with following(site, name):
        status, answer = await site.call("GET", "/events")
        assert (status, "MAX_WATCHERS" in answer["error"]["message"]) == (503, True)
        assert site.running.manager.feed._reading is None, "a follower reads no events"

    async def has_no_watchers() -> bool:
        return not len(site.running.manager.feed)

    await eventually(has_no_watchers, 60)


@pytest.mark.parametrize("prints", [False, True], ids=["silent", "prints all the time"])
async def test_revoked_key_ends_its_stream(site: Site, prints: bool) -> None:
    key = await key_of(site, "submit", "me")
    headers = {"Authorization": f"Bearer {key}"}
    _, accepted = await site.call("POST", "/tasks", {"task_type": "echo"}, headers=headers)
    worker = await site.join()
    assign = await worker.take()

    async def print_on() -> None:
        at = 0
        while True:
            await says(worker, assign, at, "on and on\n")
            at += 10
            await asyncio.sleep(0.01)

    printing = asyncio.create_task(print_on()) if prints else None
    async with following(site, accepted["task_id"], **headers) as follower:
        assert await site.running.manager.store.keys.revoke("me")
        assert (await follower.rest()).endswith(": this key may no longer be used\n\n")
    if printing is not None:
        printing.cancel()


async def test_stopping_server_ends_streams(site: Site) -> None:
    name = await site.submit()
    async with following(site, name) as follower:
        await site.running.manager.disconnect_clients()
        assert "the server is shutting down" in await follower.rest()


async def test_logs_give_way_to_tasks(new_site: NewSite) -> None:
    """With a store that logs alone would fill, tasks are accepted, and logs get what is left."""
    site = await new_site(max_store_mb=8, task_logs_mb=256, task_log_kb=1024)
    worker, assign = await began(site)
    manager = site.running.manager
    for number in range(8):
        await says(worker, assign, number << 19, "x" * (1 << 19))
        await worker.finish(assign)
        await site.submit()
        assign = await worker.take()
    room = await manager.store.database.room(8 * MIB)
    assert await manager.store.logs.size() > 3 * MIB
    assert room.used + 2_700_000 > room.most, "less is free than the next tasks need"
    await manager.overview.refresh(at_most_old_s=0.0)
    for _ in range(3):
        await site.submit(parameters={"text": "y" * 900_000})
    allowed = await manager.task_logs.measure()
    await manager.store.logs.trim(allowed)
    assert await manager.store.logs.size() <= allowed < 3 * MIB


async def test_logs_leave_the_rest_of_a_disk_to_outcomes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_orchestrator.adapters.disk.FRESH_S", -1.0)
    worker, assign = await began(site)
    await says(worker, assign, 0, "one\n")
    await until_shown(site, assign.task, "one\n")
    with monkeypatch.context() as nearly_full:
        nearly_full.setattr("gpu_orchestrator.adapters.disk.LOW_BYTES", 1 << 60)
        nearly_full.setattr("gpu_orchestrator.adapters.disk.LOW_PART", 1)
        await says(worker, assign, 4, "two\n")
        await worker.send(session.Failed(assign.task, 1, session.TaskError("Busy", "later", retryable=True)))
        assert (await worker.take()).attempt == 2
    assert (await shown(site, assign.task))["text"] == "one\n"
    await worker.send(session.Log(assign.task, 2, 8, "three\n"))
    await until_shown(site, assign.task, "one\n[8 bytes are not kept]\n--- attempt 2 on w ---\nthree\n")


async def test_follower_learns_that_a_log_was_dropped(site: Site) -> None:
    worker, assign = await began(site)
    await says(worker, assign, 0, "one\n")
    await until_shown(site, assign.task, "one\n")
    await site.running.manager.store.logs.trim(0)
    async with following(site, assign.task) as follower:
        kind, data, position = await follower.next()
        assert (kind, data["text"], data["omitted_bytes"], position) == ("log", "", 4, "4")
        await worker.finish(assign)
        assert (await follower.next())[0] == "end"
    async with site.http.get(f"/tasks/{assign.task}/logs", headers={"Accept": "text/plain"}) as answer:
        assert await answer.text() == "[4 bytes are not kept]\n"


async def test_outcome_does_not_wait_for_a_log_that_the_store_rejects(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_logs, "MOST_REJECTIONS", 2)
    worker, assign = await began(site)

    async def reject(*_: object) -> tuple[int, ...]:
        raise Rejected("its memory is full")

    monkeypatch.setattr(site.running.manager.store.logs, "append", reject)
    await says(worker, assign, 0, "lost\n")
    assert await worker.finish(assign, 1)
    assert (await site.wait(assign.task))["status"] == "completed"
