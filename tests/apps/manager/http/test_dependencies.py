"""Submissions that depend on other tasks: what is refused, what is shown, and what the worker gets."""

import json
import re
from typing import Any

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.http import dependencies
from gpu_orchestrator.apps.manager.tasks import inputs
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make

pytestmark = pytest.mark.real
NO_GPU = {"gpus": 0}


def result_of(name: str) -> dict[str, str]:
    return {"$result": name}


async def submit(site: Site, parameters: Any = None, **rest: Any) -> str:
    return await site.submit(parameters=parameters, resources=NO_GPU, **rest)


async def test_results_go_to_the_next_task(site: Site) -> None:
    worker = await site.join(max_concurrent=8)
    first, second = await submit(site), await submit(site)
    both = [first, second]
    last = await submit(
        site, {"parts": [result_of(name) for name in both], "text": '{"$result": "x"}'}, depends_on=both
    )
    one, other = await worker.take(), await worker.take()
    shown = await site.task(last)
    assert (shown["status"], shown["depends_on"], shown["on_failure"]) == ("scheduled", both, "cancel")
    assert (shown["reason"], shown["open_dependencies"]) == ("waits for 2 of 2 tasks", 2)
    _, why = await site.call("GET", f"/tasks/{last}/explain")
    assert re.sub("assigned|running", "there", why["reason"]) == (
        f"waits for 2 of 2 tasks: {first} (there), {second} (there)"
    )
    await worker.finish(one, {"big": [1, "é"]})
    await worker.finish(other, None)
    given = await worker.take()
    assert json.loads(bytes(given.parameters)) == {
        "parts": [{"big": [1, "é"]}, None],
        "text": '{"$result": "x"}',
    }
    assert (await site.task(last))["open_dependencies"] == 0


async def test_failure_cancels_or_leaves_null(site: Site) -> None:
    worker = await site.join(max_concurrent=8)
    first = await submit(site)
    taken = await worker.take()
    behind = await submit(site, depends_on=[first])
    further = await submit(site, depends_on=[behind])
    cleanup = await submit(site, [result_of(first)], depends_on=[first, further], on_failure="run")
    await site.call("DELETE", f"/tasks/{first}")
    await worker.send(session.Cancelled(taken.task, taken.attempt))
    given = await worker.take()
    assert (given.task, bytes(given.parameters)) == (cleanup, b"[null]")
    ended = await site.wait(further)
    assert (ended["status"], ended["error"]["type"]) == ("cancelled", "DependencyFailed")
    assert ended["reason"] == f"task {behind}, on which it depends, was cancelled"


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        pytest.param({"depends_on": ["0" * 32]}, "there is no task 000", id="unknown"),
        pytest.param({"depends_on": ["a b"]}, "there is no task a b of yours", id="two words"),
        pytest.param({"depends_on": ["x"] * 1001}, "give at most 1000 items", id="too many"),
        pytest.param({"depends_on": [""]}, "give at least 1 character", id="empty"),
        pytest.param({"on_failure": "run"}, "without depends_on", id="on_failure alone"),
        pytest.param({"depends_on": ["KNOWN"], "on_failure": "stop"}, "'stop'", id="unknown way"),
        pytest.param(
            {"depends_on": ["KNOWN"], "parameters": [result_of("other")]}, "is not in depends_on", id="other"
        ),
    ],
)
async def test_bad_dependencies_are_refused(site: Site, wish: dict[str, Any], said: str) -> None:
    known = await submit(site)
    wish = json.loads(json.dumps(wish).replace("KNOWN", known))
    status, answer = await site.call("POST", "/tasks", {"task_type": "echo", **wish})
    assert status == 422, answer
    assert said in answer["error"]["message"]
    tasks = {"tasks": [{"task_type": "echo"}, {"task_type": "echo", **wish}]}
    assert (await site.call("POST", "/tasks/batch", tasks))[0] == 422
    assert (await site.call("GET", "/tasks"))[1]["total"] == 1, "none of the batch was taken"


async def test_tasks_of_others_are_unknown_also_to_admins(site: Site) -> None:
    ann, bob = await make(site, "ann"), await make(site, "bob")
    _, hers = await site.call("POST", "/tasks", {"task_type": "echo"}, **bearing(ann["key"]))
    body = {"task_type": "echo", "parameters": result_of(hers["task_id"]), "depends_on": [hers["task_id"]]}
    unknown = {**body, "parameters": {}, "depends_on": ["0" * 32]}
    for caller in (bearing(bob["key"]), {}):
        status, answer = await site.call("POST", "/tasks", body, **caller)
        assert status == 422, answer
        _, other = await site.call("POST", "/tasks", unknown, **caller)
        told, tells = (each["error"]["message"] for each in (answer, other))
        assert told.replace(hers["task_id"], "?") == tells.replace("0" * 32, "?")


async def test_numbers_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "MOST_DEPENDENTS", 2)
    monkeypatch.setattr(dependencies, "MOST_OF_REQUEST", 3)
    first = await submit(site)
    for _ in range(2):
        await site.wait(await submit(site, depends_on=[first]), 0.01)
    body = {"task_type": "echo", "depends_on": [first]}
    status, answer = await site.call("POST", "/tasks", body)
    assert (status, answer["error"]["message"][:24]) == (409, "depends_on: 2 tasks wait")
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": [body] * 4})
    assert (status, "send them in several" in answer["error"]["message"]) == (422, True)


async def test_results_that_are_too_large_fail_the_task(
    new_site: NewSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results in files are read, and a small reference cannot make the server build a huge message."""
    monkeypatch.setattr(inputs, "LARGEST", 100_000)
    site = await new_site(result_inline_kb=1)
    worker = await site.join(max_concurrent=8)
    first = await submit(site)
    await worker.finish(await worker.take(), "x" * 20_000)
    fits = await submit(site, [result_of(first)] * 4, depends_on=[first])
    assert bytes((await worker.take()).parameters) == b"[%b]" % b", ".join([b'"%b"' % (b"x" * 20_000)] * 4)
    bomb = await submit(site, [result_of(first)] * 5, depends_on=[first])
    ended = await site.wait(bomb)
    assert (ended["status"], ended["error"]["type"]) == ("failed", "ParametersTooLarge")
    assert (await site.task(fits))["status"] in ("assigned", "running")


async def test_reconnected_worker_gets_the_results_again(site: Site) -> None:
    worker = await site.join()
    first = await submit(site)
    await worker.finish(await worker.take(), "first")
    second = await submit(site, result_of(first), depends_on=[first])
    given = await worker.take()
    await worker.vanish()
    await site.missed("w")
    again = await site.join(resume_epoch=1)
    assert bytes((await again.take()).parameters) == bytes(given.parameters) == b'"first"'
    assert (await site.task(second))["attempt"] == 1


async def test_idempotency_key_covers_dependencies(site: Site) -> None:
    one, two = await submit(site), await submit(site)
    first = await submit(site, depends_on=[one], idempotency_key="k")
    assert await submit(site, depends_on=[one, one], idempotency_key="k") == first
    for tasks in (1, 2):
        body = {
            "task_type": "echo",
            "resources": NO_GPU,
            "depends_on": [two],
            "idempotency_key": "k",
            "parameters": None,
        }
        path, whole = ("/tasks", body) if tasks == 1 else ("/tasks/batch", {"tasks": [body, {**body}]})
        assert (await site.call("POST", path, whole))[0] == 409
