"""Routes for files: upload, list, show, download, delete. Workers fetch and leave those of their attempts."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api.task import ACTIVE
from gpu_orchestrator.apps.manager import errors, schema, views
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of, needs

router = APIRouter(tags=["files"])
BINARY = "application/octet-stream"
WORKERS = "/workers/{worker_id}/files/{task}/{attempt}"


@router.post("/files", **described(schema.FileInfo, needs="submit", status=201))
async def upload(request: Request, name: Annotated[str, Query(max_length=1000)] = "") -> Response:
    """Upload a file: the body, as it is, with its `Content-Length`. In the parameters of a task
    `{"$file": "ID"}` stands for it; the task finds it on its worker. It is kept for `TASK_RETENTION` after it
    was uploaded, or named by a task that was submitted. One file may have `FILE_MB`, all of an owner
    `FILES_MB`."""
    manager, key = manager_of(request), _key(request)
    row = await manager.files.take(key.owner, name, _length(request), request.stream())
    request.state.object = row["id"]
    return json_response(_shown(row), 201)


@router.get("/files", **described(schema.FilePage, needs="read"))
async def page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    offset: Annotated[int, Query(ge=0, le=100_000)] = 0,
    room_for: Annotated[int, Query(ge=0, le=10**15)] = 0,
) -> Response:
    """List your files; those that expire last come first. With `room_for` refuse as an upload of so many
    bytes would be refused: a client that asks before need not send what nobody takes."""
    manager, owner = manager_of(request), _key(request).owner
    if room_for:
        await manager.files.check_room(owner, room_for)
    found = await manager.store.files.of_owner(owner, offset, limit)
    rows = await manager.store.files.find(found.ids, owner)
    shown = [_shown({**row, "id": name}) for name, row in zip(found.ids, rows, strict=True) if row]
    return json_response(schema.FilePage(files=shown, total=found.total, bytes=found.bytes))


@router.get("/files/{file_id}", **described(schema.FileInfo, needs="read"))
async def info(request: Request, file_id: str) -> Response:
    row = await manager_of(request).files.find(file_id, _key(request).sees)
    return json_response(_shown({**row, "id": file_id}))


@router.get("/files/{file_id}/content", **described(schema.FileInfo, needs="read", media_type=BINARY))
async def download(request: Request, file_id: str) -> Response:
    """Download a file, with its name and its SHA-256 (`X-Content-SHA256`)."""
    return await _sent(request, file_id, _key(request).sees)


@router.delete("/files/{file_id}", **described(schema.FileGone, needs="submit"))
async def remove(request: Request, file_id: str) -> Response:
    """Delete a file. Tasks that name it and have not begun will fail."""
    await manager_of(request).files.remove(file_id, _key(request).sees)
    return json_response(schema.FileGone(file_id=file_id))


@router.get(WORKERS + "/{file_id}", include_in_schema=False, dependencies=needs("worker"))
async def fetch(request: Request, worker_id: str, task: str, attempt: int, file_id: str) -> Response:
    """Send a file to the worker that runs a task of its owner."""
    return await _sent(request, file_id, await _owner(request, worker_id, task, attempt))


@router.post(WORKERS, include_in_schema=False, dependencies=needs("worker"))
async def leave(
    request: Request,
    worker_id: str,
    task: str,
    attempt: int,
    name: Annotated[str, Query(max_length=1000)] = "",
) -> Response:
    """Take a file that a task leaves, for the task's owner."""
    owner = await _owner(request, worker_id, task, attempt)
    row = await manager_of(request).files.take(owner, name, _length(request), request.stream())
    return json_response(_shown(row), 201)


async def _owner(request: Request, worker_id: str, name: str, attempt: int) -> str:
    """Return the owner of a task that this worker runs now; raise `NotFound` for any other."""
    manager, key = manager_of(request), _key(request)
    (row,) = await manager.store.tasks.fetch([name])
    (worker,) = await manager.store.workers.fetch([worker_id])
    is_its_key = worker is not None and worker.get("joined_with") == key.id
    runs = row is not None and row["state"] in ACTIVE and row["attempt"] == str(attempt)
    if row is None or not runs or not is_its_key or row["worker"] != worker_id:
        raise errors.NotFound(f"worker {worker_id} does not run attempt {attempt} at task {name}")
    return row.get("tenant", "")


async def _sent(request: Request, file_id: str, owner: str) -> Response:
    manager = manager_of(request)
    row = await manager.files.find(file_id, owner)
    headers = {
        "Content-Length": row["bytes"],
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(row['name'], safe='')}",
        "X-Content-SHA256": row["sha256"],
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(await manager.files.open(row), media_type=BINARY, headers=headers)


def _length(request: Request) -> int:
    given = header(request.scope, b"content-length")
    if not given.isdigit() or len(given) > 15:
        raise errors.BadRequest("say how long the file is: send its Content-Length")
    return int(given)


def _shown(row: Row) -> schema.FileInfo:
    return schema.FileInfo(
        file_id=row["id"],
        name=row["name"],
        bytes=int(row["bytes"]),
        sha256=row["sha256"],
        created_at=views.when(int(row["created"])) or "",
        expires_at=views.when(int(row["expires"])) or "",
    )


def _key(request: Request) -> Key:
    key: Key = request.state.key
    return key
