"""Large results are kept outside the store, and ended tasks within their bounds."""

import asyncio
from time import monotonic
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.disk import Left
from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.tasks import retention, task_logs
from tests.apps.manager.conftest import NewSite, Site
from tests.support import s3_server, stores
from tests.support.fleet import eventually

pytestmark = pytest.mark.real
ECHO: dict[str, Any] = {"task_type": "echo", "resources": {"gpus": 0}}
LARGE = "x" * 300_000


async def completed(site: Site, result: Any = LARGE, **rest: Any) -> str:
    """Return a task that has ended with this result; a worker `w` must be there."""
    worker = site.workers["w"]  # type: ignore[attr-defined]
    name = await site.submit(**{**ECHO, **rest, "task_type": "echo"})
    assert await worker.finish(await worker.take(), result)
    return name


@pytest.fixture
def with_worker(new_site: NewSite) -> Any:
    async def open_site(name: str = "one", **given: Any) -> Site:
        site: Site = await new_site(name, **given)
        site.workers = {"w": await site.join(max_concurrent=100)}  # type: ignore[attr-defined]
        return site

    return open_site


async def stored(site: Site, name: str) -> dict[str, str]:
    (row,) = await site.running.manager.store.tasks.fetch([name], results=True)
    assert row is not None
    return row


async def result(site: Site, name: str) -> tuple[int, Any, str]:
    async with site.http.get(f"/tasks/{name}/result") as answer:
        return answer.status, await answer.json(), answer.headers.get("Content-Length", "")


async def test_large_result_is_a_file_and_is_shown_everywhere_but_in_lists(with_worker: Any) -> None:
    site = await with_worker(result_shown_kb=400)
    small, large = await completed(site, "small"), await completed(site)
    row = await stored(site, large)
    assert (row["result"], row["result_at"].split()[:2]) == ("", ["file", "300002"])
    (file,) = [each for each in site.running.manager.results.folder.rglob("*.*") if each.is_file()]
    assert file.read_text() == f'"{LARGE}"'
    assert "result_at" not in await stored(site, small)
    for name, value in ((small, "small"), (large, LARGE)):
        shown = await site.task(name)
        assert (shown["result"], shown["result_url"]) == (value, f"/tasks/{name}/result")
        assert await result(site, name) == (200, value, str(len(value) + 2))
    waiting = asyncio.create_task(site.call("POST", "/tasks?wait=20", ECHO))
    worker = site.workers["w"]
    await worker.finish(await worker.take(), LARGE)
    assert (await waiting)[1]["result"] == LARGE
    _, page = await site.call("GET", "/tasks")
    assert [(each["result"], each["result_bytes"]) for each in page["tasks"]] == [
        (None, 300_002),
        (None, 300_002),
        (None, 7),
    ]


async def test_result_above_the_bound_is_shown_as_a_reference(with_worker: Any) -> None:
    site = await with_worker(result_shown_kb=100)
    name = await completed(site)
    shown = await site.task(name)
    assert (shown["result"], shown["result_bytes"]) == (None, 300_002)
    assert (await site.call("GET", shown["result_url"])) == (200, LARGE)
    queued = await site.submit(**{**ECHO, "task_type": "echo"})
    status, answer = await site.call("GET", f"/tasks/{queued}/result")
    assert (status, "has no result" in answer["error"]["message"]) == (409, True)


async def test_result_that_this_server_does_not_have_is_told(with_worker: Any) -> None:
    site = await with_worker()
    name = await completed(site)
    for file in site.running.manager.results.folder.rglob("*.*"):
        file.unlink()
    status, answer, _ = await result(site, name)
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert "need one shared RESULTS_DIR, or RESULTS_S3_BUCKET" in answer["error"]["message"]
    assert (await site.task(name))["result"] is None


async def test_result_that_cannot_be_written_waits_and_is_told(with_worker: Any) -> None:
    site = await with_worker()
    folder = site.running.manager.results.folder
    folder.write_text("in the way")
    worker = site.workers["w"]
    name = await site.submit(**ECHO)
    assign = await worker.take()
    await worker.send(session.Done(assign.task, 1, msgspec.Raw(msgspec.json.encode(LARGE))))
    await eventually(lambda: _health_says(site, "results", "RESULTS_DIR"), 60)
    assert await completed(site, "small"), "small results do not wait for it"
    folder.unlink()
    assert await worker.acked(assign)
    assert (await site.task(name))["result"] == LARGE


