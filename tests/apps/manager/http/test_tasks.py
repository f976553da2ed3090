"""Tests of tasks over HTTP on a real store, with scripted workers."""

import asyncio
import contextlib
from io import BytesIO
from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import Site
from tests.support import scripted_worker
from tests.support.scale import Scale

pytestmark = pytest.mark.real


async def test_task_runs_and_returns_its_result(site: Site) -> None:
    worker = await site.join()
    status, accepted = await site.call(
        "POST",
        "/api/v1/tasks",
        {"task_type": "echo", "parameters": {"n": 1.50}, "resources": {"gpu_memory": "10GB"}},
        headers={"X-Correlation-ID": "c-1"},
    )
    assert status == 202
    assert accepted["status"] == "queued"
    assign = await worker.take()
    assert (assign.task, assign.attempt, assign.task_type) == (accepted["task_id"], 1, "echo")
    assert (bytes(assign.parameters), assign.memory_mib, assign.exclusive) == (b'{"n": 1.5}', 10_240, False)
    assert assign.correlation_id == "c-1"
    assert assign.devices[0].uuid == f"GPU-{assign.devices[0].index}-w"
    await worker.send(session.Progress(assign.task, 1, "half way"))
    waiting = asyncio.create_task(site.wait(assign.task))
    assert await worker.finish(assign, {"good": True})
    ended = await waiting
    assert (ended["status"], ended["result"], ended["assigned_worker"]) == ("completed", {"good": True}, "w")
    assert ended["duration_seconds"] >= 0


async def test_submit_with_wait_returns_the_ended_task(site: Site) -> None:
    worker = await site.join(max_concurrent=1)
    submitting = asyncio.create_task(site.call("POST", "/tasks?wait=10", {"task_type": "echo"}))
    await worker.finish(await worker.take(), "good")
    status, ended = await submitting
    assert (status, ended["status"], ended["result"]) == (200, "completed", "good")
    status, waits = await site.call("POST", "/api/v1/tasks?wait=2", {"task_type": "echo"})
    assert (status, waits["status"]) == (200, "assigned")
    status, waits = await site.call("POST", f"/tasks?wait={'0' * 100}.1", {"task_type": "echo"})
    assert (status, waits["status"], waits["queue_position"]) == (200, "queued", 1)
    assert waits["reason"] == "0/1 workers fit: 1 is running as many tasks as it may"
    status, answer = await site.call("POST", "/tasks?wait=long", {"task_type": "echo"})
    assert (status, answer["error"]["message"]) == (422, "wait=long: give seconds from 0 to 600")


async def test_task_without_gpu_memory_gets_a_whole_device(site: Site) -> None:
    worker = await site.join()
    names = [await site.submit() for _ in range(3)]
    given = [await worker.take() for _ in range(2)]
    assert {assign.devices[0].index for assign in given} == {0, 1}
    assert all(assign.exclusive for assign in given)
    assert (await site.task(names[2]))["status"] == "queued"
    await worker.finish(given[0])
    assert (await worker.take()).task == names[2]


async def test_batch_is_queued_whole_or_not_at_all(site: Site) -> None:
    worker = await site.join(max_concurrent=500)
    working = asyncio.create_task(worker.work())
    good = {"task_type": "echo", "resources": {"gpus": 0}}
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": [good, {**good, "priority": "soon"}]})
    assert (status, answer["error"]["code"]) == (422, "unprocessable")
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": [good] * 300})
    assert (status, answer["total"]) == (202, 300)
    for each in answer["tasks"]:
        assert (await site.wait(each["task_id"]))["status"] == "completed"
    _, page = await site.call("GET", "/tasks?status=completed&limit=7")
    assert (page["total"], len(page["tasks"])) == (300, 7)
    working.cancel()


async def test_high_priority_task_passes_thousands_of_waiting_ones(site: Site, scale: Scale) -> None:
    worker = await site.join(max_concurrent=1)
    low = {"task_type": "echo", "priority": "low", "resources": {"gpus": 0}}
    status, _ = await site.call("POST", "/tasks/batch", {"tasks": [low] * scale(test=3000, accept=10_000)})
    assert status == 202
    for _ in range(scale(test=5, accept=50)):
        running = await worker.take()
        high = await site.submit(priority="high", resources={"gpus": 0})
        await worker.finish(running)
        next_one = await worker.take()
        assert next_one.task == high
        await worker.finish(next_one)


