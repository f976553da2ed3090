"""Routes for tasks: submit, list, show, wait, explain."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store.task_lists import Filter
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import errors, task_schema, views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet import model_words, words
from gpu_orchestrator.apps.manager.fleet.nodes import request_of
from gpu_orchestrator.apps.manager.fleet.past_attempts import deaths_of, hints
from gpu_orchestrator.apps.manager.http import gang_waits, kept_waits, task_models
from gpu_orchestrator.apps.manager.http.acknowledgement import settle
from gpu_orchestrator.apps.manager.http.gate import Endpoint
from gpu_orchestrator.apps.manager.http.kept_waits import Beside
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of, path_of
from gpu_orchestrator.apps.manager.http.submission import (
    TASKS_PER_REQUEST,
    accept,
    accepted,
    with_idempotency_key,
)
from gpu_orchestrator.apps.manager.http.task_filter import of_query
from gpu_orchestrator.apps.manager.http.wait_stream import WaitStream
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.tasks import explain
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.decide import decide

router = APIRouter(tags=["tasks"])
MAX_WAIT_S = 600.0
WAIT = {"name": "wait", "in": "query", "schema": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}}
SHORT_QUERY = 40
MOST_NAMED = 5
MOST_BYTES = 16 << 20
"""Of the rows of a page: labels and errors of a thousand tasks can be large."""
IDEMPOTENCY_KEY = b"idempotency-key"
Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]
Text = Annotated[str, Query(max_length=200)]


def _sees(request: Request) -> str:
    key: Key = request.state.key
    return key.sees


async def submit(request: Request) -> Response:
    """Queue a task. A task that can never fit is refused at once, with the reasons. With `wait`, the server
    waits up to that many seconds for the task to end, and returns the task.

    With an `idempotency_key`, or the header `Idempotency-Key`, a repeated request gets the task of the first:
    for 24 hours, or as long as the task is kept, if that is shorter. The same key with other content is
    refused (409). Keys of different owners have nothing to do with each other."""
    manager, state = manager_of(request), request.scope["state"]
    seconds = _wait_s(request.scope["query_string"])
    wanted = await read(request, task_schema.TaskRequest)
    if key := header(request.scope, IDEMPOTENCY_KEY):
        wanted = with_idempotency_key(wanted, key)
    if wanted.gang is not None and (more := (wanted.gang.size - 1) // TASKS_PER_REQUEST):
        manager.rate_limiter.take(state["key"], "POST", request.scope["path"], cost=more)
    (taken,) = await accept(manager, [wanted], state["key"], state["correlation"])
    state["object"] = taken.id
    if not seconds:
        load_s = task_models.load_s(manager, wanted)
        return json_response(accepted(manager, [taken], load_s, [wanted])[0], 202)
    await settle(manager, request.scope)
    return await _shown(manager, taken.id, await manager.tasks.wait(taken.id, seconds))


async def submit_batch(request: Request) -> Response:
    """Queue many tasks at once: all of them, or none and an error that names the first bad one. Every hundred
    tasks count as one request. The header `Idempotency-Key` counts for each task without an
    `idempotency_key`, with the task's number added."""
    manager, batch = manager_of(request), await read(request, task_schema.TaskBatch)
    tasks: Sequence[task_schema.TaskRequest] = batch.tasks
    if key := header(request.scope, IDEMPOTENCY_KEY):
        tasks = [
            each if each.idempotency_key else with_idempotency_key(each, key, number)
            for number, each in enumerate(tasks)
        ]
    count = sum(each.gang.size if each.gang else 1 for each in batch.tasks)
    if more := (count - 1) // TASKS_PER_REQUEST:
        manager.rate_limiter.take(request.state.key, "POST", request.scope["path"], cost=more)
    taken = await accept(manager, tasks, request.state.key, request.state.correlation)
    request.state.object = f"{taken[0].id} and {len(taken) - 1} more"
    return json_response(
        task_schema.BatchAccepted(tasks=accepted(manager, taken, 0.0, tasks), total=len(taken)), 202
    )


