"""Build the ASGI application: routes under `/` and `/api/v1`, and the gate in front.

`server` calls `build`; `cli/api_docs.py` calls `application`.
"""

from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.http import gate, responses, route_auth
from gpu_orchestrator.apps.manager.http.routes import (
    audit,
    callbacks,
    cluster,
    events,
    files,
    gangs,
    keys,
    logs,
    models,
    openai,
    pages,
    rebalance,
    results,
    schedules,
    stream,
    task_changes,
    tasks,
    workers,
)
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.schema import PREFIX

ROUTERS = (
    tasks.router,
    task_changes.router,
    gangs.router,
    logs.router,
    stream.router,
    results.router,
    schedules.router,
    files.router,
    workers.router,
    models.router,
    rebalance.router,
    cluster.router,
    events.router,
    keys.router,
    audit.router,
    callbacks.router,
    pages.router,
)
"""The busiest first, because the framework tries them in order."""
UNPREFIXED = (openai.router,)
"""Clients of OpenAI's API give its `/v1` as a part of the base URL."""


WANTED = {
    "greater_than_equal": "give at least {ge:.12g}",
    "less_than_equal": "give at most {le:.12g}",
    "string_too_long": "give at most {max_length} characters",
    "too_long": "give at most {max_length}",
    "literal_error": "give {expected}",
    "int_parsing": "give a whole number",
    "int_type": "give a whole number",
    "float_parsing": "give a number",
    "bool_parsing": "give true or false",
}
"""What may be sent instead, by the kind of error that the framework finds in a query."""


def build(manager: Manager) -> ASGIApp:
    app = application(manager)
    gated = gate.Gate(app, manager, _fast_path(route_auth.guarded_routes(app)))
    origins = manager.settings.cors_origins
    if not origins:
        return gated
    # In front of the gate, because a browser sends its preflight request without the key.
    exposed = ["X-Correlation-ID", "Retry-After"]
    return CORSMiddleware(
        gated, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
    )


def application(manager: Manager) -> FastAPI:
    app = FastAPI(
        title="gpu-orchestrator",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A redirect would answer clients without a key. Behind a proxy with TLS it would send clients, with
        # their key, to plain http.
        redirect_slashes=False,
    )
    app.state.manager = manager
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
        app.include_router(router, include_in_schema=False)
    for router in UNPREFIXED:
        app.include_router(router)
    app.add_exception_handler(errors.ApiError, gate.on_api_error)
    app.add_exception_handler(ClientDisconnect, gate.on_disconnect)
    app.add_exception_handler(StoreError, gate.on_store_error)
    app.add_exception_handler(HTTPException, gate.on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_query)
    app.add_exception_handler(Exception, gate.on_any_error)
    return app


def _fast_path(
    routes: Iterable[route_auth.GuardedRoute],
) -> dict[tuple[str, str], gate.FastRoute]:
    """Return the routes that the gate calls directly.

    This iterates over all routes, so a route that does not declare what it needs raises here.
    """
    return {
        (each.method, each.path): gate.FastRoute(tasks.FAST_PATH[bare], each.route_guard, each.query)
        for each in routes
        if each.method == "POST" and (bare := each.path.removeprefix(PREFIX)) in tasks.FAST_PATH
    }


async def _on_bad_query(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class only
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "missing":
        return responses.error_response(errors.Unprocessable(f"the query parameter {where} is missing"))
    rule = WANTED.get(first["type"], first["msg"]).format(**first.get("ctx", {}))
    return responses.error_response(errors.Unprocessable(f"{where}={first.get('input')}: {rule}"))