async def test_cancel_ends_a_queued_task_and_asks_the_worker_of_a_running_one(site: Site) -> None:
    worker = await site.join(max_concurrent=1)
    running, queued = await site.submit(), await site.submit()
    assign = await worker.take()
    assert (await site.call("DELETE", f"/tasks/{queued}"))[1]["status"] == "cancelled"
    assert (await site.call("DELETE", f"/tasks/{running}"))[1]["status"] == "cancelling"
    cancel = await worker.receive(session.Cancel)
    assert (cancel.task, cancel.attempt) == (running, 1)
    await worker.send(session.Cancelled(running, 1))
    assert await worker.acked(assign)
    assert (await site.task(running))["status"] == "cancelled"
    status, answer = await site.call("DELETE", f"/tasks/{running}")
    assert (status, answer["error"]["message"]) == (409, f"task {running} is cancelled already")
    assert (await site.call("DELETE", "/tasks/unknown"))[0] == 404


async def test_retryable_error_is_retried_and_a_final_one_is_not(site: Site) -> None:
    worker = await site.join()
    name = await site.submit(max_retries=1)
    first = await worker.take()
    await worker.send(session.Failed(name, 1, session.TaskError("OutOfMemory", "no room", retryable=True)))
    second = await worker.take()
    assert second.attempt == first.attempt + 1
    await worker.send(session.Failed(name, 2, session.TaskError("ValueError", "no such thing")))
    ended = await site.wait(name)
    assert (ended["status"], ended["attempt"], ended["error"]["type"]) == ("failed", 2, "ValueError")
    assert (await site.call("POST", f"/tasks/{name}/retry"))[0] == 202
    third = await worker.take()
    assert third.attempt == 3
    await worker.finish(third)
    status, answer = await site.call("POST", f"/tasks/{name}/retry")
    assert (status, answer["error"]["code"]) == (409, "conflict")


async def test_dead_task_shows_the_evidence(site: Site) -> None:
    worker = await site.join()
    name = await site.submit(max_retries=0)
    await worker.take()
    await worker.send(session.RunnerDied(name, 1, "signal 9, last line: Killed"))
    assert (await site.wait(name))["status"] == "dead"
    _, page = await site.call("GET", "/tasks/dead")
    (dead,) = page["tasks"]
    assert dead["deaths"][0]["evidence"] == "signal 9, last line: Killed"
    assert dead["error"]["type"] == "RunnerDied"


async def test_task_that_can_never_fit_is_refused_with_reasons(site: Site) -> None:
    assert (await site.call("POST", "/tasks", {"task_type": "any"}))[0] == 202, "no worker yet: it waits"
    await site.join(devices=(scripted_worker.device(0, gib=24),))
    status, answer = await site.call(
        "POST", "/tasks", {"task_type": "echo", "resources": {"gpu_memory": "40GB"}}
    )
    assert status == 409
    assert answer["error"]["message"] == (
        "no worker can ever take this: 0/1 workers fit: 1 has no GPU of 40GB; "
        "80% of a GPU's memory can be reserved (GPU_MEMORY_THRESHOLD)"
    )
    assert answer["error"]["details"]["reasons"] == ["1 has no GPU of 40GB"]
    assert answer["error"]["details"]["nearest"] == "w has no GPU of 40GB"
    status, answer = await site.call("POST", "/tasks", {"task_type": "echo", "resources": {"gpus": 2}})
    assert status == 409
    status, answer = await site.call("POST", "/tasks", {"task_type": "ecko"})
    assert (status, answer["error"]["message"]) == (
        422,
        "unknown task_type 'ecko'; did you mean 'echo'? the workers know: echo, sleep",
    )
    _, answer = await site.call("POST", "/tasks", {"task_type": "python"})
    assert answer["error"]["message"].endswith("; a worker started with --function runs it")


async def test_explain_gives_a_reason_for_every_device(site: Site) -> None:
    worker = await site.join(
        devices=(
            scripted_worker.device(0),
            scripted_worker.device(1),
            scripted_worker.device(2),
            scripted_worker.device(3, 48),
        )
    )
    await worker.send(
        session.Report(
            (
                scripted_worker.reading(0, others_gib=20),
                scripted_worker.reading(1, problem="XID 79"),
                scripted_worker.reading(2),
                scripted_worker.reading(3, gib=48),
            )
        ),
        session.Renew(1),
    )
    await worker.receive(session.Renewed)
    holder = await site.submit(resources={"gpus": 1, "gpu_memory": "30GB"})
    assert (await worker.take()).devices[0].index == 3
    await site.call("POST", "/workers/w/devices/2/cordon")
    waiting = await site.submit(resources={"gpu_memory": "15GB"})
    status, answer = await site.call("GET", f"/tasks/{waiting}/explain")
    assert (status, answer["status"], answer["would_go_to"]) == (200, "queued", None)
    (verdict,) = answer["workers"]
    why = [each["why"] for each in verdict["devices"]]
    assert (
        why[0]
        == "0MB of 24GB can be reserved; the task wants 15GB (0MB reserved by tasks, 20GB used by others)"
    )
    assert why[1] == "it is not healthy: XID 79"
    assert why[2] == "it is cordoned"
    assert "the task wants 15GB (30GB reserved by tasks)" in why[3]
    assert "1 has no GPU with 15GB free" in answer["reason"]
    await site.call("POST", "/workers/w/devices/2/uncordon")
    assert (await worker.take()).task == waiting
    _, answer = await site.call("GET", f"/tasks/{holder}/explain")
    assert answer["status"] in ("assigned", "running")


