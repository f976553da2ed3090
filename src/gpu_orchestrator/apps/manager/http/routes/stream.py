"""The route for what a task sends before its end: as JSON, and as server-sent events to follow it."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store import values
from gpu_orchestrator.adapters.store.values import Reader
from gpu_orchestrator.apps.manager import task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import value_stream
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of
from gpu_orchestrator.apps.manager.http.value_stream import ValueStream

router = APIRouter(tags=["tasks"])
MOST_BYTES = 8 << 20


@router.get("/tasks/{task_id}/stream", **described(task_schema.TaskValues, needs="read"))
async def stream(
    request: Request,
    task_id: str,
    after: Annotated[str, Query(max_length=40)] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_BYTES)] = MOST_BYTES,
    reader: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Show the partial results of a task: what its generator yields, or its handler sends, before it ends.
    About `limit` bytes of them, from the place `after` on; continue from `next`. The server keeps the last
    `TASK_VALUES_KB` of each task, and those of its newest attempt alone: they replace those of the attempt
    before.

    With `Accept: text/event-stream` the server sends `values` events as they come, each with a place as its
    id, `attempt` when an attempt begins, and at the end one `end` event. After about two megabytes the stream
    ends with `more`. Resume with `Last-Event-ID`, or with `after`.

    A `reader` with a name of its own choice holds the task back: if more values are kept than there is room
    for, the task waits instead of dropping what this reader has not got. It counts as having got what came
    before `after` of its newest request, and while it reads, or was last heard of less than a minute ago."""
    manager, key = manager_of(request), _key(request)
    task_id = await manager.tasks.full_id(task_id, key.sees)
    last_id = header(request.scope, b"last-event-id")
    at = value_stream.place_of(last_id or after, "Last-Event-ID" if last_id else "after")
    by = Reader(reader, key.owner, at)
    if "text/event-stream" in header(request.scope, b"accept"):
        await value_stream.read(manager, task_id, key, at, 1)
        return ValueStream(manager, task_id, key, at, by)
    part = await value_stream.read(manager, task_id, key, at, limit, by)
    return json_response(value_stream.shown(task_id, part, values.lines_of(part, at)))


def _key(request: Request) -> Key:
    key: Key = request.state.key
    return key
