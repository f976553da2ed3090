"""Routes that cancel and retry tasks: one by its id, or many by their ids or by a filter."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store.records import NoRoom
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import submission, task_changes
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import manager_of, path_of
from gpu_orchestrator.apps.manager.http.submission import TASKS_PER_REQUEST
from gpu_orchestrator.apps.manager.http.task_changes import CANCELLABLE, RETRYABLE, Change

router = APIRouter(tags=["tasks"])
MOST_LABEL_CHARS = 300


@router.post(
    "/tasks/cancel", **described(task_schema.TasksChanged, needs="submit", body=task_schema.TaskSelection)
)
async def cancel_many(request: Request) -> Response:
    """Cancel many tasks: those with these ids, or those that match a filter. Each task has an outcome of its
    own. Every hundred tasks count as one request."""
    return await _change(request, task_changes.cancel, CANCELLABLE)


@router.post(
    "/tasks/retry", **described(task_schema.TasksChanged, needs="submit", body=task_schema.TaskSelection)
)
async def retry_many(request: Request) -> Response:
    """Queue many tasks again that ended without a result, chosen and counted like those to cancel."""
    return await _change(request, task_changes.retry, RETRYABLE)


@router.post("/tasks/{task_id}/retry", **described(task_schema.TaskChanged, needs="submit", status=202))
async def retry(request: Request, task_id: str) -> Response:
    """Queue a task again that ended without a result."""
    manager, key = manager_of(request), request.state.key
    name = request.state.object = await manager.tasks.full_id(task_id, key.sees)
    (before,) = await submission.retry(manager, [name], key)
    if isinstance(before, errors.Forbidden):
        raise before
    if isinstance(before, NoRoom):
        raise submission.no_room(manager, before, 1, key)
    if not before.state:
        raise errors.NotFound(f"there is no task {name}")
    if before.state not in RETRYABLE:
        raise errors.Conflict(task_changes.not_retryable(name, before.state))
    return json_response(task_schema.TaskChanged(task_id=name, status="queued"), 202)


@router.delete("/tasks/{task_id}", **described(task_schema.TaskChanged, needs="submit"))
async def cancel(request: Request, task_id: str) -> Response:
    """Cancel a task. A queued one ends at once. The worker asks a running one to stop, then sends SIGTERM,
    then SIGKILL."""
    manager, key = manager_of(request), request.state.key
    name = request.state.object = await manager.tasks.full_id(task_id, key.sees)
    (outcome,) = await task_changes.cancel(manager, [name], key)
    if outcome.error:
        raise (errors.Conflict if outcome.status else errors.NotFound)(outcome.error)
    return json_response(task_schema.TaskChanged(task_id=name, status=outcome.status))


async def _change(request: Request, change: Change, states: tuple[str, ...]) -> Response:
    manager, key = manager_of(request), request.state.key
    wanted = await read(request, task_schema.TaskSelection)
    chosen = await task_changes.choose(manager, wanted, key, states)
    if (more := (len(chosen.names) - 1) // TASKS_PER_REQUEST) > 0:
        manager.rate_limiter.take(key, "POST", path_of(request.scope), cost=more)
    outcomes = [*await change(manager, chosen.names, key), *chosen.failed]
    done = sum(not each.error for each in outcomes)
    request.state.object = f"{done} of {len(outcomes)} tasks: {_chosen(wanted, key)}"
    return json_response(
        task_schema.TasksChanged(
            tasks=outcomes, total=len(outcomes), remaining=chosen.remaining, complete=chosen.complete
        )
    )


def _chosen(wanted: task_schema.TaskSelection, key: Key) -> str:
    """Return for the audit log how the tasks were chosen."""
    if wanted.task_ids:
        more = f" and {len(wanted.task_ids) - 1} more" if len(wanted.task_ids) > 1 else ""
        return wanted.task_ids[0] + more
    given = {
        "status": ",".join(wanted.status),
        "task_type": wanted.task_type,
        "labels": ",".join(f"{name}={value}" for name, value in wanted.labels.items())[:MOST_LABEL_CHARS],
        "worker_id": wanted.worker_id,
        "owner": wanted.owner or key.sees,
    }
    return " ".join(f"{name}={value}" for name, value in given.items() if value) or "all"
