"""Tests of ownership: a key sees and changes only its owner's tasks; an admin those of all owners."""

from typing import Any

import pytest

from tests.apps.manager.conftest import Site
from tests.apps.manager.http.test_key_routes import bearing, make
from tests.support import scripted_worker

pytestmark = pytest.mark.real
LIGHT = {"task_type": "echo", "resources": {"gpus": 0}}


async def submit(site: Site, key: dict[str, Any], count: int = 1) -> list[str]:
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": [LIGHT] * count}, **key)
    assert status == 202, answer
    return [each["task_id"] for each in answer["tasks"]]


async def test_task_pages_list_only_the_owners_tasks(site: Site) -> None:
    worker = await site.join(max_concurrent=1)
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    anns, bobs = await submit(site, ann, 5), await submit(site, bob, 3)
    first = await worker.take()
    await worker.finish(first)
    for key, tasks in ((ann, anns), (bob, bobs)):
        _, page = await site.call("GET", "/tasks?limit=2&offset=1", **key)
        assert page["total"] == len(tasks)
        assert len(page["tasks"]) == 2
        _, page = await site.call("GET", "/tasks", **key)
        assert {each["task_id"] for each in page["tasks"]} == set(tasks)
        done = {first.task} & set(tasks)
        _, page = await site.call("GET", "/tasks?status=completed", **key)
        assert ({each["task_id"] for each in page["tasks"]}, page["total"]) == (done, len(done))
        _, page = await site.call("GET", "/tasks?worker_id=w&status=completed", **key)
        assert page["total"] == len(done)
    assert (await site.call("GET", "/tasks"))[1]["total"] == 8


async def test_tasks_of_other_owners_are_reported_missing(site: Site) -> None:
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    (task,) = await submit(site, ann)
    unknown = (await site.call("GET", "/tasks/unknown", **bob))[1]["error"]["message"]
    for method, path in (
        ("GET", ""),
        ("GET", "/wait?timeout=0"),
        ("GET", "/explain"),
        ("POST", "/retry"),
        ("DELETE", ""),
    ):
        status, answer = await site.call(method, f"/tasks/{task}{path}", **bob)
        assert (status, answer["error"]["code"]) == (404, "not_found"), (method, path)
    status, answer = await site.call("GET", f"/tasks/{task}", **bob)
    assert answer["error"]["message"] == unknown.replace("unknown", task), "as if it did not exist"
    assert (await site.call("GET", f"/tasks/{task}", **ann))[1]["status"] == "queued"
    assert (await site.call("DELETE", f"/tasks/{task}", **ann))[1]["status"] == "cancelled"
    assert (await site.call("POST", f"/tasks/{task}/retry", **ann))[1]["status"] == "queued"
    assert (await site.call("DELETE", f"/tasks/{task}"))[1]["status"] == "cancelled", "by the admin"


async def test_explain_hides_task_ids_of_other_owners(site: Site) -> None:
    worker = await site.join(devices=(scripted_worker.device(0),))
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    whole = {"task_type": "echo", "resources": {"gpus": 1}}
    _, holder = await site.call("POST", "/tasks", whole, **ann)
    await worker.take()
    _, waiting = await site.call("POST", "/tasks", whole, **bob)
    path = f"/tasks/{waiting['task_id']}/explain"
    why = (await site.call("GET", path, **bob))[1]["workers"][0]["devices"][0]["why"]
    assert why == "in use by 1 task (this task wants the whole GPU)"
    why = (await site.call("GET", path))[1]["workers"][0]["devices"][0]["why"]
    assert why == f"in use by {holder['task_id']} (this task wants the whole GPU)", "an admin sees all"


async def test_keys_of_one_owner_share_tasks(site: Site) -> None:
    old, new = [bearing((await make(site, name, owner="team"))["key"]) for name in ("old", "new")]
    body = {**LIGHT, "idempotency_key": "once"}
    _, first = await site.call("POST", "/tasks", body, **old)
    _, second = await site.call("POST", "/tasks", body, **new)
    assert first["task_id"] == second["task_id"], "the same idempotency key of the same owner"
    assert (await site.call("GET", f"/tasks/{first['task_id']}", **new))[0] == 200


async def test_same_idempotency_key_of_another_owner_is_another_task(site: Site) -> None:
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    body = {**LIGHT, "idempotency_key": "once"}
    _, first = await site.call("POST", "/tasks", body, **ann)
    _, second = await site.call("POST", "/tasks", body, **bob)
    assert first["task_id"] != second["task_id"]
