"""The routes for models, on a whole manager with a scripted worker that says what it has loaded."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from tests.apps.manager.conftest import NewSite, Site
from tests.support.patience import PATIENCE_S
from tests.support.scripted_worker import ScriptedWorker, device

pytestmark = pytest.mark.real
GIB = 1024
BYTES = 1024**3


async def join(site: Site, name: str = "w", **rest: Any) -> ScriptedWorker:
    worker = await site.join(
        name,
        devices=(device(0),),
        task_types=("chat", "echo"),
        model_types=("chat",),
        most_models=5,
        **{"max_concurrent": 1, **rest},
    )
    await has(worker)
    return worker


async def has(worker: ScriptedWorker, *copies: session.Copy) -> None:
    used = sum(each.used_mib for each in copies)
    now = session.Reading(0, used, 24 * GIB - used, 0)
    await worker.send(session.Report((now,), copies=copies))


def copy(model: str, gib: int = 8, number: int = 1, **rest: Any) -> session.Copy:
    known: dict[str, Any] = {"used_mib": gib * GIB, "load_s": 3.0, "uses": 1.0, "is_loaded": True}
    return session.Copy(model, (0,), number, **{**known, **rest})


async def declare(site: Site, name: str, **rest: Any) -> Any:
    status, answer = await site.call("PUT", f"/models/{name}", {"handler": "chat", **rest})
    assert status == 200, answer
    return answer


async def until(site: Site, path: str, found: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not found(answer := (await site.call("GET", path))[1]):  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.02)
        return answer


async def test_model_is_declared_shown_changed_and_removed(site: Site) -> None:
    await join(site)
    made = await declare(site, "org/llama:8b", memory="16GB", path="/w", options={"dtype": "bf16"})
    assert (made["name"], made["memory"], made["memory_measured"]) == ("org/llama:8b", "16GB", False)
    assert (made["options"], made["copies"], made["declared"]) == ({"dtype": "bf16"}, [], True)
    _, page = await site.call("GET", "/models")
    assert [each["name"] for each in page["models"]] == ["chat", "org/llama:8b"]
    assert (await declare(site, "org/llama:8b", memory="8GB"))["memory"] == "8GB"
    assert (await site.call("DELETE", "/models/org/llama:8b"))[0] == 200
    assert (await site.call("DELETE", "/models/org/llama:8b"))[0] == 404
    status, answer = await site.call("GET", "/models/org/llama:8b")
    assert (status, "known: chat" in answer["error"]["message"]) == (404, True)


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        pytest.param("../x", {}, "cannot be the name of a model", id="dots"),
        pytest.param("pin", {}, "cannot be the name of a model", id="a route"),
        pytest.param("a b", {}, "cannot be the name of a model", id="space"),
        pytest.param("a", {"memory": "lots"}, "memory:", id="memory"),
        pytest.param("a", {"path": "../etc"}, "path: leave out", id="path"),
        pytest.param("a", {"options": {"x": "y" * 20_000}}, "options: ", id="options"),
        pytest.param("a", {"backend": "magic"}, "backend", id="backend"),
        pytest.param("a", {"colour": 1}, "colour", id="unknown field"),
    ],
)
async def test_bad_declarations_are_refused(site: Site, name: str, body: Any, says: str) -> None:
    path = name.replace("/", "%2F").replace("..", "%2E%2E")
    status, answer = await site.call("PUT", f"/models/{path}", {"handler": "chat", **body})
    assert status in (404, 422), answer
    assert status == 404 or says in answer["error"]["message"]


async def test_task_gets_its_model_and_reserves_what_was_measured(site: Site) -> None:
    worker = await join(site)
    await declare(site, "llama", memory="16GiB", path="/w", options={"dtype": "bf16"})
    await site.submit("chat", model_name="llama")
    assign = await worker.take()
    assert assign.model == session.Model("llama", "/w", msgspec.Raw(b'{"dtype":"bf16"}'))
    assert (assign.memory_mib, assign.model_name, assign.exclusive) == (16 * GIB, "llama", False)
    await worker.finish(assign)
    await has(worker, copy("llama", 5))
    shown = await until(site, "/models/llama", lambda each: each["memory_measured"] and each["copies"])
    assert (shown["memory_bytes"], shown["load_seconds"]) == (5 * BYTES, 3.0)
    (held,) = shown["copies"]
    assert (held["worker_id"], held["status"], held["memory_usage_bytes"]) == ("w", "loaded", 5 * BYTES)
    await site.submit("chat", model_name="llama")
    assert (await worker.take()).memory_mib == 5 * GIB
    _, listed = await site.call("GET", "/workers")
    assert listed["workers"][0]["loaded_models"] == ["llama"]
    _, metrics = await site.call("GET", "/workers/w")
    assert metrics["loaded_models"][0]["load_seconds"] == 3.0


async def test_waiting_task_is_asked_again_when_the_size_is_known(site: Site) -> None:
    """Two devices' worth of waiting: the second task fits beside the first once it is known to be small."""
    worker = await join(site, max_concurrent=4)
    await declare(site, "big", memory="16GiB")
    await declare(site, "other", memory="16GiB")
    await site.submit("chat", model_name="big")
    await worker.take()
    task = await site.submit("chat", model_name="other")
    assert "GPU" in (await until(site, f"/tasks/{task}", lambda each: each["reason"]))["reason"]
    await declare(site, "other", memory="2GiB")
    assign = await worker.take()
    assert (assign.task, assign.memory_mib) == (task, 2 * GIB)


