"""Tests of the audit log: it has every call that changes something, with key, action and result."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.store.audit import Stream
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.apps.manager.access import audit
from gpu_orchestrator.apps.manager.access.audit import Audit, Entry
from gpu_orchestrator.apps.manager.http import app, route_auth
from gpu_orchestrator.apps.manager.metrics import Metrics
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make

pytestmark = pytest.mark.real
NOT_AUDITED = {"/workers/{worker_id}/heartbeat"}
"""Heartbeats come several times a second; joining and leaving are audited."""


async def entries(site: Site, limit: int = 1000) -> list[dict[str, Any]]:
    """Return all entries, read page by page, newest first."""
    found: list[dict[str, Any]] = []
    before: int | None = 0
    while before is not None:
        status, page = await site.call("GET", f"/audit?limit={limit}&before={before}")
        assert status == 200, page
        found += page["entries"]
        before = page["next"]
    assert page["total"] == len(found)
    return found


async def test_every_call_that_may_change_something_is_audited(site: Site) -> None:
    called: dict[str, tuple[str, int]] = {}
    exempt = set()
    for number, each in enumerate(route_auth.guarded_routes(app.application(site.running.manager))):
        bare = each.path.removeprefix("/api/v1")
        if each.method == "GET" or each.route_guard.needs == "read":
            continue
        if not each.route_guard.is_audited:
            exempt.add(bare)
            continue
        headers = {"X-Correlation-ID": f"c-{number}"}
        path = re.sub(r"{\w+}", "0", each.path)
        if each.method == "WS":
            async with site.http.ws_connect(path, headers=headers):
                status = 101
        else:
            status, _ = await site.call(each.method, path, headers=headers)
        called[f"c-{number}"] = (f"{each.method} {bare}", status)
    found = {each["correlation_id"]: each for each in await entries(site)}
    assert {name: (found[name]["action"], found[name]["status"]) for name in called} == called
    assert {each["key_id"] for each in found.values()} == {"bootstrap"}
    assert {each["source"] for each in found.values()} == {"127.0.0.1"}
    assert exempt == NOT_AUDITED


async def test_entry_names_key_action_object_and_outcome(site: Site) -> None:
    ann = await make(site, "ann", scopes=["submit"])
    headers = {**bearing(ann["key"])["headers"], "X-Correlation-ID": "mine"}
    body = {"task_type": "echo", "resources": {"gpus": 0}}
    _, task = await site.call("POST", "/api/v1/tasks", body, headers=headers)
    _, batch = await site.call("POST", "/tasks/batch", {"tasks": [body] * 3}, headers=headers)
    await site.call("DELETE", f"/tasks/{task['task_id']}", headers=headers)
    await site.call("POST", "/keys", {"name": "more"}, headers=headers)
    await site.call("POST", "/tasks", body, headers={**headers, "Authorization": "Bearer wrong"})
    await site.call("DELETE", f"/keys/{ann['key_id']}")
    found = [
        (each["key_id"], each["owner"], each["action"], each["object"], each["outcome"], each["status"])
        for each in await entries(site)
    ]
    mine = (ann["key_id"], "ann")
    assert found == [
        ("bootstrap", "admin", "DELETE /keys/{key_id}", ann["key_id"], "done", 200),
        (None, None, "POST /tasks", "", "refused", 401),
        (*mine, "POST /keys", "", "refused", 403),
        (*mine, "DELETE /tasks/{task_id}", task["task_id"], "done", 200),
        (*mine, "POST /tasks/batch", f"{batch['tasks'][0]['task_id']} and 2 more", "done", 202),
        (*mine, "POST /tasks", task["task_id"], "done", 202),
        ("bootstrap", "admin", "POST /keys", ann["key_id"], "done", 201),
    ]


async def test_pages_have_no_gaps(site: Site) -> None:
    for number in range(7):
        await site.call("POST", "/tasks" if number % 2 else "/keys", {})
    found = await entries(site, limit=2)
    assert [each["number"] for each in found] == [7, 6, 5, 4, 3, 2, 1]


async def test_flood_does_not_push_out_entries_of_admins(new_site: NewSite) -> None:
    site: Site = await new_site(audit_keep=100)
    ann = bearing((await make(site, "ann"))["key"])
    for _ in range(10):
        await asyncio.gather(*(site.call("POST", "/tasks", {}, **ann) for _ in range(50)))
    found = await entries(site)
    assert 100 <= len(found) < 400
    assert found[-1]["action"] == "POST /keys"


async def test_clean_stop_writes_all_entries(new_site: NewSite) -> None:
    first: Site = await new_site("one")
    second: Site = await new_site("two", redis_url=first.running.manager.store.database.url)
    await asyncio.gather(*(second.call("POST", "/tasks", {}) for _ in range(20)))
    await second.running.manager.stop()
    assert len(await entries(first)) == 20


async def test_change_by_an_admin_is_stored_before_the_response(site: Site) -> None:
    await make(site)
    assert (await site.running.manager.store.audit.page(limit=10)).total == 1


class Flaky:
    """A stored log that can be unreachable or slow."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.is_away = False
        self.pause = asyncio.Event()
        self.pause.set()

    async def write(self, entries: Sequence[tuple[Stream, str]]) -> None:
        await self.pause.wait()
        if self.is_away:
            raise Unreachable("away")
        self.kept += [msgspec.json.decode(text)["object"] for _, text in entries]


