"""Routes for models: the registry, what is loaded where, and loading, unloading and pinning."""

import re

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from gpu_orchestrator.adapters.store.models import Saved
from gpu_orchestrator.api import units
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.fleet.models import EVERYWHERE, Declared, KnownModel
from gpu_orchestrator.apps.manager.http import model_loading, submission
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import json_response, read
from gpu_orchestrator.apps.manager.http.route_auth import manager_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.models import schema, views

router = APIRouter(tags=["models"])
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*(/[A-Za-z0-9][A-Za-z0-9._:@+-]*)*")
RESERVED = ("assign", "unload", "assignments", "pin", "unpin")
MOST_OPTIONS = 16_384


@router.get("/models", **described(schema.ModelPage, needs="read"))
async def page(request: Request) -> Response:
    """List the models that tasks may name, and where they are loaded."""
    manager = manager_of(request)
    await manager.overview.refresh()
    loaded: dict[str, list[schema.ModelCopy]] = {}
    for each in views.copies(manager.overview.workers.values()):
        loaded.setdefault(each.model_name, []).append(each)
    undeclared = {*manager.overview.model_types, *loaded}
    models = {name: KnownModel(name) for name in undeclared} | manager.models.models
    shown = [views.info(models[name], loaded.get(name, [])) for name in sorted(models)]
    return json_response(schema.ModelPage(models=shown, total=len(shown)))


@router.get("/models/assignments", **described(schema.AssignmentPage, needs="read"))
async def assignments(request: Request) -> Response:
    """List the copies of models on all workers, as they were reported last."""
    manager = manager_of(request)
    await manager.overview.refresh()
    found = views.copies(manager.overview.workers.values())
    return json_response(schema.AssignmentPage(assignments=found, total=len(found)))


@router.post(
    "/models/assign", **described(schema.Assigned, needs="admin", status=202, body=schema.AssignRequest)
)
async def assign(request: Request) -> Response:
    """Load a model before a task needs it. It takes part in the queue as a task that does nothing more; room
    is made for it as for any other."""
    manager, wanted = manager_of(request), await read(request, schema.AssignRequest)
    known, key = await model_loading.known(manager, wanted.model_name), request.state.key
    pool = ""
    if wanted.worker_id:
        pool = (await model_loading.worker_of(manager, wanted.worker_id)).hello.pool
    handler = known.declared.handler if known.declared else known.name
    asked = task_schema.TaskRequest(
        task_type=handler,
        model_name=known.name,
        priority=wanted.priority,
        resources=task_schema.Resources(gpus=wanted.gpus, gpu_memory=wanted.gpu_memory, pool=pool),
    )
    taken = await submission.accept_load(manager, asked, key, request.state.correlation, wanted.worker_id)
    if wanted.pin:
        _check(
            manager, await manager.store.models.pin(known.name, wanted.worker_id or EVERYWHERE, pinned=True)
        )
        await manager.model_sync.refresh()
    request.state.object = f"{known.name} on {wanted.worker_id or 'any worker'}"
    answer = schema.Assigned(
        model_name=known.name,
        worker_id=taken.worker or wanted.worker_id,
        status=taken.state,
        task_id=taken.id,
        pinned=wanted.pin,
    )
    return json_response(answer, 202)


@router.post(
    "/models/unload", **described(schema.Unloaded, needs="admin", status=202, body=schema.UnloadRequest)
)
async def unload(request: Request) -> Response:
    """Unload a model. Without `force` a model that a task uses, or that is pinned, stays (409). A task that
    names it later loads it again."""
    manager, wanted = manager_of(request), await read(request, schema.UnloadRequest)
    await model_loading.known(manager, wanted.model_name)
    if wanted.worker_id:
        await model_loading.worker_of(manager, wanted.worker_id)
    told = await model_loading.unload(manager, wanted.model_name, wanted.worker_id, force=wanted.force)
    status = "unloading" if told else "not_loaded"
    request.state.object = wanted.model_name
    return json_response(schema.Unloaded(model_name=wanted.model_name, workers=told, status=status), 202)


