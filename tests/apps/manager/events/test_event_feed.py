"""Tests of watching events: each once, resumed from an id, only those of the owner, and no hidden gap."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from gpu_orchestrator.adapters.store.keys import KeyRow
from gpu_orchestrator.apps.manager.access import keys
from gpu_orchestrator.apps.manager.access.keys import Scope
from gpu_orchestrator.apps.manager.events import event_feed
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.support.fleet import eventually

pytestmark = pytest.mark.real
Event = dict[str, Any]


class Watch:
    """One connection to /events; keeps the id it would resume from, as a browser does."""

    def __init__(self, answer: aiohttp.ClientResponse, last: str) -> None:
        self._answer, self.last = answer, last

    async def next(self) -> Event:
        async with asyncio.timeout(60):
            while True:
                fields: dict[str, str] = {}
                while line := (await self._answer.content.readline()).decode().rstrip("\n"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
                assert fields, "the stream ended"
                self.last = fields.get("id", self.last)
                if "data" in fields:
                    event: Event = json.loads(fields["data"])
                    assert (event["event"], event["id"]) == (fields["event"], fields["id"])
                    return event

    async def until(self, name: str) -> list[Event]:
        found = [await self.next()]
        while found[-1]["event"] != name:
            found.append(await self.next())
        return found


@contextlib.asynccontextmanager
async def watching(site: Site, last: str = "", key: str = "", **query: str) -> AsyncIterator[Watch]:
    headers = {"Last-Event-ID": last} if last else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    async with site.http.get("/events", headers=headers, params=query) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        first = (await answer.content.readuntil(b"\n\n")).decode()
        yield Watch(answer, first.split("id: ")[1].strip())


async def key_of(site: Site, scope: Scope, owner: str) -> str:
    """Return a new key, whose id is its owner's name."""
    secret, manager = keys.make(), site.running.manager
    row = KeyRow(owner, keys.digest_of(secret).hex(), owner, owner, scope)
    assert await manager.store.keys.save(row) == "saved"
    await manager.key_sync.refresh()
    return secret


async def nobody_watches(site: Site) -> None:
    """Wait until the server has noticed that all watchers are gone."""

    async def has_no_watchers() -> bool:
        return not len(site.running.manager.feed)

    await eventually(has_no_watchers, 60)


