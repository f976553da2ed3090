"""Routes for schedules: tasks that are queued at moments that a cron expression names."""

from os import urandom
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import scheduling, submission
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.http.task_wishes import pool_allowed
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.schedule_schema import (
    Schedule,
    ScheduleGone,
    SchedulePage,
    ScheduleRequest,
)
from gpu_orchestrator.apps.manager.schedules import template

router = APIRouter(tags=["schedules"])


@router.post(
    "/schedules",
    **described(Schedule, needs="submit", status=201, body=ScheduleRequest, also={200: Schedule}),
)
async def add(request: Request) -> Response:
    """Add a schedule. The same one again changes nothing (200); another of its name is refused (409), unless
    `replace` is set. Tasks count as those of the key's owner, also against its limits."""
    manager, key = manager_of(request), request.state.key
    wanted = await read(request, ScheduleRequest)
    row, is_new = await scheduling.save(manager, wanted, key, request.state.correlation)
    request.state.object = f"{row.id} ({row.name})"
    return json_response(scheduling.shown(row), 201 if is_new else 200)


@router.get("/schedules", **described(SchedulePage, needs="read"))
async def page(
    request: Request,
    owner: Annotated[str, Query(max_length=63)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """List schedules, oldest first, of what is upcoming only the next. `owner` is for admins; others see
    their own."""
    manager, key = manager_of(request), request.state.key
    found = await manager.store.schedules.page(key.sees or owner, offset, limit)
    shown = [scheduling.shown(row, upcoming=1) for row in found.rows]
    return json_response(SchedulePage(schedules=shown, total=found.total, limit=limit, offset=offset))


@router.get("/schedules/{schedule_id}", **described(Schedule, needs="read"))
async def show(request: Request, schedule_id: str) -> Response:
    """Show a schedule. Here and in all paths, your own may be named by its name."""
    row = await scheduling.find(manager_of(request), schedule_id, request.state.key)
    return json_response(scheduling.shown(row))


@router.delete("/schedules/{schedule_id}", **described(ScheduleGone, needs="submit"))
async def delete(request: Request, schedule_id: str) -> Response:
    """Delete a schedule. Tasks that it has queued go on."""
    manager, key, name = await _named(request, schedule_id)
    _, row = await manager.store.schedules.change(name, "delete", owner=key.sees)
    if row is None:
        raise errors.NotFound(f"there is no schedule {schedule_id}")
    return json_response(ScheduleGone(schedule_id=row.id, name=row.name, status="deleted"))


@router.post("/schedules/{schedule_id}/pause", **described(Schedule, needs="submit"))
async def pause(request: Request, schedule_id: str) -> Response:
    """Pause a schedule until it is resumed. Moments meanwhile are not missed ones."""
    manager, key, name = await _named(request, schedule_id)
    by = f"{key.owner} (key {key.id})"
    before, row = await manager.store.schedules.change(name, "pause", owner=key.sees, by=by)
    if row is None:
        raise errors.NotFound(f"there is no schedule {schedule_id}")
    if before == "stopped":
        raise errors.Conflict(f"schedule {row.name} has stopped: {row.reason}")
    return json_response(scheduling.shown(row))


@router.post("/schedules/{schedule_id}/resume", **described(Schedule, needs="submit"))
async def resume(request: Request, schedule_id: str) -> Response:
    """Let a schedule fire again, from its next moment on. One that stopped because its key is over goes on
    under the key of this request, which must be its owner's."""
    manager, key = manager_of(request), request.state.key
    found = await scheduling.find(manager, schedule_id, key)
    request.state.object = f"{found.id} ({found.name})"
    is_owner = key.owner == found.owner
    if is_owner:
        pool_allowed(template.spec_of(found).pool, key)
    before, row = await manager.store.schedules.change(
        found.id,
        "resume",
        owner=key.sees,
        next_ms=scheduling.next_ms(found, int(manager.leader.clock.now() * 1000)),
        new_key=key.id if is_owner else "",
    )
    if row is None:
        raise errors.NotFound(f"there is no schedule {schedule_id}")
    if before == "stopped" and row.state == "stopped":
        raise errors.Conflict(f"schedule {row.name} has stopped: {row.reason}; {row.owner} must do that")
    return json_response(scheduling.shown(row))


@router.post(
    "/schedules/{schedule_id}/run", **described(task_schema.TaskAccepted, needs="submit", status=202)
)
async def run(request: Request, schedule_id: str) -> Response:
    """Queue the task of a schedule now, whatever its moments, its status and its tasks that run."""
    manager, key = manager_of(request), request.state.key
    row = await scheduling.find(manager, schedule_id, key)
    if row.owner != key.owner:
        raise errors.Forbidden(f"schedule {row.name} is of {row.owner}, and runs for {row.owner} alone")
    pool_allowed(template.spec_of(row).pool, key)
    new = template.labelled(row, urandom(16).hex(), {}, request.state.correlation)
    taken = await submission.put(manager, new, key)
    request.state.object = f"{row.id} ({row.name}): {new.id}"
    return json_response(submission.accepted(manager, [taken])[0], 202)


async def _named(request: Request, schedule_id: str) -> tuple[Manager, Key, str]:
    manager, key = manager_of(request), request.state.key
    row = await scheduling.find(manager, schedule_id, key)
    request.state.object = f"{row.id} ({row.name})"
    return manager, key, row.id