async def _health_says(site: Site, part: str, words: str) -> bool:
    return words in (await site.call("GET", "/health"))[1]["dependencies"].get(part, "")


async def test_large_result_is_an_object_of_s3(with_worker: Any) -> None:
    async with s3_server.s3_server() as server:
        site = await with_worker(
            results_s3_endpoint=server.url,
            results_s3_bucket=s3_server.BUCKET,
            results_s3_access_key=s3_server.ACCESS,
            results_s3_secret_key=s3_server.SECRET,
            results_s3_prefix="mine/",
        )
        name = await completed(site)
        ((key, body),) = server.objects.items()
        assert (key.startswith("mine/"), body) == (True, f'"{LARGE}"'.encode())
        assert (await site.task(name))["result"] == LARGE
        assert (await result(site, name))[:2] == (200, LARGE)
        keeps = site.running.manager.retention
        server.objects["mine/" + key.split("/")[1] + "/never.1.committed"] = b"x"
        server.objects["yours/never.1.committed"] = b"x"
        assert await keeps.sweep(-60) == 1
        assert set(server.objects) == {key, "yours/never.1.committed"}
        await site.running.manager.store.results.forget("test", most=10)
        await keeps.enforce()
        assert set(server.objects) == {"yours/never.1.committed"}
        assert (await site.call("GET", f"/tasks/{name}"))[0] == 404


async def test_file_is_deleted_with_its_task_and_orphans_are_swept(with_worker: Any) -> None:
    site = await with_worker()
    manager = site.running.manager
    kept, brief = await completed(site), await completed(site, result_ttl=0.2)
    assert (await site.call("POST", "/tasks", {**ECHO, "result_ttl": 1e6}))[0] == 422

    def files() -> int:
        return sum(each.is_file() for each in manager.results.folder.rglob("*.*"))

    async def one_is_left() -> bool:
        await manager.retention.enforce()
        await manager.store.tasks.trim()  # after it: what was due there has expired here
        return files() == 1

    await eventually(one_is_left, 60)
    assert (await site.call("GET", f"/tasks/{brief}"))[0] == 404
    assert (await site.call("GET", "/tasks"))[1]["total"] == 1, "totals count no expired row"
    await manager.results.write("never-committed", 1, b"x")
    assert await manager.retention.sweep(3600) == 0, "it may be committed next"
    assert await manager.retention.sweep(-60) == 1
    assert (files(), (await result(site, kept))[1]) == (1, LARGE)
    held = await manager.store.results.held()
    assert (held.ended, held.result_bytes) == (1, 300_002)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        pytest.param({"task_retention_count": 3}, "count", id="by number"),
        pytest.param({"results_mb": 0.9}, "results", id="by bytes of results"),
    ],
)
async def test_oldest_tasks_beyond_a_bound_are_forgotten_and_told(
    with_worker: Any, settings: dict[str, float], why: str
) -> None:
    site = await with_worker(**settings)
    names = [await completed(site) for _ in range(5)]
    while await site.running.manager.retention.enforce(recent_ms=0):
        pass
    found = [(await site.call("GET", f"/tasks/{name}"))[0] for name in names]
    assert found == [404, 404, 200, 200, 200]
    _, answer = await site.call("GET", f"/tasks/{names[0]}")
    assert "and less just now: " in answer["error"]["message"]
    _, health = await site.call("GET", "/health")
    assert health["status"] == "degraded"
    assert "forgotten early" in health["dependencies"]["retention"]
    assert site.running.manager.metrics.registry.get_sample_value("tasks_forgotten_total", {"why": why}) == 2
    _, events = await site.call("GET", "/cluster/events?limit=100")
    assert [each["event"] for each in events["events"]].count("tasks_forgotten") == 1


async def test_completed_tasks_make_room_before_new_ones_are_refused(with_worker: Any) -> None:
    """Many ended tasks with results that just fit into the store."""
    site = await with_worker(max_store_mb=12, result_inline_kb=512)
    names = [await completed(site, "x" * 400_000) for _ in range(20)]
    for _ in range(20):
        while await site.running.manager.retention.enforce(recent_ms=0):
            pass
        names.append(await completed(site, "x" * 400_000))
    assert await site.running.manager.store.tasks.fetch(names[:2]) == [None, None]
    assert (await site.task(names[-1]))["status"] == "completed"
    assert (await site.running.manager.store.database.room()).used < 12 << 20


