"""Routes for the events of the cluster: page by page, as server-sent events, and over a WebSocket."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, WebSocket
from starlette.responses import Response

from gpu_orchestrator.adapters.store.events import Id, id_of
from gpu_orchestrator.apps.manager import errors, schema
from gpu_orchestrator.apps.manager.events import encoding
from gpu_orchestrator.apps.manager.http.event_streams import EventStream, serve_socket
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import manager_of, needs
from gpu_orchestrator.apps.manager.manager import Manager

router = APIRouter(tags=["events"])
After = Annotated[str, Query(max_length=40)]


@router.get("/cluster/events", **described(schema.EventPage, needs="read"))
async def page(
    request: Request, after: After = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    """List the events after the id `after`, oldest first; without `after`, the latest events. `after=0`
    starts with the oldest event that is kept. A page can be empty although there are more: continue from
    `next`."""
    manager = manager_of(request)
    found = await manager.store.events.page(_id(after) if after else None, limit)
    sees = request.state.key.sees
    seen = [each for each in map(encoding.encoded, found.entries) if each.is_seen_by(sees)]
    body = schema.EventPage(events=[each.event for each in seen], next=found.last, reset=bool(found.lost))
    return json_response(body)


@router.get("/events", include_in_schema=False, dependencies=needs("read"))
async def stream(request: Request, after: After = "") -> Response:
    """Send server-sent events. Resume from the header `Last-Event-ID` or from `after`."""
    manager = manager_of(request)
    at = await _start(manager, request.headers.get("last-event-id", "") or after)
    return EventStream(manager.feed, at, request.state.key)


@router.websocket("/ws", dependencies=needs("read"))
async def socket(websocket: WebSocket, after: After = "") -> None:
    """Send the same events, one per message. Resume from `after`."""
    manager = manager_of(websocket)
    await serve_socket(manager.feed, websocket, await _start(manager, after))


async def _start(manager: Manager, given: str) -> Id:
    return _id(given) if given else await manager.feed.latest()


def _id(given: str) -> Id:
    try:
        return id_of(given)
    except ValueError as error:
        raise errors.Unprocessable(str(error)) from error