@router.post("/models/pin", **described(schema.Pinned, needs="admin", body=schema.PinRequest))
async def pin(request: Request) -> Response:
    """Never evict a model on a worker, or on any: also if it is loaded there later."""
    return await _pin(request, pinned=True)


@router.post("/models/unpin", **described(schema.Pinned, needs="admin", body=schema.PinRequest))
async def unpin(request: Request) -> Response:
    """Let a model be evicted again; `*` takes back all of its pins."""
    return await _pin(request, pinned=False)


@router.get("/models/{name:path}", **described(schema.ModelInfo, needs="read"))
async def show(request: Request, name: str) -> Response:
    manager = manager_of(request)
    found = await model_loading.known(manager, name)
    return json_response(views.info(found, views.copies(manager.overview.workers.values(), name)))


@router.put("/models/{name:path}", **described(schema.ModelInfo, needs="admin", body=schema.ModelRequest))
async def declare(request: Request, name: str) -> Response:
    """Declare a model, or change it. Copies of an earlier definition are used no more, and what was
    measured of it is forgotten."""
    manager, wanted = manager_of(request), await read(request, schema.ModelRequest)
    declared = _declared(name, wanted)
    _check(manager, await manager.store.models.declare(name, msgspec.json.encode(declared).decode()))
    await manager.model_sync.refresh()
    request.state.object = name
    return await show(request, name)


@router.delete("/models/{name:path}", **described(schema.ModelRemoved, needs="admin"))
async def remove(request: Request, name: str) -> Response:
    """Remove a model from the registry. Copies that are loaded stay until they are evicted; new tasks cannot
    name it."""
    manager = manager_of(request)
    if await manager.store.models.forget(name) == "unknown":
        raise errors.NotFound(f"there is no model {name} in the registry")
    await manager.model_sync.refresh()
    return json_response(schema.ModelRemoved(name=name, status="removed"))


async def _pin(request: Request, *, pinned: bool) -> Response:
    manager, wanted = manager_of(request), await read(request, schema.PinRequest)
    known = await model_loading.known(manager, wanted.model_name)
    if pinned and wanted.worker_id != EVERYWHERE:
        await model_loading.worker_of(manager, wanted.worker_id)
    _check(manager, await manager.store.models.pin(known.name, wanted.worker_id, pinned=pinned))
    await manager.model_sync.refresh()
    request.state.object = f"{known.name} on {wanted.worker_id}"
    left = manager.models.get(known.name)
    return json_response(schema.Pinned(model_name=known.name, pinned_on=list(left.pins) if left else []))


def _check(manager: Manager, saved: Saved) -> None:
    if saved == "full":
        raise errors.Conflict(f"there are {manager.store.models.most} models already; remove some")


def _declared(name: str, wanted: schema.ModelRequest) -> Declared:
    if len(name) > 200 or not NAME.fullmatch(name) or name in RESERVED:
        raise errors.Unprocessable(
            f"{name[:200]!r} cannot be the name of a model; use letters, digits and . _ : @ + - in parts "
            f"separated by /, at most 200 characters, and none of {', '.join(RESERVED)}"
        )
    if ".." in wanted.path.split("/") or not wanted.path.isprintable():
        raise errors.Unprocessable("path: leave out '..' and what cannot be printed")
    try:
        mib = units.memory_mib(wanted.memory) if wanted.memory else 0
    except units.BadAmount as error:
        raise errors.Unprocessable(f"memory: {error}") from error
    options = msgspec.json.encode(wanted.options)
    if len(options) > MOST_OPTIONS:
        raise errors.Unprocessable(f"options: {len(options)} bytes as JSON; give at most {MOST_OPTIONS}")
    return Declared(
        wanted.handler,
        mib,
        wanted.path,
        msgspec.Raw(options),
        wanted.load_seconds,
        wanted.backend,
        wanted.gpus,
    )
