"""When and where a task may run: not_before, expires, pools and labels, through the API."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import key_of
from gpu_orchestrator.apps.manager.access.limits import Limits
from gpu_orchestrator.apps.manager.http.task_wishes import Times, pool_of, times_of
from gpu_orchestrator.apps.manager.task_schema import TaskRequest
from tests.apps.manager.conftest import Site
from tests.support.scripted_worker import device

NOW_S = 1_800_000_000.0
MIB = 1024 * 1024


def moment(seconds: float) -> str:
    return (datetime.fromtimestamp(NOW_S, UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize(
    ("given", "times"),
    [
        pytest.param({}, Times(), id="none"),
        pytest.param({"not_before": "10m"}, Times(-600_000, 0), id="how long"),
        pytest.param({"expires": moment(60)}, Times(0, 1_800_000_060_000), id="a time"),
        pytest.param({"not_before": moment(-60)}, Times(1_799_999_940_000, 0), id="past is now"),
        pytest.param({"not_before": "1h", "expires": "2h"}, Times(-3_600_000, -7_200_000), id="both"),
    ],
)
def test_times_are_read(given: dict[str, Any], times: Times) -> None:
    assert times_of(TaskRequest("echo", **given), NOW_S) == times


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"not_before": "soon"}, "not_before: 'soon' is not a time", id="word"),
        pytest.param({"expires": moment(-1)}, "has passed", id="past"),
        pytest.param({"expires": "1h", "not_before": "2h"}, "not after not_before", id="order"),
        pytest.param({"expires": "1h", "not_before": moment(7200)}, "not after not_before", id="mixed"),
        pytest.param({"expires": "900d"}, "366 days", id="far"),
    ],
)
def test_times_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Unprocessable, match=said):
        times_of(TaskRequest("echo", **given), NOW_S)


@pytest.mark.parametrize(
    ("allowed", "wanted", "pool"),
    [
        pytest.param((), "a", "a", id="any pool"),
        pytest.param(("a",), "", "a", id="its only pool"),
        pytest.param(("a", "b"), "b", "b", id="one of its pools"),
        pytest.param(("a", "b"), "", None, id="several pools and none named"),
        pytest.param(("a",), "b", None, id="another pool"),
    ],
)
def test_key_may_be_limited_to_pools(allowed: tuple[str, ...], wanted: str, pool: str | None) -> None:
    limited = replace(key_of("k" * 64, "submit"), limits=Limits(pools=allowed))
    if pool is not None:
        assert pool_of(wanted, limited) == pool
    else:
        with pytest.raises(errors.Forbidden, match=r"name one of these in resources\.pool"):
            pool_of(wanted, limited)


@pytest.mark.real
async def test_pools_and_labels_through_the_api(site: Site) -> None:
    plain = await site.join("plain")
    pooled = await site.join("pooled", pool="a100", labels={"zone": "b"})
    in_pool = await site.submit(resources={"gpus": 0, "pool": "a100", "labels": {"zone": "b"}})
    assert (await pooled.take()).task == in_pool
    outside = await site.submit(resources={"gpus": 0})
    assert (await plain.take()).task == outside
    shown = await site.task(in_pool)
    assert (shown["pool"], shown["worker_labels"]) == ("a100", {"zone": "b"})
    status, refused = await site.call("POST", "/tasks", _body(pool="h200"))
    assert status == 409
    assert refused["error"]["details"]["reasons"] == ["2 are not in pool h200"]
    status, refused = await site.call("POST", "/tasks", _body(labels={"zone": "c"}, pool="a100"))
    assert "1 does not have the label zone=c" in refused["error"]["message"]
    _, workers = await site.call("GET", "/workers")
    assert {each["worker_id"]: each["pool"] for each in workers["workers"]} == {"plain": "", "pooled": "a100"}


@pytest.mark.real
async def test_key_retries_tasks_of_its_pools_only(site: Site) -> None:
    await site.join("pooled", pool="a100", task_types=("other",))
    tokens = {}
    for pool in ("a100", "cheap"):
        made = {"name": pool, "owner": "ann", "scopes": ["submit", "read"], "limits": {"pools": [pool]}}
        status, answer = await site.call("POST", "/keys", made)
        assert status == 201
        tokens[pool] = {"Authorization": f"Bearer {answer['key']}"}
    body = {**_body(), "task_type": "other", "not_before": "1h"}
    _, accepted = await site.call("POST", "/tasks", body, headers=tokens["a100"])
    name = accepted["task_id"]
    assert (await site.call("DELETE", f"/tasks/{name}", headers=tokens["a100"]))[0] == 200
    status, refused = await site.call("POST", f"/tasks/{name}/retry", headers=tokens["cheap"])
    assert (status, "may use the pool cheap alone" in refused["error"]["message"]) == (403, True)
    _, many = await site.call("POST", "/tasks/retry", {"task_ids": [name]}, headers=tokens["cheap"])
    assert "may use the pool cheap alone" in many["tasks"][0]["error"]
    assert (await site.call("POST", f"/tasks/{name}/retry", headers=tokens["a100"]))[0] == 202


def _body(**resources: Any) -> dict[str, Any]:
    return {"task_type": "echo", "resources": {"gpus": 0, **resources}}


@pytest.mark.real
async def test_task_waits_for_its_time_and_another_expires(site: Site) -> None:
    worker = await site.join(max_concurrent=1)
    first = await site.submit(resources={"gpus": 0})
    assert (await worker.take()).task == first
    status, accepted = await site.call("POST", "/tasks", {**_body(), "not_before": "1s", "expires": "1h"})
    assert (status, accepted["status"]) == (202, "scheduled")
    later = accepted["task_id"]
    shown = await site.task(later)
    assert shown["status"] == "scheduled"
    assert shown["reason"] == f"not before {shown['not_before']}"
    explained = (await site.call("GET", f"/tasks/{later}/explain"))[1]
    assert explained["reason"] == shown["reason"]
    assert explained["expires"]
    assert explained["expires"] == shown["expires"]
    _, listed = await site.call("GET", "/tasks?status=scheduled")
    assert [each["task_id"] for each in listed["tasks"]] == [later]

    ended = await site.wait(await site.submit(resources={"gpus": 0}, expires="0.1s"))
    assert (ended["status"], ended["error"]["type"]) == ("failed", "Expired")
    assert ended["expires"]

    far = await site.submit(resources={"gpus": 0}, not_before="1h")
    status, cancelled = await site.call("DELETE", f"/tasks/{far}")
    assert (status, cancelled["status"]) == (200, "cancelled")

    await worker.finish(session.Assign(first, 1, "echo"))
    assert (await worker.take()).task == later
    assert (await site.task(later))["status"] in ("assigned", "running")
    async with site.http.get("/metrics") as answer:
        assert "tasks_expired_total 1.0" in await answer.text()


@pytest.mark.real
async def test_scheduled_task_survives_a_new_term(site: Site) -> None:
    """Its time is in the store: a leader whose snapshot does not have the task queues it all the same."""
    terms = site.running.manager.metrics.terms
    task = await site.submit(resources={"gpus": 0}, not_before="2s")
    before = terms._value.get()
    site.running.manager.leader._invalidate()
    async with asyncio.timeout(60):
        while terms._value.get() == before:  # noqa: ASYNC110 - the leader offers no event
            await asyncio.sleep(0.01)
    worker = await site.join()
    assert (await worker.take()).task == task


@pytest.mark.real
async def test_task_out_of_memory_goes_to_another_device_with_more_memory(site: Site) -> None:
    worker = await site.join(devices=(device(0), device(1)))
    task = await site.submit(resources={"gpu_memory": "4GB"})
    first = await worker.take()
    used = session.Held(task, 1, 5 * 1024)
    on = first.devices[0].index
    readings = tuple(
        session.Reading(index, 0, 20 * 1024, held=(used,) if index == on else ()) for index in (0, 1)
    )
    await worker.send(session.Report(readings))
    error = session.TaskError("OutOfMemory", "no memory", retryable=True)
    await worker.send(session.Failed(task, 1, error))
    second = await worker.take()
    assert second.attempt == 2
    assert second.devices[0].index != on
    assert second.memory_mib == int(5 * 1024 * 1.5)
    shown = await site.task(task)
    (death,) = shown["deaths"]
    assert (death["kind"], death["worker"], death["devices"]) == ("memory", "w", [on])
    assert (death["reserved_mib"], death["used_mib"]) == (4 * 1024, 5 * 1024)
    assert shown["memory_reserved_bytes"] == second.memory_mib * MIB
