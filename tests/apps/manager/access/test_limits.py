"""Tests of limits over HTTP: request rates, queued tasks, running tasks, and GPU seconds per day."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.api.units import MIB, show_seconds
from gpu_orchestrator.apps.manager.access.keys import Key, Keys, Scope, key_of
from gpu_orchestrator.apps.manager.access.limits import Limits
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.access.rate_limiter import RateLimiter
from tests.apps.manager.conftest import NewSite, Site

ECHO = {"task_type": "echo", "resources": {"gpus": 0}}
WHOLE = {"task_type": "echo", "resources": {"gpus": 1}}


class Caller:
    """A client with its own key."""

    def __init__(self, site: Site, key: str) -> None:
        self.site, self.headers = site, {"Authorization": f"Bearer {key}"}

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.site.call(method, path, body, headers=self.headers)

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, int, str]:
        """Return status, seconds to wait and message of a refusal."""
        async with self.site.http.request(method, path, json=body, headers=self.headers) as answer:
            assert answer.status in (429, 503), await answer.text()
            return (
                answer.status,
                int(answer.headers["Retry-After"]),
                (await answer.json())["error"]["message"],
            )


async def new_caller(site: Site, name: str, owner: str = "", **limits: float) -> Caller:
    body = {"name": name, "limits": limits, **({"owner": owner} if owner else {})}
    status, made = await site.call("POST", "/keys", body)
    assert status == 201, made
    return Caller(site, made["key"])


@pytest.mark.real
async def test_key_over_its_rate_gets_429_and_retry_after(site: Site) -> None:
    ann, bob = await new_caller(site, "ann", requests_per_minute=3), await new_caller(site, "bob")
    assert [(await ann.call("GET", path))[0] for path in ("/tasks", "/api/v1/tasks", "/nowhere")] == [
        200,
        200,
        404,
    ]
    status, wait_s, message = await ann.refused("GET", "/tasks")
    assert status == 429
    assert 1 <= wait_s <= 61
    assert message.startswith(
        f"this key may send 3 requests a minute and 1000 an hour; retry in {show_seconds(wait_s)}"
    )
    assert (await ann.refused("POST", "/tasks", ECHO))[0] == 429
    assert (await bob.call("GET", "/tasks"))[0] == 200, "other keys are not affected"
    metrics = await (await site.http.get("/metrics")).text()
    assert 'requests_refused_total{limit="rate",owner="ann"} 2.0' in metrics


@pytest.mark.real
async def test_route_with_its_own_rate_counts_separately(new_site: NewSite) -> None:
    site = await new_site(rate_limit_routes="GET /tasks/{task_id}=1/m; GET /workers=none")
    ann = await new_caller(site, "ann", requests_per_minute=2)
    for _ in range(5):
        assert (await ann.call("GET", "/workers"))[0] == 200
    assert (await ann.call("GET", "/api/v1/tasks/one"))[0] == 404
    assert (
        "may send 1 request a minute to GET /tasks/{task_id}; retry in"
        in (await ann.refused("GET", "/tasks/two"))[2]
    )
    assert [(await ann.call("GET", "/tasks"))[0] for _ in range(2)] == [200, 200], (
        "other routes count separately"
    )
    assert (await ann.refused("GET", "/tasks"))[0] == 429


@pytest.mark.real
async def test_batch_counts_as_one_request_per_hundred_tasks(site: Site) -> None:
    ann = await new_caller(site, "ann", requests_per_minute=4)
    assert (await ann.call("POST", "/tasks/batch", {"tasks": [ECHO] * 201}))[0] == 202
    assert (await ann.call("POST", "/tasks/batch", {"tasks": [ECHO] * 100}))[0] == 202
    assert (await ann.refused("POST", "/tasks", ECHO))[0] == 429


@pytest.mark.real
async def test_configured_keys_have_no_limits(new_site: NewSite) -> None:
    site = await new_site(rate_limit_per_minute=1, quota_queued_tasks=1)
    for _ in range(3):
        await site.submit(resources={"gpus": 0})
    ann = await new_caller(site, "ann", requests_per_minute=0)
    assert (await ann.call("POST", "/tasks", ECHO))[0] == 202
    assert (await ann.refused("POST", "/tasks", ECHO))[0] == 503, (
        "the setting applies where the key has no limit of its own"
    )


@pytest.mark.real
async def test_full_queue_refuses_a_batch_whole(site: Site) -> None:
    ann = await new_caller(site, "ann", queued_tasks=3)
    assert (await ann.call("POST", "/tasks/batch", {"tasks": [ECHO] * 2}))[0] == 202
    status, wait_s, message = await ann.refused("POST", "/tasks/batch", {"tasks": [ECHO] * 2})
    assert (status, wait_s >= 1) == (503, True)
    assert message == (
        "at most 3 tasks of ann may wait, and 2 more would be too many; "
        "nothing was queued; retry when some have started"
    )
    assert (await ann.call("GET", "/tasks"))[1]["total"] == 2
    again = {**ECHO, "idempotency_key": "once"}
    (_, first), (status, second) = [await ann.call("POST", "/tasks", again) for _ in range(2)]
    assert (status, second["task_id"]) == (202, first["task_id"]), "a known task needs no room"
    other = await new_caller(site, "ann-too", owner="ann", queued_tasks=3)
    assert (await other.refused("POST", "/tasks", ECHO))[0] == 503, "keys of one owner have one queue"
    worker = await site.join(max_concurrent=8)
    for _ in range(3):
        await worker.take()
    new = {**ECHO, "idempotency_key": "new"}  # without a key, the recent refusal is repeated
    assert (await ann.call("POST", "/tasks", new))[0] == 202, "running tasks leave the queue"


@pytest.mark.real
async def test_queue_of_each_priority_is_bounded(new_site: NewSite) -> None:
    site = await new_site(max_queued_tasks=2)
    for _ in range(2):
        await site.submit(priority="low", resources={"gpus": 0})
    status, answer = await site.call("POST", "/tasks", {**ECHO, "priority": 10})
    assert (status, answer["error"]["code"]) == (503, "queue_full")
    assert "2 tasks of one priority" in answer["error"]["message"]
    await site.submit(priority="normal", resources={"gpus": 0})


@pytest.mark.real
async def test_full_store_refuses_new_tasks_and_runs_the_queued_ones(new_site: NewSite) -> None:
    site = await new_site(max_store_mb=12)
    worker = await site.join(max_concurrent=1)
    large = {**ECHO, "parameters": "x" * 1_000_000}
    taken = []
    for _ in range(12):
        status, answer = await site.call("POST", "/tasks", large)
        if status != 202:
            break
        taken.append(answer["task_id"])
    assert (status, answer["error"]["code"]) == (503, "store_full")
    assert "of at most 12 MiB; nothing was queued" in answer["error"]["message"]
    assert 5 <= len(taken) < 12
    assert (await site.call("GET", "/tasks"))[1]["total"] == len(taken)
    await worker.finish(await worker.take())
    assert (await site.wait(taken[0]))["status"] == "completed", (
        "queued tasks run, and their results are stored"
    )


@pytest.mark.real
async def test_refused_and_known_tasks_take_no_room(new_site: NewSite) -> None:
    site = await new_site(max_store_mb=12)
    ann = await new_caller(site, "ann", queued_tasks=1)
    large = {**ECHO, "parameters": "x" * 1_000_000}
    known = {**large, "idempotency_key": "once"}
    (first, *again) = [await ann.call("POST", "/tasks", known) for _ in range(12)]
    assert again == [first] * 11
    for _ in range(12):
        assert (await ann.refused("POST", "/tasks", large))[2].startswith("at most 1 tasks of ann")
    assert (await site.call("POST", "/tasks", large))[0] == 202


@pytest.mark.real
async def test_tasks_in_flight_count_against_the_room_after_a_refresh(new_site: NewSite) -> None:
    overview = (await new_site(max_store_mb=12)).running.manager.overview
    size = 8 * MIB
    await overview.refresh(at_most_old_s=0.0)
    assert overview.reserve_memory(size) is None
    await overview.refresh(at_most_old_s=0.0)
    assert overview.reserve_memory(size) is not None, "the store does not show tasks in flight yet"
    overview.release_memory(size, kept=0)
    assert overview.reserve_memory(size) is None


@pytest.mark.real
async def test_owner_at_its_running_limit_waits_without_blocking_others(site: Site) -> None:
    worker = await site.join(max_concurrent=8)
    ann, bob = await new_caller(site, "ann", running_tasks=2), await new_caller(site, "bob")
    names = [(await ann.call("POST", "/tasks", ECHO))[1]["task_id"] for _ in range(4)]
    running = [await worker.take() for _ in range(2)]
    assert [each.task for each in running] == names[:2]
    bobs = (await bob.call("POST", "/tasks", ECHO))[1]["task_id"]
    assert (await worker.take()).task == bobs, "ann's tasks are older, but may not start"
    _, why = await ann.call("GET", f"/tasks/{names[2]}/explain")
    assert (why["reason"], why["would_go_to"]) == (
        "ann has 2 tasks running, the most that may run at once",
        None,
    )
    _, limits = await ann.call("GET", "/limits")
    assert limits["running_tasks"] == {"most": 2, "used": 2}
    assert limits["queued_tasks"] == {"most": 10_000, "used": 2}
    assert limits["requests_per_minute"] == {"most": 100, "used": 6}
    assert limits["held_back"] == why["reason"]
    await worker.finish(running[0])
    assert (await worker.take()).task == names[2]


@pytest.mark.real
async def test_new_leader_knows_the_running_tasks_of_each_owner(new_site: NewSite) -> None:
    site = await new_site()
    worker = await site.join(max_concurrent=8)
    ann = await new_caller(site, "ann", running_tasks=1)
    first, second = [(await ann.call("POST", "/tasks", ECHO))[1]["task_id"] for _ in range(2)]
    running = await worker.take()
    assert running.task == first
    site.running.manager.leader._invalidate()  # it reads everything again, as a new leader does
    await site.submit(resources={"gpus": 0})
    assert (await worker.take()).task != second
    await worker.finish(running)
    assert (await worker.take()).task == second


@pytest.mark.real
async def test_owner_over_its_daily_gpu_seconds_is_refused(site: Site) -> None:
    worker = await site.join(max_concurrent=8)
    ann = await new_caller(site, "ann", gpu_seconds_per_day=2)
    names = [(await ann.call("POST", "/tasks", WHOLE))[1]["task_id"] for _ in range(3)]
    running = [await worker.take() for _ in range(2)]
    store = site.running.manager.store
    key = f"{store.database.prefix}t:{names[0]}"
    assigned = int(await store.database._execute("HGET", key, "assigned"))
    # It started five seconds ago.
    await store.database._execute("HSET", key, "assigned", str(assigned - 5000))
    await worker.finish(running[0])
    status, wait_s, message = await ann.refused("POST", "/tasks", WHOLE)
    assert (status, 1 <= wait_s <= 86_400) == (429, True)
    assert message == "ann may use 2 GPU seconds a day and has used them; the next day begins at 00:00 UTC"
    await worker.finish(running[1])
    theirs = await site.submit()
    assert (await worker.take()).task == theirs, "ann's third task waits for the next day"
    _, why = await ann.call("GET", f"/tasks/{names[2]}/explain")
    assert why["reason"] == "ann has used the 2 GPU seconds that it may use today (UTC)"


@pytest.mark.real
async def test_processes_share_rate_counts(new_site: NewSite) -> None:
    one = await new_site("one")
    assert one.running.embedded is not None
    two = await new_site("two", redis_url=one.running.embedded.url)
    ann = await new_caller(one, "ann", requests_per_minute=4)
    await two.running.manager.key_sync.refresh()
    there = Caller(two, ann.headers["Authorization"].split()[1])
    for each in (ann, ann, ann, there):
        assert (await each.call("GET", "/tasks"))[0] == 200
    for site in (one, two, one):
        await site.running.manager.rate_limiter.sync()
    for each in (ann, there):
        assert (await each.refused("GET", "/tasks"))[0] == 429


def key(owner: str, scope: Scope = "submit", **limits: float) -> Key:
    own = Limits(**limits)  # type: ignore[arg-type]
    return Key(owner, f"{owner}{scope}{own}".encode(), owner, owner, frozenset({scope}), limits=own)


def test_most_generous_key_of_an_owner_counts() -> None:
    keys = Keys([key_of("a" * 64, "admin")])
    keys.replace(
        [key("ann", running_tasks=2, weight=0.5), key("ann", running_tasks=5, gpu_seconds_per_day=9)]
    )
    quotas = Quotas(settings.Settings())
    quotas.refresh(keys)
    assert (quotas.most("ann"), quotas.weight("ann")) == (5, 1.0)
    quotas.used_s = {"ann": 10.0}
    assert quotas.most("ann") == 5, "the other key has no daily limit"
    assert quotas.most("nobody") is None
    keys.replace(
        [key("ann", running_tasks=2, gpu_seconds_per_day=9), key("ann", "read"), key("ann", "worker")]
    )
    quotas.refresh(keys)
    assert quotas.most("ann") == 0, "keys that cannot submit do not lift a limit"


def test_limits_of_an_expired_key_no_longer_count() -> None:
    now_ms = 1000
    keys = Keys([], now_ms=lambda: now_ms)
    keys.replace([key("ann", running_tasks=2), replace(key("ann", running_tasks=5), expires_ms=2000)])
    quotas = Quotas(settings.Settings())
    quotas.refresh(keys)
    assert quotas.most("ann") == 5
    now_ms = 2000
    quotas.refresh(keys)
    assert quotas.most("ann") == 2


async def test_refusals_are_delayed_up_to_a_number_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals above MAX_LINGERING are sent at once, because waiting costs memory."""
    monkeypatch.setattr("gpu_orchestrator.apps.manager.access.rate_limiter.MAX_LINGERING", 2)
    rate_limiter = RateLimiter(None, settings.Settings(), None, lambda: 0.0)  # type: ignore[arg-type]
    lingering = [asyncio.ensure_future(rate_limiter.linger()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [each.done() for each in lingering] == [False, False, True]
    await asyncio.gather(*lingering)


@pytest.mark.real
async def test_retry_into_a_full_queue_is_refused(site: Site) -> None:
    ann = await new_caller(site, "ann", queued_tasks=1)
    names = []
    for _ in range(2):
        _, taken = await ann.call("POST", "/tasks", ECHO)
        names.append(taken["task_id"])
        assert (await ann.call("DELETE", f"/tasks/{names[-1]}"))[0] == 200
    assert (await ann.call("POST", f"/tasks/{names[0]}/retry"))[0] == 202
    status, wait_s, message = await ann.refused("POST", f"/tasks/{names[1]}/retry")
    assert (status, wait_s >= 1) == (503, True)
    assert message.startswith("at most 1 tasks of ann may wait")
    assert (await ann.call("GET", f"/tasks/{names[1]}"))[1]["status"] == "cancelled"
    assert (await site.call("POST", f"/tasks/{names[1]}/retry"))[0] == 202, "an admin may"
