"""The partial results of a task over HTTP: as JSON, and followed as server-sent events."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gpu_orchestrator.adapters.store.errors import Full, Rejected
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.http import value_stream
from gpu_orchestrator.apps.manager.tasks import task_values
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.events.test_event_feed import key_of
from tests.apps.manager.http.test_logs import FOLLOW, Follower, began
from tests.support import stores
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.real


@contextlib.asynccontextmanager
async def following(site: Site, name: str, query: str = "", **headers: str) -> AsyncIterator[Follower]:
    path = f"/tasks/{name}/stream{query}"
    async with site.http.get(path, headers={**FOLLOW, **headers}) as answer:
        assert answer.status == 200, await answer.text()
        yield Follower(answer)


async def sends(worker: ScriptedWorker, assign: session.Assign, at: int, *values: Any, **rest: Any) -> Any:
    """Send values, and return the answer."""
    raw = tuple(msgspec.Raw(msgspec.json.encode(each)) for each in values)
    await worker.send(session.Values(assign.task, assign.attempt, at, raw, **rest))
    return await worker.receive(session.Taken)


async def shown(site: Site, name: str, query: str = "") -> Any:
    status, answer = await site.call("GET", f"/tasks/{name}/stream{query}")
    assert status == 200, answer
    return answer


async def test_values_are_shown_and_go_on_from_any_place(site: Site) -> None:
    worker, assign = await began(site)
    assert await sends(worker, assign, 0, 0, "é\n", [2]) == session.Taken(assign.task, 1, 3)
    part = await shown(site, assign.task)
    assert (part["values"], part["first"], part["next"]) == ([0, "é\n", [2]], 0, "1-3")
    assert (part["attempt"], part["missed"], part["ended"]) == (1, 0, False)
    assert (await shown(site, assign.task[:12], "?after=1-1"))["values"] == ["é\n", [2]]
    await worker.finish(assign)
    assert (await shown(site, assign.task, "?after=1-3"))["ended"]
    for query, said in (("?after=3", "'3' is not a place"), ("?after=1-x", "not a place"), ("?limit=0", "")):
        status, answer = await site.call("GET", f"/tasks/{assign.task}/stream{query}")
        assert (status, said in answer["error"]["message"]) == (422, True)
    assert (await site.call("GET", "/tasks/none/stream"))[0] == 404


async def test_follower_gets_values_as_they_come_and_the_end(site: Site) -> None:
    worker, assign = await began(site)
    async with following(site, assign.task) as follower:
        assert await follower.next() == ("attempt", {"attempt": 1}, "1-0")
        await sends(worker, assign, 0, "a")
        name, data, place = await follower.next()
        assert (name, data["values"], place) == ("values", ["a"], "1-1")
    async with following(site, assign.task, **{"Last-Event-ID": place}) as follower:
        await sends(worker, assign, 1, "b", "c")
        name, data, place = await follower.next()
        assert (data["first"], data["values"], place) == (1, ["b", "c"], "1-3")
        await worker.finish(assign)
        assert await follower.next() == ("end", {"status": "completed", "attempt": 1, "count": 3}, "")
        assert await follower.rest() == ""


async def test_follower_is_told_of_a_new_attempt(site: Site) -> None:
    worker, assign = await began(site)
    await sends(worker, assign, 0, "a", "b")
    async with following(site, assign.task, "?after=1-1") as follower:
        assert (await follower.next())[1]["values"] == ["b"]
        error = session.TaskError("Odd", "again", retryable=True)
        await worker.send(session.Failed(assign.task, 1, error))
        again = await worker.take()
        assert await follower.next() == ("attempt", {"attempt": 2}, "2-0")
        await sends(worker, again, 0, "A")
        assert (await follower.next())[1]["values"] == ["A"]
    assert (await shown(site, assign.task, "?after=1-2"))["values"] == ["A"]


async def test_others_see_nothing(site: Site) -> None:
    worker, assign = await began(site)
    await sends(worker, assign, 0, "secret")
    stranger = {"Authorization": f"Bearer {await key_of(site, 'submit', 'stranger')}"}
    for headers in (stranger, stranger | FOLLOW):
        async with site.http.get(f"/tasks/{assign.task}/stream?reader=r", headers=headers) as answer:
            assert answer.status == 404
            assert "secret" not in await answer.text()
    async with aiohttp.ClientSession(site.running.url) as http:
        assert (await http.get(f"/tasks/{assign.task}/stream")).status == 401


async def test_long_stream_is_sent_in_segments(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_stream, "SEGMENT_BYTES", 3000)
    monkeypatch.setattr(value_stream, "PART_BYTES", 1000)
    worker, assign = await began(site)
    sent = ["x" * 500 for _ in range(40)]
    for at in range(0, 40, 10):
        await sends(worker, assign, at, *sent[at : at + 10])
    await worker.finish(assign)
    found, place, segments, name = list[str](), "", 0, ""
    while name != "end":
        segments += 1
        async with following(site, assign.task, f"?after={place}") as follower:
            while (event := await follower.next())[0] not in ("more", "end"):
                found += event[1].get("values", [])
                place = event[2]
            name = event[0]
    assert found == sent
    assert 3 <= segments <= 7


async def test_task_waits_for_a_reader_that_is_behind(new_site: NewSite) -> None:
    """The reader says what it has by asking for the rest, also long before a segment is full."""
    site = await new_site(task_values_kb=8)
    worker = await site.join()
    ann = {"Authorization": f"Bearer {await key_of(site, 'submit', 'ann')}"}
    body = {"task_type": "echo", "resources": {"gpus": 0}}
    _, accepted = await site.call("POST", "/tasks", body, headers=ann)
    name, assign = accepted["task_id"], await worker.take()
    value, sent, got, place = "x" * 3000, 0, 0, "1-0"
    async with following(site, name, "?reader=laptop", **ann) as follower:
        assert (await follower.next())[0] == "attempt"
        while not (await sends(worker, assign, sent, value)).later:
            sent += 1
            assert sent < 10
        while (event := await follower.next())[0] == "values":
            got, place = got + len(event[1]["values"]), event[2]
        assert (event[0], got, place) == ("more", sent, f"1-{sent}")
    async with following(site, name, f"?reader=laptop&after={place}", **ann) as follower:
        while (await sends(worker, assign, sent, "next")).later:  # until the server has seen the request
            pass
        assert (await follower.next())[1]["values"] == ["next"]


@pytest.mark.parametrize(
    ("error", "later"),
    [
        pytest.param(Rejected("busy"), True, id="the store is away: once more"),
        pytest.param(Full("full"), False, id="the store is full: a gap"),
    ],
)
async def test_trouble_of_the_store_loses_nothing_or_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, later: bool
) -> None:
    worker, assign = await began(site)

    async def fails(*_: Any) -> None:
        raise error

    with monkeypatch.context() as trouble:
        trouble.setattr(site.running.manager.store.values, "append", fails)
        answer = await sends(worker, assign, 0, "a")
        assert (answer.later, answer.values) == (later, 0 if later else 1)
    await sends(worker, assign, answer.values, "b", taken=answer.values)
    part = await shown(site, assign.task)
    assert (part["values"], part["missed"]) == (["b"], 0 if later else 1)


async def test_waiting_values_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_values, "MOST_WAITING_BYTES", 10)
    worker, assign = await began(site)
    assert (await sends(worker, assign, 0, "x" * 20)).later
    assert not (await sends(worker, assign, 0, "x")).later


async def test_reader_at_another_process_is_woken(
    new_site: NewSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_stream, "SOON_S", 300.0)
    async with stores.server("external", tmp_path) as url:
        first, second = await new_site("one", redis_url=url), await new_site("two", redis_url=url)
        worker, assign = await began(first)
        async with following(second, assign.task, "?reader=far") as follower:
            await follower.next()
            await sends(worker, assign, 0, "a")
            assert (await follower.next())[1]["values"] == ["a"]
            await worker.finish(assign)
            assert (await follower.next())[0] == "end"


async def test_line_ends_between_the_parts_of_a_value_stay_inside_it(site: Site) -> None:
    worker, assign = await began(site)
    await worker.send(session.Values(assign.task, 1, 0, (msgspec.Raw(b'{"a":\r\n1}'), msgspec.Raw(b"2"))))
    await worker.receive(session.Taken)
    async with following(site, assign.task) as follower:
        await follower.next()
        assert (await follower.next())[1]["values"] == [{"a": 1}, 2]


async def test_values_of_an_attempt_of_another_worker_are_dropped(site: Site) -> None:
    _, assign = await began(site)
    other = await site.join("other")
    await sends(other, assign, 0, "not mine")
    assert (await shown(site, assign.task))["values"] == []