FAST_PATH: dict[str, Endpoint] = {"/tasks": submit, "/tasks/batch": submit_batch}
"""Routes that the gate calls directly, without the framework's routing."""

router.post(
    "/tasks",
    **described(
        task_schema.TaskAccepted,
        needs="submit",
        status=202,
        body=task_schema.TaskRequest,
        also={200: task_schema.TaskStatus},
        query=WAIT,
    ),
)(submit)
router.post(
    "/tasks/batch",
    **described(task_schema.BatchAccepted, needs="submit", status=202, body=task_schema.TaskBatch),
)(submit_batch)


@router.get("/tasks", **described(task_schema.TaskPage, needs="read"))
async def page(
    request: Request,
    status: Text = "",
    worker_id: Text = "",
    task_type: Text = "",
    label: Annotated[list[Annotated[str, Query(max_length=1200)]], Query(max_length=64)] = [],  # noqa: B006
    owner: Text = "",
    since: Annotated[str, Query(max_length=40)] = "",
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    """List tasks, newest first. `status` may name several states, separated by commas. `label` is
    `name=value`, or `name` for any value; given several times, all must match. `since` is when the oldest
    was submitted: how long ago (`10m`, `2h`, `7d`) or a moment (`2026-01-31T12:00:00Z`). `owner` is for
    admins. Lists have neither results nor parameters; a page may have fewer tasks than `limit` if they are
    large (16 MB in all)."""
    wanted = of_query(
        request.state.key,
        status=status,
        worker_id=worker_id,
        task_type=task_type,
        label=label,
        owner=owner,
        since=since,
    )
    return await _page(request, wanted, limit=limit, offset=offset)


@router.get("/tasks/dead", **described(task_schema.TaskPage, needs="read"))
async def dead(request: Request, limit: Limit = 50, offset: Offset = 0) -> Response:
    """List dead letters: tasks that the server gave up, with the evidence."""
    return await _page(request, Filter(("dead",), owner=_sees(request)), limit=limit, offset=offset)


@router.get("/tasks/{task_id}", **described(task_schema.TaskStatus, needs="read"))
async def status(request: Request, task_id: str) -> Response:
    """Show a task. Here and in all paths, the first characters of an id (at least 4) will do if no other task
    begins with them."""
    manager, owner = manager_of(request), _sees(request)
    name = await manager.tasks.full_id(task_id, owner)
    return await _shown(manager, name, await manager.tasks.row(name, owner))


@router.get("/tasks/{task_id}/wait", **described(task_schema.TaskStatus, needs="read"))
async def wait(
    request: Request,
    task_id: str,
    timeout_s: Annotated[float, Query(alias="timeout", ge=0, le=MAX_WAIT_S)] = 30.0,
) -> Response:
    """Return the task once it has ended, or its current state after `timeout` seconds."""
    manager, owner = manager_of(request), _sees(request)
    name = await manager.tasks.full_id(task_id, owner)
    if owner:
        await manager.tasks.row(name, owner)
    return await _shown(manager, name, await manager.tasks.wait(name, timeout_s))


@router.post(
    "/tasks/wait",
    **described(
        task_schema.TaskStatus, needs="read", body=task_schema.TaskWait, media_type="text/event-stream"
    ),
)
async def wait_many(request: Request) -> Response:
    """Wait for many tasks with one request. The answer is a stream of server-sent events: a `task` event with
    a `TaskStatus`, result included, for each task as it ends, a `missing` event for an id that names no task,
    and at last an `end` event. After a lost connection ask again for those that were not named. Every hundred
    tasks count as one request."""
    manager, wanted = manager_of(request), await read(request, task_schema.TaskWait)
    if more := (len(wanted.task_ids) - 1) // TASKS_PER_REQUEST:
        manager.rate_limiter.take(request.state.key, "POST", path_of(request.scope), cost=more)
    return WaitStream(manager, wanted.task_ids, request.state.key)


@router.get("/tasks/{task_id}/explain", **described(task_schema.Explanation, needs="read"))
async def explain_task(request: Request, task_id: str) -> Response:
    """Explain why a task waits: for every worker and every device, what keeps it from taking the task. Of a
    task that has ended, say where it ran last."""
    manager, owner = manager_of(request), _sees(request)
    task_id = await manager.tasks.full_id(task_id, owner)
    row = await manager.tasks.row(task_id, owner)
    workers, cluster = await manager.overview.cluster()
    spec = task.decode(row["spec"])
    learnt = hints(spec, deaths_of(row.get("deaths", "")), workers, manager.memory)
    wanted = request_of(task_id, spec, learnt, manager.models.memory_mib)
    policy = manager.registry.policy_of(wanted)
    waits = row["state"] == "queued"
    kept = await kept_waits.beside(manager, wanted, cluster) if waits else Beside(cluster, cluster)
    cluster = kept.cluster
    held_back = await manager.held_back(row.get("tenant", "")) if waits else ""
    gang_reason = ""
    answer: Placement | Refusal | str | None = held_back if waits else None
    if waits and not held_back and spec.gang:
        answer, gang_reason = await gang_waits.explained(manager, task_id, spec, cluster)
    elif waits and not held_back:
        answer = decide(wanted, cluster, policy, manager.chance)
    goes_to = answer.node if isinstance(answer, Placement) else None
    refused = words.why_it_waits(answer) if isinstance(answer, Refusal) else held_back
    if goes_to and spec.model:
        refused = model_words.why_it_waits(spec.model, workers.values())
    shut_out = kept.why(manager, wanted, policy) if isinstance(answer, Refusal) else ""
    reason = gang_reason or refused or await _waits_for(manager, row) or row.get("reason", "")
    explanation = task_schema.Explanation(
        task_id=task_id,
        status=row["state"],
        reason="; ".join(each for each in (reason, shut_out, kept.own) if each),
        policy=policy.strategy.name,
        would_go_to=goes_to,
        reasons=explain.score_reasons(wanted.shape, cluster, policy, goes_to) if goes_to else [],
        workers=[]
        if row["state"] in task.FINAL
        else await explain.verdicts(wanted.shape, cluster.copy(), workers, named=not owner),
        last_worker=row.get("worker") or None,
        last_devices=views.devices(row),
        expires=views.when(row.get("expires")) if row["state"] in task.WAITING else None,
    )
    return json_response(explanation)


async def _waits_for(manager: Manager, row: Row) -> str:
    """Return what a scheduled task waits for, with the first of its dependencies that have not ended."""
    words = views.waits_for(row)
    if not views.open_of(row):
        return words
    names = views.dependencies_of(row)
    found = zip(names, await manager.store.tasks.dependencies(names), strict=True)
    left = [f"{name} ({each.state})" for name, each in found if each.state not in task.FINAL]
    more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    return f"{words}: {', '.join(left[:MOST_NAMED])}{more}" if left else words


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


async def _page(request: Request, wanted: Filter, *, limit: int, offset: int) -> Response:
    manager = manager_of(request)
    found = await manager.store.tasks.search(wanted, offset=offset, limit=limit)
    rows = await manager.store.tasks.fetch(found.ids, most_bytes=MOST_BYTES)
    tasks = await manager.tasks.statuses(
        {name: row for name, row in zip(found.ids, rows, strict=False) if row}
    )
    return json_response(
        task_schema.TaskPage(
            tasks=tasks, total=found.total, limit=limit, offset=offset, complete=bool(found.complete)
        )
    )


async def _shown(manager: Manager, name: str, row: Row) -> Response:
    """Return one task. Only a queued one needs more than its row: callers that wait for the end are many."""
    if row["state"] != "queued":
        return json_response(views.task_status(name, await manager.results.whole(row)))
    return json_response((await manager.tasks.statuses({name: row}))[0])
