"""Lists of tasks over HTTP: devices, reasons, places in the queue, filters, shortened ids."""

import asyncio
from typing import Any

import aiohttp
import pytest

from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.valkey.client import Client
from gpu_orchestrator.api import session, task
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.tasks import waiting
from gpu_orchestrator.core.decide import why_not
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make

pytestmark = pytest.mark.real
NO_GPU = {"gpus": 0}


async def listed(site: Site, query: str = "", **rest: Any) -> list[str]:
    status, page = await site.call("GET", f"/tasks?{query}", **rest)
    assert status == 200, page
    assert page["total"] == len(page["tasks"])
    return [each["task_id"] for each in page["tasks"]]


async def events_of(site: Site, name: str) -> list[Any]:
    _, page = await site.call("GET", "/cluster/events?after=0&limit=1000")
    return [each["data"] for each in page["events"] if each["event"] == name]


async def test_task_names_its_devices_even_after_its_worker_has_gone(site: Site) -> None:
    worker = await site.join()
    name = await site.submit(resources={"gpu_memory": "4GB", "gpus": 2})
    devices = [{"index": index, "uuid": f"GPU-{index}-w", "model": "L4"} for index in (0, 1)]
    assign = await worker.take()
    assert assign.devices == tuple(session.Given(index, f"GPU-{index}-w", "L4") for index in (0, 1))
    await worker.finish(assign)
    ended = await site.wait(name)
    await worker.close()
    assert (await site.call("DELETE", "/workers/w?drain=false"))[0] == 200
    for shown in (ended, await site.task(name), (await site.call("GET", "/tasks"))[1]["tasks"][0]):
        assert shown["devices"] == devices
        assert (shown["memory_reserved"], shown["memory_reserved_bytes"]) == ("4GB", 4 * 2**30)
        assert (shown["exclusive"], shown["gpus"], shown["owner"]) == (False, 2, "admin")
        assert shown["queue_position"] is None
    (started,) = await events_of(site, "task_started")
    assert (started["task_id"], started["devices"]) == (name, devices)


async def test_start_that_is_stored_before_the_end_names_the_devices(site: Site) -> None:
    worker = await site.join()
    name = await site.submit()
    await worker.take()
    async with asyncio.timeout(30):
        while (await site.task(name))["status"] != "running":  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.01)
    (started,) = await events_of(site, "task_started")
    assert [each["model"] for each in started["devices"]] == ["L4"]
    shown = await site.task(name)
    assert (shown["exclusive"], shown["memory_reserved"], shown["memory_reserved_bytes"]) == (True, "", 0)


async def test_task_without_gpu_has_no_devices(site: Site) -> None:
    worker = await site.join()
    name = await site.submit(resources=NO_GPU)
    await worker.finish(await worker.take())
    shown = await site.wait(name)
    assert (shown["devices"], shown["gpus"], shown["exclusive"]) == ([], 0, False)
    assert (await events_of(site, "task_started"))[0]["devices"] == []


async def test_devices_of_an_older_version_have_no_model(site: Site) -> None:
    name = await site.submit()
    database = site.running.manager.store.database
    place = '{"devices":[{"index":3,"uuid":"GPU-x"}],"exclusive":true}'
    client = Client(database.url, answer_s=10)
    await client.execute("HSET", f"{database.prefix}t:{name}", "place", place)
    await client.close()
    assert (await site.task(name))["devices"] == [{"index": 3, "uuid": "GPU-x", "model": ""}]


async def test_queued_tasks_say_why_they_wait_and_how_far_ahead_they_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FRESH_S", -1.0)
    assert "no worker is there" in (await site.task(await site.submit("sleep")))["reason"]
    worker = await site.join(max_concurrent=1)
    await worker.take()
    await site.call("POST", "/workers/w/devices/1/cordon")
    names = [await site.submit(resources=NO_GPU), await site.submit(priority="high")]
    _, page = await site.call("GET", "/tasks?status=queued")
    shown = {each["task_id"]: each for each in page["tasks"]}
    assert [shown[name]["queue_position"] for name in names] == [2, 1]
    assert shown[names[0]]["reason"] == "0/1 workers fit: 1 is running as many tasks as it may"
    assert shown[names[1]]["reason"] == "0/1 workers fit: 1 has no wholly free GPU"
    for name in names:
        _, explained = await site.call("GET", f"/tasks/{name}/explain")
        assert explained["reason"] == shown[name]["reason"] == (await site.task(name))["reason"]


async def test_process_that_does_not_lead_gives_the_same_reasons(new_site: NewSite) -> None:
    leader: Site = await new_site("one")
    other: Site = await new_site("two", redis_url=leader.running.manager.store.database.url)
    assert not other.running.manager.leader.leads
    await leader.join(max_concurrent=1, devices=())
    first, name = await leader.submit(resources=NO_GPU), await leader.submit(resources=NO_GPU)
    shown = await other.task(name)
    assert shown["reason"] == "0/1 workers fit: 1 is running as many tasks as it may"
    assert (shown["queue_position"], (await other.task(first))["status"]) == (1, "assigned")


async def test_owner_at_its_limit_is_the_reason(site: Site) -> None:
    worker = await site.join()
    ann = await make(site, "ann", limits={"running_tasks": 1})
    body = {"task_type": "echo", "resources": NO_GPU}
    for _ in range(2):
        _, accepted = await site.call("POST", "/tasks", body, **bearing(ann["key"]))
    await worker.take()
    shown = await site.task(accepted["task_id"])
    assert shown["reason"] == "ann has 1 task running, the most that may run at once"


