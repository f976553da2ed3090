"""Gangs over HTTP: what is made, what is refused, what members are told, and what is shown of them."""

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.api.task_gangs import Peer, environment
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make
from tests.support.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.real
NO_GPU = {"gpus": 0}


def body(size: int = 2, **rest: Any) -> dict[str, Any]:
    return {"task_type": "echo", "resources": NO_GPU, "gang": {"size": size}, **rest}


async def submit(site: Site, asked: dict[str, Any], **rest: Any) -> Any:
    status, answer = await site.call("POST", "/tasks", asked, **rest)
    assert status == 202, answer
    return answer


async def refusal(site: Site, path: str, asked: dict[str, Any], **rest: Any) -> tuple[int, str, Any]:
    status, answer = await site.call("POST", path, asked, **rest)
    return status, answer["error"]["message"], answer["error"]["details"]


async def workers(site: Site) -> tuple[ScriptedWorker, ScriptedWorker]:
    """Join two workers, each with room for two tasks."""
    first = await site.join("a", max_concurrent=2, devices=(), address="10.0.0.1", labels={"rack": "r1"})
    return first, await site.join(
        "b", max_concurrent=2, devices=(), address="10.0.0.2", labels={"rack": "r2"}
    )


async def test_members_are_told_of_each_other(site: Site) -> None:
    a, b = await workers(site)
    made = await submit(site, body(4, labels={"job": "x"}))
    gang = made["gang_id"]
    assert made["members"] == [f"{gang}-{rank}" for rank in range(4)]
    given = [await worker.take() for worker in (a, a, b, b)]
    assert {each.task for each in given} == set(made["members"])
    told = {each.task: each.gang for each in given if each.gang}
    (peers,) = {each.peers for each in told.values()}
    assert (
        sorted(peers, key=lambda each: each.worker)
        == [Peer("a", "10.0.0.1")] * 2 + [Peer("b", "10.0.0.2")] * 2
    )
    assert [told[name].rank for name in made["members"]] == [0, 1, 2, 3]
    assert len({each.port for each in told.values()}) == 1
    variables = environment(told[made["members"][3]], 1)
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["GANG_RANK"]) == ("3", "4", "3")
    assert variables["MASTER_ADDR"] == peers[0].address
    shown = await site.task(made["members"][1])
    assert (shown["gang_id"], shown["gang_rank"], shown["gang_size"]) == (gang, 1, 4)
    _, before = await site.call("GET", f"/gangs/{gang}")
    assert before["status"] in ("assigned", "running")
    assert (before["attempt"], len(before["members"])) == (1, 4)
    for worker, assign in zip((a, a, b, b), given, strict=True):
        await worker.finish(assign, assign.gang and assign.gang.rank)
    results = [(await site.wait(name))["result"] for name in made["members"]]
    assert results == [0, 1, 2, 3]
    _, after = await site.call("GET", f"/gangs/{made['members'][2]}")
    assert after["status"] == "completed"
    assert (await site.call("GET", f"/tasks/{gang}"))[1]["task_id"] == made["task_id"], (
        "the gang's id will do"
    )
    assert (await site.call("GET", f"/tasks/{gang[:12]}"))[1]["task_id"] == made["task_id"]


async def test_all_waiters_of_a_gang_hear_of_its_end(site: Site) -> None:
    a = await site.join("a", max_concurrent=2, devices=(), address="10.0.0.1")
    made = await submit(site, body(2))
    first, second = await a.take(), await a.take()
    assert await a.finish(first, "one")
    early = await site.task(first.task)
    assert (early["status"], early["result"]) == ("running", None)
    assert early["reason"] == "it is done, and ends when all members of its gang are"
    await a.send(session.Failed(second.task, second.attempt, session.TaskError("Bad", "no good")))
    ends = {name: await site.wait(name) for name in made["members"]}
    assert {each["status"] for each in ends.values()} == {"failed"}
    assert ends[first.task]["error"]["type"] == "GangFailed"
    assert "no good" in ends[first.task]["error"]["message"]


async def test_others_are_stopped_at_once_and_the_next_attempt_is_told_anew(site: Site) -> None:
    a, b = await workers(site)
    made = await submit(site, body(4))
    given = [await worker.take() for worker in (a, a, b, b)]
    lost = session.TaskError("Lost", "again", True)
    await a.send(session.Failed(given[0].task, 1, lost))
    stops = [
        await a.receive(session.Cancel),
        await b.receive(session.Cancel),
        await b.receive(session.Cancel),
    ]
    assert {each.task for each in stops} == {each.task for each in given[1:]}
    for worker, assign in zip((a, b, b), given[1:], strict=True):
        assert not [each for each in (*a.received, *b.received) if isinstance(each, session.Assign)]
        await worker.send(session.Cancelled(assign.task, 1))
    again = [await worker.take() for worker in (a, a, b, b)]
    assert {(each.task, each.attempt) for each in again} == {(name, 2) for name in made["members"]}
    assert all(each.gang and each.gang.port for each in again)
    counted = site.running.manager.metrics.registry.get_sample_value
    assert counted("gangs_started_total", {"attempt": "again"}) == 1


