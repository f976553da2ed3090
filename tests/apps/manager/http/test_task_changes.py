"""Cancel and retry many tasks at once."""

from collections import Counter
from typing import Any

import pytest

from gpu_orchestrator.adapters.store import task_lists
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.http import task_changes
from tests.apps.manager.access.test_audit import entries
from tests.apps.manager.conftest import Site
from tests.apps.manager.http.test_key_routes import bearing, make

pytestmark = pytest.mark.real
NO_GPU = {"gpus": 0}


async def change(site: Site, word: str, body: Any, **rest: Any) -> Any:
    status, answer = await site.call("POST", f"/tasks/{word}", body, **rest)
    assert status == 200, answer
    assert answer["total"] == len(answer["tasks"])
    return {each["task_id"]: (each["status"], each["error"]) for each in answer["tasks"]}


async def test_each_task_has_its_own_outcome(site: Site) -> None:
    worker = await site.join(max_concurrent=1)
    done, running = await site.submit(resources=NO_GPU), await site.submit(resources=NO_GPU)
    await worker.finish(await worker.take())
    await worker.take()
    queued, unknown = await site.submit(resources=NO_GPU), "f" * 32
    ids = [done, running, queued, unknown, queued, queued[:20]]
    assert await change(site, "cancel", {"task_ids": ids}) == {
        done: ("completed", f"task {done} is completed already"),
        running: ("cancelling", ""),
        queued: ("cancelled", ""),
        unknown: ("", f"there is no task {unknown}"),
    }
    assert (await worker.receive(session.Cancel)).task == running
    assert (await site.task(queued))["status"] == "cancelled"
    assert await change(site, "retry", {"task_ids": [done, queued, unknown]}) == {
        done: ("completed", f"task {done} is completed; only failed, dead, cancelled ones can be retried"),
        queued: ("queued", ""),
        unknown: ("", f"there is no task {unknown}"),
    }


async def test_filter_chooses_the_tasks(site: Site) -> None:
    names = [
        await site.submit(labels={"team": team}, priority=p) for team, p in (("a", 50), ("b", 50), ("a", 75))
    ]
    other = await site.submit("sleep")
    assert set(await change(site, "cancel", {"labels": {"team": "a"}})) == {names[0], names[2]}
    assert set(await change(site, "cancel", {"status": ["running"]})) == set()
    assert set(await change(site, "cancel", {"task_type": "sleep", "status": ["queued"]})) == {other}
    assert set(await change(site, "cancel", {"all": True})) == {names[1]}, "ended ones are left out"
    assert set(await change(site, "retry", {"labels": {"team": "a"}})) == {names[0], names[2]}
    assert set(await change(site, "retry", {"all": True})) == {names[1], other}
    states = Counter(each["status"] for each in (await site.call("GET", "/tasks"))[1]["tasks"])
    assert states == {"queued": 4}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param({}, "all: true for every task", id="nothing"),
        pytest.param({"all": False}, "all: true for every task", id="not all"),
        pytest.param({"labels": {}, "status": []}, "all: true for every task", id="empty filter"),
        pytest.param({"task_ids": ["abcd"], "all": True}, "either task_ids or a filter", id="both"),
        pytest.param({"status": ["lost"]}, "status[0] is 'lost'; known: assigned", id="unknown status"),
        pytest.param({"task_ids": ["x"] * 1001}, "give at most 1000 items", id="too many"),
        pytest.param({"task_ids": [f"t{n:03}" for n in range(21)]}, "at most 20 may be", id="many short ids"),
    ],
)
async def test_unclear_selection_changes_nothing(site: Site, body: Any, text: str) -> None:
    name = await site.submit()
    status, answer = await site.call("POST", "/tasks/cancel", body)
    assert status == 422
    assert text in answer["error"]["message"]
    assert (await site.task(name))["status"] == "queued"