async def test_thousands_of_shapes_are_judged_a_bounded_number_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Any] = []

    def counting(*given: Any) -> Any:
        judged.append(given)
        return why_not(*given)

    monkeypatch.setattr(waiting, "why_not", counting)
    monkeypatch.setattr(waiting, "FRESH_S", 3600.0)
    batch = [{"task_type": "echo", "resources": {"gpu_memory": f"{1000 + n}MiB"}} for n in range(1000)]
    assert (await site.call("POST", "/tasks/batch", {"tasks": batch}))[0] == 202
    for _ in range(3):
        _, page = await site.call("GET", "/tasks?limit=1000")
    reasons = [each["reason"] for each in page["tasks"]]
    assert len(judged) == waiting.MOST_SHAPES
    assert sum(map(bool, reasons)) == waiting.MOST_SHAPES
    assert all(each["queue_position"] for each in page["tasks"])


async def test_lists_are_filtered(site: Site) -> None:
    ann = await make(site, "ann")
    body = {"task_type": "sleep", "labels": {"team": "a=b"}}
    _, accepted = await site.call("POST", "/tasks", body, **bearing(ann["key"]))
    hers = accepted["task_id"]
    mine = await site.submit(labels={"team": "x"})
    assert await listed(site, "label=team%3Dx") == [mine]
    assert await listed(site, "label=team=a=b") == [hers]
    assert await listed(site, "label=team") == [mine, hers]
    assert await listed(site, "label=team&label=none") == []
    assert await listed(site, "task_type=sleep") == [hers]
    assert await listed(site, "owner=ann") == await listed(site, "", **bearing(ann["key"])) == [hers]
    assert await listed(site, "since=1h&status=queued") == [mine, hers]
    assert await listed(site, "since=2999-01-01T00:00:00Z") == []
    assert await listed(site, "since=2020-01-01") == [mine, hers]
    assert await listed(site, "since=0s") == [], "not all"
    assert (await site.call("GET", "/tasks?owner=admin", **bearing(ann["key"])))[0] == 403


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/tasks?lable=x", "unknown query parameter 'lable'; known: label, limit, offset, owner, since"),
        ("/health?deep=1", "unknown query parameter 'deep'; this route takes none"),
        (f"/api/v1/workers?gpu={'x' * 100}", "unknown query parameter 'gpu'; known: gpu_type, status"),
        ("/tasks?since=soon", "since='soon' is not a time; write how long ago, such as 10m"),
        ("/tasks?since=10", "since='10' is not a time"),
        ("/tasks?offset=1000001", "offset=1000001: give at most 1000000"),
        ("/tasks?label==x", "label='=x' has no name"),
    ],
)
async def test_bad_filter_is_refused(site: Site, path: str, text: str) -> None:
    status, answer = await site.call("GET", path)
    assert status == 422
    assert text in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/tasks?now=1", "/tasks/batch?wait=1", "/api/v1/tasks?wait=1&wiat=2"])
async def test_unknown_parameter_of_a_submission_is_refused_before_anything_is_queued(
    site: Site, path: str
) -> None:
    one = {"task_type": "echo"}
    body = {"tasks": [one]} if "batch" in path else one
    status, answer = await site.call("POST", path, body)
    assert (status, "unknown query parameter" in answer["error"]["message"]) == (422, True)
    assert await listed(site) == []


async def test_unknown_parameter_of_a_websocket_is_refused(site: Site) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await site.http.ws_connect("/ws?since=1")
    assert refused.value.status == 422
    async with site.http.ws_connect("/ws?after=0") as socket:
        assert not socket.closed


async def test_start_of_an_id_names_its_task(site: Site) -> None:
    manager = site.running.manager
    names = [await site.submit() for _ in range(3)]
    for path in ("", "/wait?timeout=0", "/explain", "/logs"):
        status, shown = await site.call("GET", f"/tasks/{names[0][:12]}{path}")
        assert (status, shown["task_id"]) == (200, names[0])
    assert (await site.call("DELETE", f"/tasks/{names[1][:12]}"))[1]["task_id"] == names[1]
    assert (await site.call("POST", f"/tasks/{names[1][:12]}/retry"))[1]["task_id"] == names[1]
    _, page = await site.call("GET", "/audit")
    assert page["entries"][0]["object"] == names[1], "the log has the whole id"
    await manager.store.tasks.submit([*twins("twin-1", "twin-2"), *twins("twin-other", owner="bob")])
    status, answer = await site.call("GET", "/tasks/twin-")
    assert status == 409
    assert answer["error"]["details"]["task_ids"] == ["twin-1", "twin-2", "twin-other"]
    assert answer["error"]["message"] == "3 tasks begin with twin-; give more characters of the id"
    assert (await site.call("GET", "/tasks/twin-1"))[0] == 200
    for missing in ("twi", "none", "tw*n-", names[0][:12] + "x", "f" * 32):
        assert (await site.call("GET", f"/tasks/{missing}"))[0] == 404, missing


async def test_start_of_an_id_does_not_reveal_tasks_of_others(site: Site) -> None:
    await site.running.manager.store.tasks.submit(
        [*twins("twin-1", owner="ann"), *twins("twin-2", "else-1", owner="bob")]
    )
    ann = bearing((await make(site, "ann"))["key"])
    assert (await site.call("GET", "/tasks/twin-", **ann))[1]["task_id"] == "twin-1"
    for path in ("/tasks/else", "/tasks/else-1", "/tasks/twin-2"):
        for rest in ("", "/logs"):
            assert (await site.call("GET", f"{path}{rest}", **ann))[0] == 404
        assert (await site.call("DELETE", path, **ann))[0] == 404


def twins(*names: str, owner: str = "admin") -> list[NewTask]:
    """Return tasks whose ids the test chooses."""
    spec = task.encode(TaskSpec("echo", tenant=owner))
    return [NewTask(name, spec, "{}", tenant=owner) for name in names]