async def test_task_whose_callback_is_due_is_not_forgotten(with_worker: Any) -> None:
    site = await with_worker()
    store = site.running.manager.store
    first, second = await completed(site, 1), await completed(site, 2)
    await store.database._execute("ZADD", store.database.prefix + "callbacks", 10**15, first)
    assert (await store.results.forget("test", most=10)).tasks == 1
    assert [row is None for row in await store.tasks.fetch([first, second])] == [False, True]


async def test_tasks_that_must_stay_do_not_keep_others(
    with_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 1)
    site = await with_worker(task_retention_count=4, results_mb=1000)
    manager = site.running.manager
    names = [await completed(site) for _ in range(6)]
    for name in names[:4]:  # their receiver does not answer
        callbacks = f"{manager.store.database.prefix}callbacks"
        await manager.store.database._execute("ZADD", callbacks, 1 << 52, name)

    async def forgotten() -> list[int]:
        await manager.retention.enforce(recent_ms=0)
        return [at for at, name in enumerate(names) if (await site.call("GET", f"/tasks/{name}"))[0] == 404]

    assert [await forgotten() for _ in range(4)][-1] == [4, 5]
    manager.retention._bounds = retention.Bounds(0, 0, 1)
    names.append(await completed(site))
    assert [await forgotten() for _ in range(6)][-1] == [4, 5, 6]