async def test_task_of_a_loaded_model_passes_one_that_would_evict_it(site: Site) -> None:
    worker = await join(site)
    for name in ("a", "b"):
        await declare(site, name, memory="16GiB")
    await has(worker, copy("a", 16))
    await until(site, "/models/a", lambda each: each["copies"])
    first = await site.submit("chat", model_name="a")
    assign = await worker.take()
    second, third = [await site.submit("chat", model_name=name) for name in ("b", "a")]
    explained = (await site.call("GET", f"/tasks/{third}/explain"))[1]
    assert explained["reason"], explained
    await worker.finish(assign)
    took = []
    for _ in range(2):
        assign = await worker.take()
        took.append(assign.task)
        await worker.finish(assign)
    assert took == [third, second]
    assert assign.task != first


async def test_estimate_of_the_wait_has_the_load_of_a_cold_model(site: Site) -> None:
    worker = await join(site)
    await declare(site, "cold", memory="2GiB", load_seconds=42)
    _, answer = await site.call("POST", "/tasks", {"task_type": "chat", "model_name": "cold"})
    assert answer["estimated_wait_seconds"] >= 42
    await worker.finish(await worker.take())
    await has(worker, copy("cold", 2))
    await until(site, "/models/cold", lambda each: each["copies"])
    _, answer = await site.call("POST", "/tasks", {"task_type": "chat", "model_name": "cold"})
    assert answer["estimated_wait_seconds"] < 42


async def test_assign_pin_and_unload(site: Site) -> None:
    worker, other = await join(site), await join(site, "v")
    await declare(site, "llama", memory="4GiB")
    ask = {"model_name": "llama", "worker_id": "v"}
    status, answer = await site.call("POST", "/models/assign", {**ask, "pin": True})
    assert (status, answer["pinned"]) == (202, True)
    assign = await other.take()
    assert (assign.task, assign.only_load) == (answer["task_id"], True)
    while (await other.receive(session.Pins)).models != ("llama",):
        pass
    await other.finish(assign)
    await has(other, copy("llama", 4, pinned=True))
    _, page = await site.call("GET", "/models/assignments")
    await until(site, "/models/assignments", lambda each: each["total"] == 1)
    status, refused = await site.call("POST", "/models/unload", {"model_name": "llama"})
    assert (status, "is pinned on v" in refused["error"]["message"]) == (409, True)
    assert (await site.call("POST", "/models/unpin", {"model_name": "llama"}))[1]["pinned_on"] == []
    assert (await other.receive(session.Pins)).models == ()
    status, told = await site.call("POST", "/models/unload", ask)
    assert (status, told["workers"]) == (202, ["v"])
    assert await other.receive(session.Unload) == session.Unload("llama")
    assert not [each for each in worker.received if isinstance(each, session.Unload)]
    assert page["assignments"] == [] or page["total"] == 1


