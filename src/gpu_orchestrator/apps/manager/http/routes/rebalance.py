"""Routes that move models between workers."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.http import rebalancing
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.models.rebalance_schema import Rebalance, RebalanceRequest

router = APIRouter(tags=["models"])


@router.post("/cluster/rebalance", **described(Rebalance, needs="admin", status=202, body=RebalanceRequest))
async def rebalance(request: Request) -> Response:
    """Move models from workers that have too much to workers with room: at most ten, each loaded there before
    it is unloaded here. With `dry_run` say what would move, and why."""
    manager, wanted = manager_of(request), await read(request, RebalanceRequest)
    if not wanted.dry_run:
        rebalancing.refuse_second(manager)
    found = await rebalancing.planned(manager, wanted)
    request.state.object = found.rebalance_id
    if not wanted.dry_run and found.operations:
        caller = rebalancing.Caller(request.state.key, request.state.correlation)
        found = rebalancing.start(manager, found, caller)
    return json_response(found, 202)


@router.get("/cluster/rebalance", **described(Rebalance, needs="read"))
async def latest(request: Request) -> Response:
    """Return the latest rebalance that this process of the server began, and how far it is."""
    if (found := manager_of(request).rebalance) is None:
        raise errors.NotFound("this process of the server has moved no models since it started")
    return json_response(found)
