"""Tests that the OpenAPI document matches what the routes accept and return, and of health and metrics."""

import re
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.apps.manager.http.openapi import TYPES
from gpu_orchestrator.apps.manager.task_schema import TaskResult
from tests.apps.manager.conftest import Site

pytestmark = pytest.mark.real

BODIES: dict[str, Any] = {
    "TaskRequest": {"task_type": "echo"},
    "TaskBatch": {"tasks": [{"task_type": "echo"}]},
    "TaskSelection": {"task_ids": ["unknown"]},
    "KeyRequest": {"name": "ann"},
    "ScheduleRequest": {"name": "s", "schedule": "@daily", "task": {"task_type": "echo"}},
    "AssignRequest": {"model_name": "unknown"},
    "UnloadRequest": {"model_name": "unknown"},
    "PinRequest": {"model_name": "unknown"},
    "RebalanceRequest": {"dry_run": True},
    "ChatRequest": {"model": "unknown", "messages": [{"role": "user", "content": "hi"}]},
    "CompletionRequest": {"model": "unknown", "prompt": "hi"},
    "EmbeddingRequest": {"model": "unknown", "input": "hi"},
    "Hello": {"type": "Hello", "name": "p", "instance": "i"},
}
METHODS = {"get", "post", "delete"}


def name_of(content: dict[str, Any]) -> str:
    return str(content["content"]["application/json"]["schema"]["$ref"]).rpartition("/")[2]


async def test_every_response_has_the_declared_shape(site: Site) -> None:
    worker = await site.join(address="here")
    done, dead = await site.submit(), await site.submit(max_retries=0)
    for _ in range(2):
        assign = await worker.take()
        if assign.task == done:
            await worker.finish(assign, {"a": 1})
    _, document = await site.call("GET", "/openapi.json")
    filled = {
        "task_id": done,
        "worker_id": "w",
        "index": "0",
        "key_id": "bootstrap",
        "name": "unknown",
        "schedule_id": "unknown",
        "file_id": "unknown",
        "gang_id": await site.submit(gang={"size": 2}, resources={"gpus": 0}),
    }
    seen = 0
    for path, operations in document["paths"].items():
        address = re.sub(r"{(\w+)}", lambda found: filled[found[1]], path)
        for method in METHODS & set(operations):
            if method == "delete" or address.endswith(("/restart", "/tasks/wait")):
                continue
            operation = operations[method]
            body = BODIES[name_of(operation["requestBody"])] if "requestBody" in operation else None
            status, answer = await site.call(method.upper(), address, body)
            declared = operation["responses"].get(str(status)) or operation["responses"]["default"]
            kind = TYPES[name_of(declared)]
            if kind is TaskResult:  # any JSON value
                assert answer == {"a": 1}
                continue
            read: Any = msgspec.json.decode(msgspec.json.encode(answer), type=kind)
            assert msgspec.json.decode(msgspec.json.encode(read)) == answer, "exactly the declared fields"
            seen += 1
    assert seen >= 18
    assert dead


async def test_every_schema_reference_resolves(site: Site) -> None:
    _, document = await site.call("GET", "/openapi.json")
    known = document["components"]["schemas"]
    wanted = set(re.findall(r"#/components/schemas/(\w+)", msgspec.json.encode(document).decode()))
    assert wanted <= set(known)
    assert document["openapi"].startswith("3.")


async def test_routes_answer_with_and_without_the_prefix(site: Site) -> None:
    assert (await site.call("GET", "/api/v1/workers"))[0] == (await site.call("GET", "/workers"))[0] == 200


async def test_health_reports_the_store_and_metrics_count_a_task(site: Site) -> None:
    _, health = await site.call("GET", "/health")
    assert (health["status"], health["dependencies"]["store"]) == ("healthy", "ok")
    worker = await site.join()
    await site.submit()
    await worker.finish(await worker.take())
    async with site.http.get("/metrics") as answer:
        text = await answer.text()
    for line in (
        'tasks_total{status="completed"} 1.0',
        "leader 1.0",
        'gpu_memory_free_bytes{device="0",worker="w"}',
        'http_requests_total{method="POST",route="/tasks",status="202"} 1.0',
        "task_dispatch_seconds_count 1.0",
    ):
        assert line in text


async def test_correlation_id_reaches_the_worker_and_the_task(site: Site) -> None:
    worker = await site.join()
    async with site.http.post(
        "/tasks", json={"task_type": "echo"}, headers={"X-Request-ID": "r-7"}
    ) as answer:
        assert answer.headers["X-Correlation-ID"] == "r-7"
        name = (await answer.json())["task_id"]
    assert (await worker.take()).correlation_id == "r-7"
    assert (await site.task(name))["correlation_id"] == "r-7"