async def test_key_changes_only_tasks_of_its_owner(site: Site) -> None:
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    body = {"task_type": "echo"}
    hers = (await site.call("POST", "/tasks", body, **ann))[1]["task_id"]
    his = (await site.call("POST", "/tasks", body, **bob))[1]["task_id"]
    assert await change(site, "cancel", {"task_ids": [his, his[:10]]}, **ann) == {
        his: ("", f"there is no task {his}"),
        his[:10]: ("", f"there is no task {his[:10]}"),
    }
    assert (await site.call("POST", "/tasks/cancel", {"owner": "bob"}, **ann))[0] == 403
    assert set(await change(site, "cancel", {"all": True}, **ann)) == {hers}
    assert (await site.task(his))["status"] == "queued"
    assert await change(site, "retry", {"task_ids": [his]}, **ann) == {his: ("", f"there is no task {his}")}
    assert set(await change(site, "cancel", {"owner": "bob"})) == {his}, "an admin may"


async def test_retry_without_room_says_so_for_each_task(site: Site) -> None:
    ann = bearing((await make(site, "ann", limits={"queued_tasks": 2}))["key"])
    first = [
        (await site.call("POST", "/tasks", {"task_type": "echo"}, **ann))[1]["task_id"] for _ in range(2)
    ]
    await change(site, "cancel", {"all": True}, **ann)
    more = [(await site.call("POST", "/tasks", {"task_type": "echo"}, **ann))[1]["task_id"]]
    assert more
    outcomes = await change(site, "retry", {"task_ids": first}, **ann)
    assert outcomes[first[0]] == ("queued", "")
    assert outcomes[first[1]][0] == ""
    assert outcomes[first[1]][1].startswith("at most 2 tasks of ann may wait")


async def test_every_hundred_tasks_count_as_one_request(site: Site) -> None:
    ann = bearing((await make(site, "ann", limits={"requests_per_minute": 5}))["key"])
    batch = {"tasks": [{"task_type": "echo", "resources": NO_GPU}] * 250}
    assert (await site.call("POST", "/tasks/batch", batch, **ann))[0] == 202  # 3 of 5
    status, _ = await site.call("POST", "/tasks/cancel", {"all": True}, **ann)  # 3 more
    assert status == 429
    assert (await site.call("GET", "/tasks?status=queued"))[1]["total"] == 250, "refused whole"
    assert len(await change(site, "cancel", {"all": True})) == 250


async def test_call_that_matches_too_many_says_how_many_are_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_changes, "MOST_CHANGED", 5)
    await site.call("POST", "/tasks/batch", {"tasks": [{"task_type": "echo"}] * 12})
    left = []
    for _ in range(3):
        _, answer = await site.call("POST", "/tasks/cancel", {"all": True})
        left.append((answer["total"], answer["remaining"]))
    assert left == [(5, 7), (5, 2), (2, 0)]


async def test_call_that_could_not_search_all_tasks_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.call("POST", "/tasks/batch", {"tasks": [{"task_type": "echo", "labels": {"a": "b"}}] * 12})
    monkeypatch.setattr(task_lists, "MOST_SEARCHED", 5)
    found = []
    for body in ({"labels": {"a": "b"}}, {"status": ["queued"]}, {"labels": {"a": "b"}}):
        _, answer = await site.call("POST", "/tasks/cancel", body)
        found.append((answer["total"], answer["remaining"], answer["complete"]))
    assert found == [(5, 0, False), (7, 0, True), (0, 0, True)]


async def test_audit_log_says_what_was_changed(site: Site) -> None:
    names = [await site.submit(labels={"team": "a"}) for _ in range(2)]
    await change(site, "cancel", {"labels": {"team": "a"}, "status": ["queued", "completed"]})
    await change(site, "retry", {"task_ids": [*names, "f" * 32]})
    await site.call("POST", "/tasks/cancel", {})
    await change(site, "cancel", {"all": True})
    found = [(each["action"], each["object"], each["status"]) for each in (await entries(site))[:4]]
    assert found == [
        ("POST /tasks/cancel", "2 of 2 tasks: all", 200),
        ("POST /tasks/cancel", "", 422),
        ("POST /tasks/retry", f"2 of 3 tasks: {names[0]} and 2 more", 200),
        ("POST /tasks/cancel", "2 of 2 tasks: status=queued,completed labels=team=a", 200),
    ]