async def emit(site: Site, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await site.running.manager.store.events.emit("scale_event", Numbered(str(number)))


class Numbered(msgspec.Struct, frozen=True):
    task_id: str


async def test_task_emits_an_event_for_each_step(site: Site) -> None:
    async with watching(site) as watch:
        worker = await site.join()
        assert (await watch.next())["event"] == "worker_registered"
        name = await site.submit()
        await worker.finish(await worker.take(), 1)
        started, completed = await watch.until("task_completed")
        assert (started["event"], started["data"]["task_id"]) == ("task_started", name)
        assert completed["data"]["worker_id"] == "w"
        assert completed["timestamp"] >= started["timestamp"] > "2020"


async def test_watcher_that_reconnects_often_sees_every_event_once(site: Site) -> None:
    """Events come all the time; the watcher disconnects after every few and resumes from the last id."""
    seen: list[str] = []
    async with watching(site) as watch:
        last = watch.last
    writing = asyncio.create_task(emit(site, 400))
    while len(seen) < 400:
        async with watching(site, last) as watch:
            for _ in range(37):
                event = await watch.next()
                seen.append(event["data"]["task_id"])
                last = watch.last
                if len(seen) == 400:
                    break
    await writing
    assert seen == [str(number) for number in range(400)]


async def test_websocket_sends_the_same_events(site: Site) -> None:
    await emit(site, 5)
    _, page = await site.call("GET", "/cluster/events?after=0")
    assert [each["data"]["task_id"] for each in page["events"]] == list("01234")
    async with site.http.ws_connect(f"/ws?after={page['events'][1]['id']}") as socket:
        assert [await socket.receive_json(timeout=60) for _ in range(3)] == page["events"][2:]
        await emit(site, 1, first=5)
        assert (await socket.receive_json(timeout=60))["data"]["task_id"] == "5"


async def test_pages_list_every_event_once(site: Site) -> None:
    await emit(site, 25)
    seen, after = [], "0"
    while True:
        _, page = await site.call("GET", f"/cluster/events?after={after}&limit=10")
        if not page["events"]:
            break
        seen += [each["data"]["task_id"] for each in page["events"]]
        assert not page["reset"]
        after = page["next"]
    assert seen == [str(number) for number in range(25)]
    _, latest = await site.call("GET", "/cluster/events?limit=3")
    assert [each["data"]["task_id"] for each in latest["events"]] == ["22", "23", "24"]


async def test_watcher_behind_the_kept_events_gets_a_reset(new_site: NewSite) -> None:
    site = await new_site(events_kept=100)
    async with watching(site) as watch:
        last = watch.last
        await emit(site, 1)
        await watch.next()
        last = watch.last
    await nobody_watches(site)  # until then the window in memory still has all events
    await emit(site, 1200, first=1)
    async with watching(site, last) as watch:
        reset = await watch.next()
        assert (reset["event"], reset["data"]["after"]) == ("reset", last)
        first = int((await watch.next())["data"]["task_id"])
        assert first > 500
        rest = [int((await watch.next())["data"]["task_id"]) for _ in range(1200 - first)]
        assert rest == list(range(first + 1, 1201)), "nothing is missing after the gap"


async def test_id_of_another_store_is_a_reset_and_a_malformed_id_is_refused(site: Site) -> None:
    async with watching(site, "9999999999999-7") as watch:
        reset = await watch.next()
        assert reset["event"] == "reset"
        await emit(site, 1)
        assert (await watch.next())["data"]["task_id"] == "0"
    assert (await site.call("GET", "/cluster/events?after=yesterday"))[0] == 422
    assert (await site.call("GET", "/events?after=yesterday"))[0] == 422


async def test_key_sees_events_of_its_owner_and_of_the_cluster_only(site: Site) -> None:
    mine, other = await key_of(site, "submit", "me"), await key_of(site, "submit", "you")
    async with watching(site, key=mine) as watch, watching(site) as admin:
        worker = await site.join()
        for key in (other, mine):
            headers = {"Authorization": f"Bearer {key}"}
            await site.call("POST", "/tasks", {"task_type": "echo"}, headers=headers)
            await worker.finish(await worker.take(), 1)
        seen = await watch.until("task_completed")
        everything = [*await admin.until("task_completed"), *await admin.until("task_completed")]
    assert [each["event"] for each in seen] == ["worker_registered", "task_started", "task_completed"]
    assert len(everything) == 5
    headers = {"Authorization": f"Bearer {mine}"}
    _, page = await site.call("GET", "/cluster/events?after=0", headers=headers)
    assert page["events"] == seen
    assert page["next"] == everything[-1]["id"]


async def test_events_need_the_read_scope(site: Site) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/events", "/cluster/events"):
        assert (await site.call("GET", path, headers=headers))[0] == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await site.http.ws_connect("/ws", headers=headers)
    assert refused.value.status == 403


async def test_revoked_key_ends_its_watch(site: Site) -> None:
    key = await key_of(site, "read", "me")
    headers = {"Authorization": f"Bearer {key}"}
    async with site.http.ws_connect("/ws", headers=headers) as socket:
        assert await site.running.manager.store.keys.revoke("me")
        message = await socket.receive(timeout=60)
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert message.extra == "this key may no longer be used"


async def test_watcher_above_max_watchers_is_refused(new_site: NewSite) -> None:
    site = await new_site(max_watchers=1)
    async with watching(site):
        status, answer = await site.call("GET", "/events")
        assert (status, "MAX_WATCHERS" in answer["error"]["message"]) == (503, True)
    await nobody_watches(site)
    async with watching(site):
        pass


async def test_one_owner_gets_at_most_half_of_the_watchers(new_site: NewSite) -> None:
    site = await new_site(max_watchers=4)
    ann, bob = await key_of(site, "read", "ann"), await key_of(site, "read", "bob")
    async with watching(site, key=ann), watching(site, key=ann):
        headers = {"Authorization": f"Bearer {ann}"}
        status, answer = await site.call("GET", "/events", headers=headers)
        assert (status, "half of MAX_WATCHERS are ann's" in answer["error"]["message"]) == (503, True)
        async with watching(site, key=bob), watching(site):
            pass


async def test_slow_watcher_does_not_grow_the_window(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that does not read delays no other; it still gets all events when it reads again."""
    most = 512
    monkeypatch.setattr(event_feed, "WINDOW", most)
    names = [f"{number:01000}" for number in range(most * 2 + 500)]  # together more than a socket takes in
    async with watching(site) as slow, watching(site) as fast:
        for name in names:
            await site.running.manager.store.events.emit("scale_event", Numbered(name))
        assert [(await fast.next())["data"]["task_id"] for _ in names] == names
        window = site.running.manager.feed._window
        assert len(window) <= 2 * most
        assert [(await slow.next())["data"]["task_id"] for _ in names] == names
