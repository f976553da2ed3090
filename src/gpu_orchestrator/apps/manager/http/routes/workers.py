"""Routes for workers: their connection, and list, show, cordon, drain, restart and remove."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, WebSocket
from starlette.responses import Response

from gpu_orchestrator.adapters.store.records import Departure
from gpu_orchestrator.adapters.store.workers import HeldRow
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager import errors, schema, views
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import body_of, json_response, read, unless_disconnected
from gpu_orchestrator.apps.manager.http.route_auth import manager_of, needs
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.workers.sessions import REMOVED
from gpu_orchestrator.apps.manager.workers.transports import WebSocketTransport

router = APIRouter(tags=["workers"])
MAX_POLL_S = 60.0


@router.websocket("/workers/{name}/session", dependencies=needs("worker"))
async def connect(websocket: WebSocket, name: str) -> None:
    """Serve the single connection of a worker; its messages are defined in `api/session.py`."""
    manager = manager_of(websocket)
    await websocket.accept()
    await manager.sessions.serve(WebSocketTransport(websocket), name, websocket.state.key)


@router.post("/workers", **described(schema.WorkerRegistered, needs="worker", status=201, body=session.Hello))
async def register(request: Request) -> Response:
    """Register a worker without a WebSocket. It then polls with POST `/workers/{id}/heartbeat`. This needs a
    worker token.

    A worker that got no response to a heartbeat registers again, with `resume_epoch` and the attempts that it
    runs. The server then sends again what was in the lost response.
    """
    hello = await read(request, session.Hello)
    request.state.object = hello.name
    welcome = await manager_of(request).polls.register(hello, request.state.key)
    return json_response(
        schema.WorkerRegistered(
            worker_id=welcome.worker_id,
            epoch=welcome.epoch,
            resumed=welcome.resumed,
            lease_seconds=welcome.lease_s,
            renew_seconds=welcome.renew_every_s,
            heartbeat_interval=welcome.heartbeat_s,
        ),
        201,
    )


@router.post(
    "/workers/{worker_id}/heartbeat", include_in_schema=False, dependencies=needs("worker", audited=False)
)
async def heartbeat(
    request: Request,
    worker_id: str,
    epoch: int,
    timeout_s: Annotated[float, Query(alias="timeout", ge=0, le=MAX_POLL_S)] = 3.0,
) -> Response:
    """Exchange the session's messages as JSON arrays; wait up to `timeout` seconds for a message to send."""
    body = await body_of(request)
    try:
        session.read_by_server(body)
    except msgspec.MsgspecError as error:
        raise errors.Unprocessable(f"the messages cannot be decoded: {error}") from error
    polled = manager_of(request).polls.heartbeat(worker_id, request.state.key, epoch, body, timeout_s)
    frames = await unless_disconnected(request, polled)  # then the messages stay for the next heartbeat
    joined = b",".join(frame[1:-1] for frame in frames or ())
    return Response(b"[" + joined + b"]", media_type="application/json")


