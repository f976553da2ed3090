"""The cache of results: a task that asks for it is answered by an equal one that has completed."""

import asyncio
from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import KEY, Site
from tests.apps.manager.http.test_key_routes import make

pytestmark = pytest.mark.real
ASKED = {"task_type": "echo", "parameters": {"n": 1}, "cache": 600}


async def post(site: Site, key: str = KEY, **more: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    status, answer = await site.call("POST", "/tasks", {**ASKED, **more}, headers=headers)
    assert status == 202, answer
    return answer


async def test_equal_task_is_answered_by_the_one_that_completed(site: Site) -> None:
    worker = await site.join()
    first = await post(site)
    waiting = await post(site)
    assert waiting["task_id"] != first["task_id"], "nothing has completed yet"
    for _ in range(2):
        await worker.finish(await worker.take(), {"answer": 42})
    newest = await site.wait(waiting["task_id"])
    again = await post(site)
    assert (again["status"], again["task_id"]) == ("completed", newest["task_id"])
    _, shown = await site.call("POST", "/tasks?wait=20", ASKED)
    assert (shown["status"], shown["result"]) == ("completed", {"answer": 42})
    other, uncached = await post(site, parameters={"n": 2}), await site.submit(parameters={"n": 1})
    assert {(await worker.take()).task for _ in range(2)} == {other["task_id"], uncached}
    status, batch = await site.call(
        "POST", "/tasks/batch", {"tasks": [{**ASKED, "parameters": {"n": 3}}, ASKED]}
    )
    assert status == 202
    assert [each["status"] for each in batch["tasks"]] == ["queued", "completed"]
    async with site.http.get("/metrics") as answer:
        assert "result_cache_hits_total 3.0" in await answer.text()


async def test_failed_task_answers_for_none_nor_does_one_of_another_owner(site: Site) -> None:
    worker = await site.join()
    failing = await post(site, max_retries=0)
    assign = await worker.take()
    error = session.TaskError("RuntimeError", "as asked")
    await worker.send(session.Failed(assign.task, assign.attempt, error))
    assert (await site.wait(failing["task_id"]))["status"] == "failed"
    second = await post(site)
    assert second["status"] == "queued"
    await worker.finish(await worker.take())
    stranger = (await make(site, "stranger", scopes=["submit", "read"]))["key"]
    assert (await post(site, stranger))["status"] == "queued"


async def test_result_is_given_again_as_long_as_its_task_said(site: Site) -> None:
    worker = await site.join()
    await post(site, cache=0.05)
    await worker.finish(await worker.take())
    async with asyncio.timeout(60):
        while (await post(site, cache=0.05))["status"] == "completed":  # noqa: ASYNC110 - the store's clock
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "more", [{"not_before": "1h"}, {"idempotency_key": "k"}, {"depends_on": ["a" * 32]}, {"cache": 0}]
)
async def test_what_does_not_go_together_is_refused(site: Site, more: dict[str, Any]) -> None:
    await site.join()
    status, answer = await site.call("POST", "/tasks", {**ASKED, **more})
    assert status == 422
    assert "cache" in answer["error"]["message"]