def named(name: str) -> Entry:
    return Entry(
        at_ms=0, key_id="k", owner="o", action="a", object=name, status=1, correlation_id="c", source="s"
    )


async def test_unreachable_store_keeps_the_latest_entries_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_BUFFERED", 4)
    dropped, stored = Metrics().audit_dropped, Flaky()
    log = Audit(stored, dropped)  # type: ignore[arg-type]
    stored.is_away = True
    for name in "abcdef":
        await log.record("changes", named(name))
    assert stored.kept == []
    stored.is_away = False
    await log.flush()
    assert stored.kept == ["c", "d", "e", "f"], "the oldest made room"
    assert dropped.labels("store away")._value.get() == 2


async def test_entries_recorded_during_a_flush_are_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "MAX_BUFFERED", 4)
    stored = Flaky()
    log = Audit(stored, Metrics().audit_dropped)  # type: ignore[arg-type]
    for name in "abcd":
        await log.record("traffic", named(name))
    stored.pause.clear()
    writing = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0)
    for name in "efgh":
        await log.record("traffic", named(name))
    stored.pause.set()
    await writing
    assert stored.kept == list("abcdefgh")


async def test_unauthenticated_requests_are_limited_in_the_log(site: Site) -> None:
    wrong = bearing("wrong")
    for _ in range(10):
        await asyncio.gather(*(site.call("POST", "/tasks", {}, **wrong) for _ in range(50)))
    found = await entries(site)
    assert 10 <= len(found) < 250, "a few per second"
    async with site.http.get("/metrics") as answer:
        dropped = re.search(r'audit_entries_dropped_total{why="stranger"} (\d+)', await answer.text())
    assert dropped
    assert int(dropped[1]) + len(found) == 500


async def test_refusals_of_a_key_over_its_limit_are_audited_a_few_a_second(site: Site) -> None:
    ann = await make(site, "ann", limits={"requests_per_minute": 1})
    bob = await make(site, "bob", limits={"requests_per_minute": 1})
    for key in (ann, bob):
        assert (await site.call("POST", "/tasks", {"task_type": "echo"}, **bearing(key["key"])))[0] == 202
    began = asyncio.get_running_loop().time()
    refused = [site.call("POST", "/tasks", {}, **bearing(ann["key"])) for _ in range(50)]
    assert {status for status, _ in await asyncio.gather(*refused)} == {429}
    assert (await site.call("POST", "/tasks", {}, **bearing(bob["key"])))[0] == 429
    seconds = int(asyncio.get_running_loop().time() - began) + 2
    found = [each for each in await entries(site) if each["status"] == 429]
    of_ann = [each for each in found if each["key_id"] == ann["key_id"]]
    assert 5 <= len(of_ann) <= audit.LIMITED_PER_S * seconds
    assert {(each["action"], each["outcome"]) for each in found} == {("POST /tasks", "refused")}
    assert any(each["key_id"] == bob["key_id"] for each in found), "others are logged all the same"


@pytest.mark.parametrize(
    "path", ["/audit?limit=0", "/audit?limit=1001", "/audit?before=-1", "/audit?before=x"]
)
async def test_bad_page_parameters_are_refused(site: Site, path: str) -> None:
    assert (await site.call("GET", path))[0] == 422


async def test_audit_log_cannot_be_changed(site: Site) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (await site.call(method, "/audit"))[0] == 405
    assert (await site.call("GET", "/audit", **bearing(TOKEN)))[0] == 403
