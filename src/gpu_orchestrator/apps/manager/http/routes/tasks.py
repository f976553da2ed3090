"""Routes for tasks: submit, show, wait, explain, cancel, retry."""

from functools import lru_cache
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import errors, schema, views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet.nodes import request_of
from gpu_orchestrator.apps.manager.http.gate import Endpoint
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.http.submission import accept, accept_again, accepted
from gpu_orchestrator.apps.manager.tasks import explain
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.decide import decide

router = APIRouter(tags=["tasks"])
MAX_WAIT_S = 600.0
WAIT = {"name": "wait", "in": "query", "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}}
SHORT_QUERY = 40
TASKS_PER_REQUEST = 100
RETRYABLE = ("failed", "dead", "cancelled")


def _sees(request: Request) -> str:
    key: Key = request.state.key
    return key.sees


async def submit(request: Request) -> Response:
    """Queue a task. A task that can never fit is refused at once, with the reasons. With `wait`, the server
    waits up to that many seconds for the task to end, and returns the task."""
    manager, state = manager_of(request), request.scope["state"]
    seconds = _wait_s(request.scope["query_string"])
    wanted = await read(request, schema.TaskRequest)
    (taken,) = await accept(manager, [wanted], state["key"], state["correlation"])
    state["object"] = taken.id
    if not seconds:
        return json_response(accepted(manager, [taken])[0], 202)
    return json_response(views.task_status(taken.id, await manager.wait(taken.id, seconds)))


async def submit_batch(request: Request) -> Response:
    """Queue many tasks at once: all of them, or none and an error that names the first bad one. Every hundred
    tasks count as one request."""
    manager, batch = manager_of(request), await read(request, schema.TaskBatch)
    if more := (len(batch.tasks) - 1) // TASKS_PER_REQUEST:
        manager.rate_limiter.take(request.state.key, "POST", request.scope["path"], cost=more)
    taken = await accept(manager, batch.tasks, request.state.key, request.state.correlation)
    request.state.object = f"{taken[0].id} and {len(taken) - 1} more"
    return json_response(schema.BatchAccepted(tasks=accepted(manager, taken), total=len(taken)), 202)


FAST_PATH: dict[str, Endpoint] = {"/tasks": submit, "/tasks/batch": submit_batch}
"""Routes that the gate calls directly, without the framework's routing."""

router.post(
    "/tasks",
    **described(
        schema.TaskAccepted,
        needs="submit",
        status=202,
        body=schema.TaskRequest,
        also={200: schema.TaskStatus},
        query=WAIT,
    ),
)(submit)
router.post(
    "/tasks/batch", **described(schema.BatchAccepted, needs="submit", status=202, body=schema.TaskBatch)
)(submit_batch)


@router.get("/tasks", **described(schema.TaskPage, needs="read"))
async def page(
    request: Request,
    status: str = "",
    worker_id: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """List tasks, newest first. `status` may name several states, separated by commas."""
    states = [state for state in status.split(",") if state]
    if unknown := [state for state in states if state not in task.STATES]:
        raise errors.Unprocessable(f"unknown status {unknown[0]!r}; known: {', '.join(task.STATES)}")
    return await _page(request, states, worker_id, limit=limit, offset=offset)


@router.get("/tasks/dead", **described(schema.TaskPage, needs="read"))
async def dead(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """List dead letters: tasks that the server gave up, with the evidence."""
    return await _page(request, ["dead"], "", limit=limit, offset=offset)


@router.get("/tasks/{task_id}", **described(schema.TaskStatus, needs="read"))
async def status(request: Request, task_id: str) -> Response:
    return json_response(views.task_status(task_id, await manager_of(request).row(task_id, _sees(request))))


@router.get("/tasks/{task_id}/wait", **described(schema.TaskStatus, needs="read"))
async def wait(
    request: Request,
    task_id: str,
    timeout_s: Annotated[float, Query(alias="timeout", ge=0, le=MAX_WAIT_S)] = 30.0,
) -> Response:
    """Return the task once it has ended, or its current state after `timeout` seconds."""
    manager, owner = manager_of(request), _sees(request)
    if owner:
        await manager.row(task_id, owner)
    return json_response(views.task_status(task_id, await manager.wait(task_id, timeout_s)))


@router.get("/tasks/{task_id}/explain", **described(schema.Explanation, needs="read"))
async def explain_task(request: Request, task_id: str) -> Response:
    """Explain why a task waits: for every worker and every device, what keeps it from taking the task."""
    manager, owner = manager_of(request), _sees(request)
    row = await manager.row(task_id, owner)
    workers, cluster = await manager.overview.cluster()
    wanted = request_of(task_id, task.decode(row["spec"]))
    policy = manager.registry.policy_of(wanted)
    waits = row["state"] == "queued"
    held_back = await manager.held_back(row.get("tenant", "")) if waits else ""
    answer = held_back or decide(wanted, cluster, policy, manager.chance) if waits else None
    goes_to = answer.node if isinstance(answer, Placement) else None
    explanation = schema.Explanation(
        task_id=task_id,
        status=row["state"],
        reason=row.get("reason", "") if goes_to or not waits else str(answer),
        policy=policy.strategy.name,
        would_go_to=goes_to,
        reasons=explain.score_reasons(wanted.shape, cluster, policy, goes_to) if goes_to else [],
        workers=[
            explain.worker_verdict(wanted.shape, cluster, worker, named=not owner)
            for worker in workers.values()
        ],
    )
    return json_response(explanation)


@router.post("/tasks/{task_id}/retry", **described(schema.TaskChanged, needs="submit", status=202))
async def retry(request: Request, task_id: str) -> Response:
    """Queue a task again that ended without a result."""
    before = await accept_again(manager_of(request), task_id, request.state.key)
    if not before:
        raise errors.NotFound(f"there is no task {task_id}")
    if before not in RETRYABLE:
        raise errors.Conflict(f"task {task_id} is {before}; only {', '.join(RETRYABLE)} ones can be retried")
    return json_response(schema.TaskChanged(task_id=task_id, status="queued"), 202)


@router.delete("/tasks/{task_id}", **described(schema.TaskChanged, needs="submit"))
async def cancel(request: Request, task_id: str) -> Response:
    """Cancel a task. A queued one ends at once. The worker asks a running one to stop, then sends SIGTERM,
    then SIGKILL."""
    manager = manager_of(request)
    (before,) = await manager.store.tasks.cancel([task_id], owner=_sees(request))
    if not before.state:
        raise errors.NotFound(f"there is no task {task_id}")
    if before.state in task.FINAL:
        raise errors.Conflict(f"task {task_id} is {before.state} already")
    if before.state == "queued":
        manager.waiters.ended(task_id)
        return json_response(schema.TaskChanged(task_id=task_id, status="cancelled"))
    manager.sessions.cancel(before.worker, before.api, task_id, before.attempt)
    return json_response(schema.TaskChanged(task_id=task_id, status="cancelling"))


def _wait_s(query: bytes) -> float:
    return _short_wait_s(query) if len(query) <= SHORT_QUERY else _parsed_wait_s(query)


@lru_cache(maxsize=64)
def _short_wait_s(query: bytes) -> float:
    """Cached, because most clients that wait send the same value."""
    return _parsed_wait_s(query)


def _parsed_wait_s(query: bytes) -> float:
    given = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)).get("wait", "0")
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_S:
        raise errors.Unprocessable(f"wait={given}: give seconds from 0 to {MAX_WAIT_S:g}")
    return seconds


async def _page(request: Request, states: list[str], worker: str, *, limit: int, offset: int) -> Response:
    stored = manager_of(request).store.tasks
    found = await stored.page(states=states, worker=worker, owner=_sees(request), offset=offset, limit=limit)
    rows = await stored.fetch(found.ids)
    tasks = [views.task_status(name, row) for name, row in zip(found.ids, rows, strict=True) if row]
    return json_response(schema.TaskPage(tasks=tasks, total=found.total, limit=limit, offset=offset))