@router.get("/workers", **described(schema.WorkerPage, needs="read"))
async def page(
    request: Request, status: str = "", gpu_type: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """List all workers. `gpu_type` matches any part of a device's model name."""
    manager = manager_of(request)
    names = sorted((await manager.store.tasks.counts()).workers)
    found = await manager.worker_list.shown(names)
    online = sum(each.status not in ("offline", "suspect") for each, _ in found)
    chosen = [each for each, worker in found if _matches(each, worker, status, gpu_type)]
    return json_response(
        schema.WorkerPage(workers=chosen, total=len(found), online=online, offline=len(found) - online)
    )


@router.get("/workers/{worker_id}", **described(schema.WorkerDetail, needs="read"))
async def detail(request: Request, worker_id: str) -> Response:
    manager = manager_of(request)
    async for part in manager.store.workers.holding([worker_id]):
        for row, each in part:
            worker = rows.worker_state_of(row)
            return json_response(views.worker_detail(row, worker, _reserved(manager, worker, each)))
    raise _no_worker(worker_id)


@router.post("/workers/{worker_id}/cordon", **described(schema.WorkerChanged, needs="admin"))
async def cordon(request: Request, worker_id: str) -> Response:
    """Stop assigning tasks to this worker. Running tasks continue."""
    return await _control(request, worker_id, {"cordoned": "1"}, "cordoned")


@router.post("/workers/{worker_id}/uncordon", **described(schema.WorkerChanged, needs="admin"))
async def uncordon(request: Request, worker_id: str) -> Response:
    """Assign tasks to this worker again, after cordon, drain, an open circuit, or a restart or removal that
    the worker has not begun. A worker that already leaves cannot be called back."""
    return await _control(
        request, worker_id, {"cordoned": "0", "draining": "0", "leaving": "0", "circuit": ""}, "online"
    )


@router.post("/workers/{worker_id}/drain", **described(schema.WorkerChanged, needs="admin"))
async def drain(request: Request, worker_id: str) -> Response:
    """Stop assigning tasks to this worker and let the running ones finish. The worker stays."""
    return await _control(request, worker_id, {"draining": "1"}, "draining", session.Drain())


@router.post("/workers/{worker_id}/restart", **described(schema.WorkerChanged, needs="admin"))
async def restart(request: Request, worker_id: str) -> Response:
    """Let the worker finish its running tasks and exit. Its service manager starts it again."""
    return await _control(request, worker_id, {"leaving": "1"}, "restarting", session.Drain(leave=True))


@router.post("/workers/{worker_id}/devices/{index}/cordon", **described(schema.WorkerChanged, needs="admin"))
async def cordon_device(request: Request, worker_id: str, index: int) -> Response:
    """Stop assigning tasks to this device."""
    return await _control_device(request, worker_id, index, cordoned=True)


@router.post(
    "/workers/{worker_id}/devices/{index}/uncordon", **described(schema.WorkerChanged, needs="admin")
)
async def uncordon_device(request: Request, worker_id: str, index: int) -> Response:
    return await _control_device(request, worker_id, index, cordoned=False)


@router.delete("/workers/{worker_id}", **described(schema.WorkerChanged, needs="admin"))
async def remove(request: Request, worker_id: str, drain: bool = True) -> Response:
    """Remove a worker. With `drain` it first finishes its tasks; without, they are queued again at once."""
    manager = manager_of(request)
    (row,) = await manager.store.workers.fetch([worker_id])
    if row is None:
        raise _no_worker(worker_id)
    if row["state"] != "offline" and drain:
        return await _control(request, worker_id, {"leaving": "1"}, "draining", session.Drain(leave=True))
    epoch = int(row["epoch"])
    await manager.store.workers.leave([Departure(worker_id, epoch, f"worker {worker_id} was removed")])
    manager.sessions.send(worker_id, row.get("api", ""), REMOVED, epoch)
    known = await manager.store.workers.control(worker_id, {}, forget=True, status="removed")
    if known.state not in ("", "offline"):
        raise errors.Conflict(f"worker {worker_id} has joined again; repeat the request to remove it")
    return json_response(schema.WorkerChanged(worker_id=worker_id, status="removed"))


async def _control(
    request: Request,
    worker_id: str,
    fields: dict[str, str],
    status: str,
    command: session.Message | None = None,
) -> Response:
    manager = manager_of(request)
    known = await manager.store.workers.control(worker_id, fields, status=status)
    if command is not None and known.state:
        manager.sessions.send(worker_id, known.api, command)
    return _changed(worker_id, known.state, status)


def _changed(worker_id: str, state: str, status: str) -> Response:
    if not state:
        raise _no_worker(worker_id)
    return json_response(schema.WorkerChanged(worker_id=worker_id, status=status))


async def _control_device(request: Request, worker_id: str, index: int, *, cordoned: bool) -> Response:
    manager = manager_of(request)
    worker = (await rows.load(manager.store, [worker_id])).get(worker_id)
    if worker is None:
        raise _no_worker(worker_id)
    known = {device.index: device.uuid for device in worker.hello.devices}
    if index not in known:
        raise errors.NotFound(f"worker {worker_id} has no device {index}; it has {[*known]}")
    status = f"device {index} {'' if cordoned else 'un'}cordoned"
    uuid = known[index]
    control = await manager.store.workers.cordon(worker_id, index, uuid, cordoned=cordoned, status=status)
    return _changed(worker_id, control.state, status)


def _reserved(manager: Manager, worker: WorkerState, holding: HeldRow) -> dict[int, int]:
    """Return the MiB reserved on each device."""
    if not holding.held:
        return {}
    return rows.reserved_mib(worker, manager.memory, (place for _, place in holding.placements() if place))


def _matches(info: schema.WorkerInfo, worker: WorkerState, status: str, gpu_type: str) -> bool:
    models = (device.model.lower() for device in worker.hello.devices)
    of_type = not gpu_type or any(gpu_type.lower() in model for model in models)
    return of_type and status in ("", info.status)


def _no_worker(worker_id: str) -> errors.NotFound:
    return errors.NotFound(f"there is no worker {worker_id}")