@pytest.mark.parametrize("kind", ["file", "s3"])
async def test_full_disk_concerns_only_results_on_it(
    with_worker: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with s3_server.s3_server() as server:
        bucket = {
            "results_s3_endpoint": server.url,
            "results_s3_bucket": s3_server.BUCKET,
            "results_s3_access_key": s3_server.ACCESS,
            "results_s3_secret_key": s3_server.SECRET,
        }
        site = await with_worker(**(bucket if kind == "s3" else {}))
        manager = site.running.manager
        name = await completed(site)
        full = Left(manager.results.folder, 0, 1 << 40)
        monkeypatch.setattr(manager.results.disk, "left", lambda: full)
        await manager.retention.enforce(recent_ms=0)
        found = (await site.call("GET", f"/tasks/{name}"))[0], (await site.call("POST", "/tasks", ECHO))[0]
        assert found == ((200, 202) if kind == "s3" else (404, 503))


async def test_results_are_not_swept_just_after_an_outage(
    with_worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those written meanwhile belong to no task yet, however old they are."""
    site = await with_worker()
    kept = site.running.manager.retention
    kept._sweep_at = 0.0
    was_asked = asyncio.Event()

    async def unreachable() -> bool:
        was_asked.set()
        raise Unreachable("it is away")

    monkeypatch.setattr(kept, "enforce", unreachable)
    await asyncio.wait_for(was_asked.wait(), 20)
    assert kept._sweep_at > monotonic()


async def test_server_starts_and_shows_keys_while_the_store_is_full(
    new_site: NewSite, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store")
    async with stores.external(folder, appendonly="yes", appendfsync="always", maxmemory="1mb") as url:
        site = await new_site("one", redis_url=url)
        assert (await site.call("GET", "/keys"))[0] == 200


@pytest.mark.parametrize("kind", ["embedded", "external"])
async def test_store_at_its_limit_refuses_new_tasks_and_ends_the_others(
    with_worker: Any, kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_logs, "STORE_PAUSE_S", 60.0)  # an outcome does not wait for text to be stored
    folder = tmp_path_factory.mktemp("store")
    async with stores.external(folder, appendonly="yes", appendfsync="always", maxmemory="64mb") as url:
        site = await with_worker(redis_url=url) if kind == "external" else await with_worker(max_store_mb=64)
        store, worker = site.running.manager.store, site.workers["w"]
        site.running.manager.retention._leads = lambda: False  # what ends here is looked at later
        for _ in range(3):
            await site.submit(**ECHO)
        assigns = [await worker.take() for _ in range(3)]
        names = [each.task for each in assigns]
        limit = await store.database._setting("maxmemory")
        assert int(limit) > 0, "the kernel never has to choose"
        await store.database._execute("CONFIG", "SET", "maxmemory", "1mb")
        status, answer = await site.call("POST", "/tasks", ECHO)
        assert (status, answer["error"]["code"]) == (503, "store_full")
        await worker.send(session.Log(names[0], 1, 0, "text\n"))
        assert await worker.finish(assigns[0], "small")
        assert (await site.call("DELETE", f"/tasks/{names[1]}"))[0] == 200
        await worker.receive(session.Cancel)
        await worker.send(session.Cancelled(names[1], 1))
        assert await worker.acked(assigns[1])
        assert (await store.leadership.campaign()).fence, "the leader goes on leading"
        await site.running.manager.key_sync.write_used()
        await site.running.manager.key_sync.refresh()
        await worker.send(session.Renew(1))
        await worker.receive(session.Renewed)
        await store.tasks.trim()
        async with asyncio.timeout(30):
            while (await site.task(names[2]))["status"] != "running":
                pass
        assert [(await site.task(name))["status"] for name in names[:2]] == ["completed", "cancelled"]
        await store.database._execute("CONFIG", "SET", "maxmemory", limit)
        assert (await site.call("POST", "/tasks", ECHO))[0] == 202


async def test_few_tasks_start_while_the_store_is_nearly_full(with_worker: Any) -> None:
    site = await with_worker()
    manager, worker = site.running.manager, site.workers["w"]
    manager.retention.most_active = 2
    manager.retention._bounds = retention.Bounds(0, 1, 0)  # a store of one byte: full
    await manager.retention.enforce()
    assert manager.retention.most_active == 1
    names = [await site.submit(**ECHO) for _ in range(3)]
    first = await worker.take()
    _, shown = await site.call("GET", f"/tasks/{names[2]}/explain")
    assert "at most 1 tasks run at once until there is room for results" in shown["reason"]
    assert await worker.finish(first)
    second = await worker.take()
    assert len([each for each in worker.received if isinstance(each, session.Assign)]) == 0
    manager.retention._bounds = retention.Bounds(0, 0, 0)
    await manager.retention.enforce()
    assert await worker.finish(second)
    await worker.take()


async def test_what_a_worker_says_is_cut(with_worker: Any) -> None:
    site = await with_worker()
    worker = site.workers["w"]
    name = await site.submit(**ECHO, max_retries=0)
    assign = await worker.take()
    await worker.send(session.Progress(name, 1, "p" * 100_000))
    await worker.send(session.Failed(name, 1, session.TaskError("T" * 1000, "m" * 100_000)))
    assert await worker.acked(assign)
    shown = await site.task(name)
    assert len(shown["error"]["message"]) == 8192
    assert shown["error"]["message"].endswith(" [cut: 100,000 characters]")
    assert (len(shown["error"]["type"]), len(shown["progress"])) == (200, 2000)
    _, events = await site.call("GET", "/cluster/events?limit=100")
    (failed,) = [each for each in events["events"] if each["event"] == "task_failed"]
    assert len(failed["data"]["error"]["message"]) < 1100
    died = await site.submit(**ECHO, max_retries=0)
    assign = await worker.take()
    await worker.send(session.RunnerDied(died, 1, "e" * 100_000))
    assert await worker.acked(assign)
    assert len((await site.task(died))["deaths"][0]["evidence"]) == 4000


async def test_repeated_submission_shows_the_true_status(with_worker: Any) -> None:
    site = await with_worker()
    worker = site.workers["w"]
    large = {**ECHO, "parameters": "x" * 5000}
    again = {"headers": {"Idempotency-Key": "once"}}
    _, first = await site.call("POST", "/tasks", large, **again)
    assign = await worker.take()
    _, repeated = await site.call("POST", "/tasks", {**large, "idempotency_key": "once"})
    assert repeated["task_id"] == first["task_id"]
    assert (repeated["status"], repeated["assigned_worker"]) == ("running", "w") or repeated[
        "status"
    ] == "assigned"
    assert await worker.finish(assign)
    _, repeated = await site.call("POST", "/tasks", large, **again)
    assert (repeated["task_id"], repeated["status"]) == (first["task_id"], "completed")
    assert (await site.call("POST", "/tasks", {**ECHO, "parameters": "y" * 5000}, **again))[0] == 409
    assert (await site.call("POST", "/tasks", {**large, "idempotency_key": "other"}, **again))[0] == 422
    batch = {"tasks": [ECHO, ECHO]}
    (_, one), (_, two) = [await site.call("POST", "/tasks/batch", batch, **again) for _ in range(2)]
    assert [each["task_id"] for each in one["tasks"]] == [each["task_id"] for each in two["tasks"]]
