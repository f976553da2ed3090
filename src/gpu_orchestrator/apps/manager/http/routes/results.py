"""The route for the result of a task: as it is, and in parts, however large it is."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from gpu_orchestrator.adapters.results.place import ResultError, ResultMissing
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.task_schema import TaskResult
from gpu_orchestrator.apps.manager.views import size_of

router = APIRouter(tags=["tasks"])


@router.get("/tasks/{task_id}/result", **described(TaskResult, needs="read"))
async def result(request: Request, task_id: str) -> Response:
    """Return the result of a completed task alone, as the handler returned it, whatever its size. 409 if the
    task has none, or none yet."""
    manager, key = manager_of(request), _key(request)
    name = await manager.tasks.full_id(task_id, key.sees)
    row = await manager.tasks.row(name, key.sees)
    if row["state"] != "completed":
        raise errors.Conflict(f"task {name} is {row['state']} and has no result", status=row["state"])
    if not row.get("result_at"):
        return Response(row.get("result") or "null", media_type="application/json")
    chunks = manager.results.stream(row)
    try:
        first = await anext(chunks)
    except ResultMissing as error:
        raise errors.NotFound(
            f"the result of task {name} cannot be found: {error}", result_bytes=size_of(row)
        ) from error
    except ResultError as error:
        raise errors.Unavailable(f"the result of task {name} cannot be read now: {error}") from error
    headers = {"Content-Length": str(size_of(row))}
    return StreamingResponse(_all(first, chunks), media_type="application/json", headers=headers)


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _key(request: Request) -> Key:
    key: Key = request.state.key
    return key