async def test_pin_reaches_a_worker_that_joins_later(site: Site) -> None:
    await declare(site, "llama")
    assert (await site.call("POST", "/models/pin", {"model_name": "llama"}))[1]["pinned_on"] == ["*"]
    worker = await join(site)
    assert (await worker.receive(session.Pins)).models == ("llama",)


async def test_wrong_requests_say_what_is_known(site: Site) -> None:
    await join(site)
    plain = await site.join("plain")
    await declare(site, "llama", memory="4GiB")
    await site.call("PUT", "/models/voice", {"handler": "speech"})
    for path, body, status, says in (
        ("/models/assign", {"model_name": "none"}, 404, "there is no model none; known: chat, llama, voice"),
        ("/models/assign", {"model_name": "llama", "worker_id": "x"}, 404, "there is no worker x"),
        ("/models/assign", {"model_name": "llama", "worker_id": "plain"}, 409, "loads no models"),
        ("/models/assign", {"model_name": "voice"}, 409, "no worker loads models of 'speech'"),
        ("/models/unload", {"model_name": "none"}, 404, "there is no model none"),
        ("/tasks", {"task_type": "chat", "model_name": "voice"}, 422, "is for tasks of type 'speech'"),
        ("/tasks", {"task_type": "chat", "model_name": "lama"}, 422, "did you mean 'llama'?"),
    ):
        answered, answer = await site.call("POST", path, body)
        assert (answered, says in answer["error"]["message"]) == (status, True), answer
    assert not [each for each in plain.received if isinstance(each, session.Pins)]
    assert (await site.call("POST", "/tasks", {"task_type": "echo", "model_name": "any"}))[0] == 202


async def test_events_and_metrics_of_models(new_site: NewSite) -> None:
    site: Site = await new_site()
    worker = await join(site)
    await has(worker, copy("a"), copy("b", number=2))
    await has(worker, copy("b", number=2))
    await until(site, "/models/a", lambda each: "error" in each or not each.get("copies"))
    await has(worker, copy("b", number=3))
    wanted = [
        ("model_loaded", "a"),
        ("model_loaded", "b"),
        ("model_unloaded", "a"),
        ("model_loaded", "b"),
        ("model_unloaded", "b"),
    ]

    def told(page: Any) -> list[tuple[str, str]]:
        found = [each for each in page["events"] if each["event"].startswith("model_")]
        return [(each["event"], each["data"]["model_name"]) for each in found]

    page = await until(site, "/cluster/events?after=0", lambda each: len(told(each)) == 5)
    assert told(page) == wanted
    async with site.http.get("/metrics") as answer:
        assert 'models_loaded{worker="w"} 1.0' in await answer.text()


async def test_model_of_a_newer_version_leaves_the_others_alone(site: Site) -> None:
    await join(site)
    await site.running.manager.store.models.declare("odd", '{"handler": "chat", "backend": "magic"}')
    await declare(site, "llama", memory="4GiB")
    _, page = await site.call("GET", "/models")
    assert [(each["name"], each["declared"]) for each in page["models"]] == [
        ("chat", False),
        ("llama", True),
        ("odd", False),
    ]
    status, answer = await site.call("POST", "/tasks", {"task_type": "chat", "model_name": "odd"})
    assert (status, "unknown model 'odd'" in answer["error"]["message"]) == (422, True)