async def test_gang_waits_and_says_for_what(site: Site) -> None:
    await workers(site)
    await site.submit(resources=NO_GPU)
    made = await submit(site, body(4))
    shown = await site.task(made["members"][1])
    assert shown["reason"] == "waits until all 4 members of its gang fit at the same time"
    _, explained = await site.call("GET", f"/tasks/{made['task_id']}/explain")
    assert explained["reason"].startswith("3 of 4 members of its gang fit together now; for the next one 0/2")


REFUSED = {
    "too many members": ({"size": 513}, 422, "gang.size"),
    "none": ({"size": 0}, 422, "gang.size"),
    "unknown word": ({"size": 2, "minimum": 1}, 422, "minimum"),
    "more than there is": (
        {"size": 5},
        409,
        "the gang can never start: 4 of its 5 members fit together if nothing",
    ),
    "too many for one label": (
        {"size": 3, "same": "rack"},
        409,
        "on workers with one value of the label rack",
    ),
    "a label that nobody has": ({"size": 2, "same": "row"}, 409, "the gang can never start: 0 of its 2"),
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
async def test_refused(site: Site, given: tuple[dict[str, Any], int, str]) -> None:
    gang, expected, words = given
    await workers(site)
    status, said, _ = await refusal(site, "/tasks", body() | {"gang": gang})
    assert status == expected
    assert words in said
    assert (await site.call("GET", "/tasks"))[1]["total"] == 0


async def test_more_than_the_owner_may_run_is_refused(site: Site) -> None:
    await workers(site)
    key = (await make(site, limits={"running_tasks": 2, "queued_tasks": 4}))["key"]
    status, said, _ = await refusal(site, "/tasks", body(3), **bearing(key))
    assert (status, said) == (
        409,
        "the gang can never start: its 3 members begin together, and ann may run 2 tasks at once",
    )
    running, waiting = [await submit(site, body(2), **bearing(key)) for _ in range(2)]
    _, shown = await site.call("GET", f"/gangs/{waiting['gang_id']}")
    assert (running["status"], shown["status"]) == ("queued", "queued")
    few = (await make(site, "few", limits={"queued_tasks": 1}))["key"]
    status, said, _ = await refusal(site, "/tasks", body(2), **bearing(few))
    assert (status, (await site.call("GET", "/tasks"))[1]["total"]) == (503, 4)


async def test_batch_joins_members_by_name_and_names_the_bad_one(site: Site) -> None:
    await workers(site)
    named = {"name": "job"}
    tasks = [
        body() | {"gang": named, "parameters": "chief"},
        {"task_type": "echo", "resources": NO_GPU},
        body() | {"gang": {**named, "size": 2}, "parameters": "hand"},
        body(1),
    ]
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": tasks})
    assert status == 202, answer
    chief, single, hands, alone = answer["tasks"]
    assert chief["members"] == [f"{chief['gang_id']}-0"]
    assert hands["members"] == [f"{chief['gang_id']}-1", f"{chief['gang_id']}-2"]
    assert (single["gang_id"], single["members"], len(alone["members"])) == ("", [], 1)
    bad = [*tasks[:2], tasks[2] | {"task_type": "ecko"}]
    status, said, details = await refusal(site, "/tasks/batch", {"tasks": bad})
    assert (status, details["task"]) == (422, 2)
    assert "unknown task_type 'ecko'" in said
    other = [tasks[0], body() | {"gang": {**named, "same": "rack"}}]
    status, said, details = await refusal(site, "/tasks/batch", {"tasks": other})
    assert (status, details["task"]) == (422, 1)
    many = [body(512), body(512)]
    assert (await refusal(site, "/tasks/batch", {"tasks": many}))[0] == 422
    large = json.dumps(body(4) | {"parameters": "a" * (5 << 20)}).encode()
    async with site.http.post("/tasks", data=io.BytesIO(large)) as refused:
        assert (refused.status, "16 MiB together" in await refused.text()) == (422, True)


async def test_repeated_request_gets_the_same_gang(site: Site) -> None:
    await workers(site)
    first = await submit(site, body(3, idempotency_key="k"))
    again = await submit(site, body(3, idempotency_key="k"))
    assert again["members"] == first["members"]
    for other in (body(4, idempotency_key="k"), body(3, idempotency_key="k", parameters=[1])):
        status, said, _ = await refusal(site, "/tasks", other)
        assert (status, "which is different" in said) == (409, True)
    plain = {"task_type": "echo", "resources": NO_GPU, "idempotency_key": "k"}
    assert (await refusal(site, "/tasks", plain))[0] == 409
    assert (await site.call("GET", "/tasks"))[1]["total"] == 3
    batch = {"tasks": [body(2), {"task_type": "echo", "resources": NO_GPU}]}
    header = {"headers": {"Idempotency-Key": "b"}}
    answers = [(await site.call("POST", "/tasks/batch", batch, **header))[1]["tasks"] for _ in range(2)]
    assert [each["task_id"] for each in answers[0]] == [each["task_id"] for each in answers[1]]


async def test_bulk_changes_count_each_member_once(site: Site) -> None:
    made = await submit(site, body(3))
    status, done = await site.call("POST", "/tasks/cancel", {"all": True})
    assert status == 200
    assert {each["task_id"]: each["error"] for each in done["tasks"]} == dict.fromkeys(made["members"], "")
    status, done = await site.call("POST", "/tasks/retry", {"all": True})
    assert {each["task_id"]: (each["status"], each["error"]) for each in done["tasks"]} == dict.fromkeys(
        made["members"], ("queued", "")
    )
    assert (await site.call("GET", f"/gangs/{made['gang_id']}"))[1]["status"] == "queued"


async def test_stranger_sees_no_gang(site: Site) -> None:
    await workers(site)
    made = await submit(site, body(2))
    key = (await make(site))["key"]
    for path in (f"/gangs/{made['gang_id']}", f"/tasks/{made['gang_id']}", f"/tasks/{made['task_id']}"):
        assert (await site.call("GET", path, **bearing(key)))[0] == 404
    assert (await site.call("DELETE", f"/tasks/{made['gang_id']}", **bearing(key)))[0] == 404
    assert (await site.call("GET", f"/gangs/{await site.submit(resources=NO_GPU)}"))[0] == 404


async def test_worker_that_knows_no_gangs_gets_no_member(site: Site) -> None:
    await site.join("old", max_concurrent=4, devices=())
    status, said, _ = await refusal(site, "/tasks", body(2))
    assert (status, "is of a version that knows no gangs" in said) == (409, True)


async def test_schedules_and_models_take_no_gangs(new_site: NewSite) -> None:
    site = await new_site()
    await site.join("m", max_concurrent=4, devices=(), address="x", task_types=("llm",), model_types=("llm",))
    await site.call("PUT", "/models/m", {"handler": "llm"})
    wanted = {"name": "s", "schedule": "@daily", "task": body(2)}
    status, said, _ = await refusal(site, "/schedules", wanted)
    assert (status, said.startswith("task.gang: a schedule queues single tasks")) == (422, True)
    status, said, _ = await refusal(site, "/tasks", body(2) | {"task_type": "llm", "model_name": "m"})
    assert (status, "load models, and" in said) == (422, True), said


def written(site: Site, pattern: str) -> list[Path]:
    return list(Path(site.running.manager.settings.data_dir).rglob(pattern))


async def test_large_results_are_kept_with_the_gang_and_deleted_with_an_attempt(new_site: NewSite) -> None:
    site = await new_site(result_inline_kb=1)
    a = await site.join("a", max_concurrent=2, devices=(), address="10.0.0.1")
    made = await submit(site, body(2))
    first, second = await a.take(), await a.take()
    assert await a.finish(first, "dropped " * 1000)
    assert len(written(site, f"{first.task}.1.*")) == 1
    await a.send(session.Failed(second.task, 1, session.TaskError("Lost", "again", True)))
    again = [await a.take(), await a.take()]
    for assign in again:
        assert await a.finish(assign, assign.task * 100)
    for name in made["members"]:
        assert (await site.wait(name))["status"] == "completed"
        _, result = await site.call("GET", f"/tasks/{name}/result")
        assert result == name * 100
    database = site.running.manager.store.database
    due = await database._execute("ZRANGE", f"{database.prefix}results", 0, -1, "WITHSCORES")
    scores = {bytes(at).split(b" ")[2]: float(score) for at, score in zip(due[::2], due[1::2], strict=True)}
    assert len([score for score in scores.values() if score > 0]) == 2, "those of the attempt that counted"
    soon_ms = (time.time() + 60 * 86400) * 1000
    assert all(score < soon_ms for score in scores.values()), "they go with their tasks"


async def test_members_on_workers_of_another_server_are_stopped_at_once(new_site: NewSite) -> None:
    one: Site = await new_site("one")
    two: Site = await new_site("two", redis_url=one.running.manager.store.database.url)
    a = await one.join("a", max_concurrent=1, devices=(), address="10.0.0.1")
    b = await two.join("b", max_concurrent=1, devices=(), address="10.0.0.2")
    for asked, other in ((two, one), (one, two)):
        made = await submit(asked, body(2))
        on_a, on_b = await a.take(), await b.take()
        await b.send(session.Failed(on_b.task, 1, session.TaskError("Bad", "for good")))
        assert (await a.receive(session.Cancel)).task == on_a.task, "scripted workers do not renew"
        await a.send(session.Cancelled(on_a.task, 1))
        ends = [await other.wait(name) for name in made["members"]]
        assert [each["status"] for each in ends] == ["failed"] * 2
