"""The route for the log of a task: as JSON, as plain text, and as server-sent events to follow it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store import logs
from gpu_orchestrator.apps.manager import task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import log_stream
from gpu_orchestrator.apps.manager.http.log_stream import LogStream
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of

router = APIRouter(tags=["tasks"])
MOST_BYTES = 32 << 20


@router.get("/tasks/{task_id}/logs", **described(task_schema.TaskLog, needs="read"))
async def read(
    request: Request,
    task_id: str,
    after: Annotated[int, Query(ge=0, le=10**15)] = 0,
    limit: Annotated[int, Query(ge=16, le=MOST_BYTES)] = MOST_BYTES,
) -> Response:
    """Show what a task has printed, and the traceback if it failed: up to `limit` bytes from the position
    `after` on. Continue from `next`. The server keeps the last `TASK_LOG_KB` of each task.

    With `Accept: text/plain` the answer is the text alone. With `Accept: text/event-stream` the server sends
    `log` events as the task prints, each with a `TaskLog` and `next` as its id, and at the end one `end`
    event with the status; resume with `Last-Event-ID`."""
    manager, key = manager_of(request), _key(request)
    task_id = await manager.tasks.full_id(task_id, key.sees)
    accept = header(request.scope, b"accept")
    if "text/event-stream" in accept:
        after = log_stream.position_of(header(request.scope, b"last-event-id")) or after
        await log_stream.read(manager, task_id, key.sees, after, 1)
        return LogStream(manager, task_id, key, after)
    part = await log_stream.read(manager, task_id, key.sees, after, limit)
    if "text/plain" in accept:
        text = (logs.missing(part.omitted_bytes) if part.omitted_bytes else "") + part.text
        return Response(text, media_type="text/plain", headers={"X-Next-Offset": str(part.next)})
    return json_response(part)


def _key(request: Request) -> Key:
    key: Key = request.state.key
    return key
