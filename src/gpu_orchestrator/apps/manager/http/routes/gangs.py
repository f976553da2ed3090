"""Routes for gangs: show one with its members."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpu_orchestrator.api import task, task_gangs
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import manager_of

router = APIRouter(tags=["tasks"])
ORDER = ("dead", "failed", "cancelled", "scheduled", "queued", "completed")
"""What is said of a gang without a member that runs, if they differ."""


@router.get("/gangs/{gang_id}", **described(task_schema.GangStatus, needs="read"))
async def show(request: Request, gang_id: str) -> Response:
    """Show a gang and all its members, by rank; `gang_id` may also be the id of a member. Results are not
    shown here: `GET /tasks/{task_id}` has that of a member. To cancel or retry any member is to cancel or
    retry all."""
    manager, sees = manager_of(request), request.state.key.sees
    name = await manager.tasks.full_id(gang_id, sees)
    wanted = task.decode((await manager.tasks.row(name, sees))["spec"]).gang
    if wanted is None:
        raise errors.NotFound(f"task {name} is no member of a gang")
    gang, _ = task_gangs.split(name)
    ids = list(task_gangs.members(gang, wanted.size))
    rows = await manager.store.tasks.fetch(ids)
    found = {name: row for name, row in zip(ids, rows, strict=True) if row is not None}
    members = await manager.tasks.statuses(found)
    status = task_schema.GangStatus(
        gang_id=gang,
        status=status_of([each.status for each in members]),
        size=wanted.size,
        attempt=max(each.attempt for each in members),
        members=members,
    )
    return json_response(status)


def status_of(states: Sequence[str]) -> str:
    """Return one word for a gang: its members change together, but not all in the same moment."""
    if len(set(states)) == 1:
        return states[0]
    if not any(state in task.ACTIVE for state in states):
        return next(state for state in ORDER if state in states)
    return "stopping" if set(states) & {*ORDER} else "running"