async def test_memory_used_by_others_is_not_assigned(site: Site) -> None:
    """24 GiB at 80 % are 19.2. Others use 10, so 9.2 are left, and two of three tasks of 4 GiB fit."""
    worker = await site.join(devices=(scripted_worker.device(0),))
    await worker.send(session.Report((scripted_worker.reading(0, others_gib=10),)), session.Renew(1))
    await worker.receive(session.Renewed)
    for _ in range(3):
        await site.submit(resources={"gpu_memory": "4GiB"})
    first, second = await worker.take(), await worker.take()
    with contextlib.suppress(TimeoutError):
        extra = await worker.receive(session.Assign, within_s=0.5)
        pytest.fail(f"oversubscribed by {extra}")
    await worker.send(session.Report((scripted_worker.reading(0, others_gib=0),)))
    third = await worker.take()
    assert len({first.task, second.task, third.task}) == 3


async def test_same_idempotency_key_is_one_task(site: Site) -> None:
    first = await site.submit(idempotency_key="k", parameters={"n": 1})
    assert await site.submit(idempotency_key="k", parameters={"n": 1}) == first
    status, answer = await site.call(
        "POST", "/tasks", {"task_type": "echo", "idempotency_key": "k", "parameters": {"n": 2}}
    )
    assert (status, answer["error"]["details"]["task_id"]) == (409, first)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        pytest.param(b"{", 400, "the body is not valid JSON", id="malformed"),
        pytest.param(b"{}", 422, "task_type is missing; give a text", id="no type"),
        pytest.param(
            b'{"task_type":"echo","prio":1}', 422, "unknown field prio; known: task_type", id="unknown field"
        ),
        pytest.param(b'{"task_type":"echo","priority":101}', 422, "priority", id="priority too high"),
        pytest.param(
            b'{"task_type":"echo","priority":"soon"}', 422, "low, normal, high", id="no such priority"
        ),
        pytest.param(
            b'{"task_type":"echo","resources":{"gpu_memory":"much"}}', 422, "such as 24GB", id="no amount"
        ),
        pytest.param(
            b'{"task_type":"echo","resources":{"gpu_memory":"10"}}', 422, "write 10GB or 10MiB", id="no unit"
        ),
        pytest.param(
            b'{"task_type":"echo","parameters":"' + b"x" * 10_000_000 + b'"}',
            413,
            "MAX_REQUEST_MB",
            id="10 MB",
        ),
    ],
)
async def test_bad_body_returns_one_clear_error(site: Site, body: bytes, status: int, text: str) -> None:
    async with site.http.post("/tasks", data=BytesIO(body)) as answer:
        error: dict[str, Any] = (await answer.json())["error"]
        assert answer.status == status
    assert text in error["message"]
    assert set(error) == {"code", "message", "details"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/tasks?status=lost", "unknown status 'lost'; known: scheduled, queued"),
        ("/tasks?limit=0", "limit=0: give at least 1"),
        ("/tasks?limit=many", "limit=many: give a whole number"),
        ("/cluster/metrics?timeframe=2h", "timeframe=2h: give '1h', '24h', '7d' or '30d'"),
        (f"/tasks?owner={'x' * 201}", "give at most 200 characters"),
        ("/tasks/unknown", "there is no task unknown"),
        ("/nowhere", "Not Found"),
    ],
)
async def test_bad_query_returns_one_clear_error(site: Site, path: str, text: str) -> None:
    status, answer = await site.call("GET", path)
    assert 400 <= status < 500
    assert text in answer["error"]["message"]


@pytest.mark.parametrize("others", [1, 600])
async def test_batch_with_a_conflicting_idempotency_key_is_refused_whole(site: Site, others: int) -> None:
    name = await site.submit(idempotency_key="once")
    different = {"task_type": "echo", "parameters": {"other": 1}, "idempotency_key": "once"}
    batch = {"tasks": [{"task_type": "echo", "idempotency_key": f"{n}"} for n in range(others)] + [different]}
    status, answer = await site.call("POST", "/tasks/batch", batch)
    assert (status, answer["error"]["details"]) == (409, {"task_id": name, "task": others})
    twice = [{"task_type": "echo", "parameters": n, "idempotency_key": "new"} for n in (1, 1, 2)]
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": twice})
    assert (status, answer["error"]["details"]) == (409, {"task": 2})
    assert (await site.call("GET", "/tasks"))[1]["total"] == 1
    status, answer = await site.call("POST", "/tasks/batch", {"tasks": twice[:2]})
    assert (status, len({each["task_id"] for each in answer["tasks"]})) == (202, 1), "the same task twice"
