"""Schedules over HTTP: what is refused, what is shown, whose they are, and that their tasks run."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make

pytestmark = pytest.mark.real
TASK = {"task_type": "echo", "parameters": {"n": 1}, "resources": {"gpus": 0}, "labels": {"team": "a"}}
TOMORROW = (datetime.now(UTC) + timedelta(days=1)).isoformat()
SECOND = {"schedule_min_interval": 1}


def body(name: str = "nightly", schedule: str = "0 3 * * *", **rest: Any) -> dict[str, Any]:
    return {"name": name, "schedule": schedule, "task": TASK, **rest}


async def add(site: Site, *args: Any, **rest: Any) -> Any:
    status, answer = await site.call("POST", "/schedules", body(*args, **rest))
    assert status in (200, 201), answer
    return answer


async def test_schedule_runs_its_task(new_site: NewSite) -> None:
    site = await new_site(**SECOND)
    worker = await site.join(max_concurrent=8)
    made = await add(site, "often", "@every 1s", overlap="skip")
    assert (made["status"], made["fired"], made["task_type"]) == ("active", 0, "echo")
    taken = await worker.take()
    assert bytes(taken.parameters) == b'{"n": 1}'
    shown = await site.task(taken.task)
    assert shown["labels"]["schedule"] == "often"
    assert shown["labels"]["team"] == "a"
    _, listed = await site.call("GET", "/tasks?label=schedule=often")
    assert [each["task_id"] for each in listed["tasks"]] == [taken.task]
    _, after = await site.call("GET", "/schedules/often")
    assert (after["last_task"], after["last_at"]) == (taken.task, shown["labels"]["scheduled_for"])
    _, told = await site.call("GET", "/cluster/events")
    fired = [each["data"] for each in told["events"] if each["event"] == "schedule_fired"]
    assert fired[0] == {
        "schedule_id": made["schedule_id"],
        "name": "often",
        "task_id": taken.task,
        "scheduled_for": after["last_at"],
    }
    assert (await site.call("POST", "/schedules/often/pause"))[1]["reason"].startswith("paused by admin")
    status, run = await site.call("POST", "/schedules/often/run")
    assert (status, (await worker.take()).task) == (202, run["task_id"]), "by hand also while it is paused"
    metrics = site.running.manager.metrics.registry
    assert metrics.get_sample_value("schedule_moments_total", {"outcome": "fired"}) == 1


async def test_same_again_is_known_and_another_needs_replace(site: Site) -> None:
    await site.join()
    first = await add(site)
    assert (await site.call("POST", "/schedules", body()))[0] == 200
    status, refused = await site.call("POST", "/schedules", body(timezone="Europe/Berlin"))
    assert (status, refused["error"]["details"]) == (409, {"schedule_id": first["schedule_id"]})
    assert "another schedule 'nightly'" in refused["error"]["message"]
    changed = await add(site, timezone="Europe/Berlin", replace=True)
    assert changed["upcoming"][0][10:19] == "T03:00:00"
    assert changed["upcoming"][0][19:] in ("+01:00", "+02:00")
    assert (await site.call("GET", "/schedules"))[1]["total"] == 1
    assert (await site.call("DELETE", "/schedules/nightly"))[1]["status"] == "deleted"
    assert (await site.call("GET", "/schedules/nightly"))[0] == 404


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"schedule": "0 25 * * *"}, "schedule: '25' is no hour"),
    ({"timezone": "Mars/Olympus"}, "schedule: the server knows no time zone 'Mars/Olympus'"),
    ({"schedule": "@every 1s"}, "more often than every 5 seconds (SCHEDULE_MIN_INTERVAL)"),
    ({"jitter": "soon"}, "jitter: 'soon' is not a span of time"),
    ({"jitter": "2d"}, "jitter: 2d is more than a day"),
    ({"task": {**TASK, "not_before": "1h"}}, "task.not_before makes no sense in a schedule"),
    ({"task": {**TASK, "depends_on": ["a"]}}, "task.depends_on makes no sense"),
    ({"task": {**TASK, "idempotency_key": "a"}}, "task.idempotency_key makes no sense"),
    ({"task": {**TASK, "expires": TOMORROW}}, "task.expires: "),
    ({"task": {**TASK, "labels": {"schedule": "x"}}}, "the schedule gives its tasks this label"),
    ({"task": {**TASK, "parameters": "x" * 70_000}}, "at most 64 KiB in a schedule"),
    (
        {"task": {**TASK, "parameters": {"$file": "file-" + "0" * 32}}},
        "a file is deleted TASK_RETENTION after",
    ),
    ({"task": {**TASK, "task_type": "ecko"}}, "unknown task_type 'ecko'; did you mean 'echo'?"),
    ({"name": "a b"}, "name: 'a b' cannot be the name of a schedule; use letters, digits"),
    ({"name": "nightly\n"}, "name: "),
    ({"name": "nächtlich"}, "name: "),
    ({"schedule": "@every 1h", "timezone": "Mars/Olympus"}, "knows no time zone 'Mars/Olympus'"),
    ({"name": "../keys"}, "name"),
    ({"overlap": "perhaps"}, "overlap"),
    ({"shedule": ""}, "shedule"),
)


async def test_bad_schedules_are_refused_in_words(site: Site) -> None:
    await site.join()
    for wrong, said in REFUSED:
        status, answer = await site.call("POST", "/schedules", {**body(), **wrong})
        assert (status, said in answer["error"]["message"]) == (422, True), answer
    assert (await site.call("GET", "/schedules"))[1]["total"] == 0


async def test_owners_see_and_change_their_own(new_site: NewSite) -> None:
    site = await new_site(max_schedules=1)
    await site.join()
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    for who in (ann, bob):
        assert (await site.call("POST", "/schedules", body(), **who))[0] == 201
    status, full = await site.call("POST", "/schedules", body("more"), **ann)
    assert (status, "ann has 1 schedules, the most" in full["error"]["message"]) == (409, True)
    _, listed = await site.call("GET", "/schedules", **ann)
    (hers,) = listed["schedules"]
    _, all_of_them = await site.call("GET", "/schedules?owner=bob")
    (his,) = all_of_them["schedules"]
    assert (hers["owner"], his["owner"]) == ("ann", "bob")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run")):
        foreign = f"/schedules/{his['schedule_id']}{path}"
        assert (await site.call(method, foreign, **ann))[0] == 404
    status, refused = await site.call("POST", f"/schedules/{his['schedule_id']}/run")
    assert (status, refused["error"]["message"]) == (
        403,
        "schedule nightly is of bob, and runs for bob alone",
    )
    assert (await site.call("POST", f"/schedules/{his['schedule_id']}/pause"))[0] == 200
    assert (await site.call("DELETE", "/schedules/nightly", **bob))[0] == 200


async def test_schedule_stops_with_its_key_and_goes_on_with_another(new_site: NewSite) -> None:
    site = await new_site(**SECOND)
    worker = await site.join(max_concurrent=8)
    made = await make(site)
    often = body("often", "@every 1s", overlap="skip")
    await site.call("POST", "/schedules", often, **bearing(made["key"]))
    first = await worker.take()
    await site.call("DELETE", f"/keys/{made['key_id']}")
    await worker.finish(first, None)
    name = (await site.call("GET", "/schedules"))[1]["schedules"][0]["schedule_id"]
    shown: Any = {}
    async with asyncio.timeout(30):
        while shown.get("status") != "stopped":
            _, shown = await site.call("GET", f"/schedules/{name}")
            await asyncio.sleep(0.05)
    assert f"the key {made['key_id']}, with which it was added, was revoked" in shown["reason"]
    assert (await site.call("POST", f"/schedules/{name}/resume"))[0] == 409, "an admin does not run for ann"
    new = await make(site)
    _, again = await site.call("POST", "/schedules/often/resume", **bearing(new["key"]))
    assert (again["status"], again["key_id"]) == ("active", new["key_id"])
    assert isinstance(await worker.take(), session.Assign)
