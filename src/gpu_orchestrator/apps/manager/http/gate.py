"""The gate, which every request passes on its way in and out: correlation id, timing, audit log, errors.

`app` puts it in front of the routes. The error handlers of the application are here too.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from os import urandom
from time import perf_counter

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access import audit
from gpu_orchestrator.apps.manager.http.acknowledgement import DurableSend, store_refusal
from gpu_orchestrator.apps.manager.http.responses import error_response
from gpu_orchestrator.apps.manager.http.route_auth import RouteGuard, check_query, header, manager_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.schema import PREFIX
from gpu_orchestrator.apps.manager.workers.transports import SEND

log = structlog.get_logger()
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class FastRoute:
    """A route that the gate calls itself; `query` are the parameters that it takes."""

    endpoint: Endpoint
    route_guard: RouteGuard
    query: frozenset[str]


MAX_CORRELATION_CHARS = 100
RETRY_LATER = 503
"""Nothing was done, for a reason that is not the caller's: counted, but not audited."""
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """Adds correlation ids, metrics, error bodies and audit entries to every request.

    `fast_path` holds routes without path parameters that the gate calls directly: routing through the
    framework costs as much as accepting a task.
    """

    def __init__(
        self,
        app: Starlette,
        manager: Manager,
        fast_path: Mapping[tuple[str, str], FastRoute],
    ) -> None:
        self._app, self._manager, self._fast_path = app, manager, fast_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["correlation"] = _correlation(scope)
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            scope["state"][SEND] = send
            try:
                await self._app(scope, receive, self._audited_send(scope, send))
            finally:
                del scope["state"][SEND]  # it refers to the connection, which refers to the scope

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        status = 500
        fast_path = self._fast_path.get((scope["method"], scope["path"]))

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                correlation = scope["state"]["correlation"].encode("latin-1")
                message["headers"] = [*message["headers"], (b"x-correlation-id", correlation)]
                if scope["method"] not in READ_METHODS and status != RETRY_LATER:
                    await self._audit(scope, _route(scope, fast_path), status)
            await send(message)

        reply: Send = answer
        if self._manager.store.database.strict and scope["method"] not in READ_METHODS:
            reply = DurableSend(self._manager, scope, answer)
            await reply.begin()
        try:
            if fast_path is None:
                await self._app(scope, receive, reply)
            else:
                await self._call(fast_path, scope, receive, reply)
        except errors.ApiError as error:
            await (await refusal(self._manager, error))(scope, receive, answer)
        except ClientDisconnect as error:
            await (await on_disconnect(Request(scope), error))(scope, receive, answer)
        except StoreError as error:
            await (await on_store_error(Request(scope), error))(scope, receive, answer)
        finally:
            seconds = perf_counter() - began
            self._manager.metrics.answered(scope["method"], _route(scope, fast_path), status, seconds)

    def _audited_send(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that audits a WebSocket by its first message: accepted or refused."""

        async def answer(message: Message) -> None:
            if message["type"] == "websocket.accept":
                await self._audit(scope, _route(scope, None), 101)
            elif message["type"] == "websocket.http.response.start":
                await self._audit(scope, _route(scope, None), message["status"])
            await send(message)

        return answer

    async def _audit(self, scope: Scope, route: str, status: int) -> None:
        """Write an audit entry if the request may have changed something."""
        route_guard: RouteGuard | None = scope["state"].get("route_guard")
        if route_guard is None or not route_guard.is_audited:
            return
        action = f"{scope.get('method', 'WS')} {route.removeprefix(PREFIX)}"
        entry = audit.entry_of(scope, action=action, status=status, at_ms=self._manager.keys.now_ms())
        await self._manager.audit.record(audit.stream_of(route_guard.needs, scope["state"].get("key")), entry)

    async def _call(self, route: FastRoute, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self._app
        route.route_guard.enter(scope, self._manager)
        if scope["query_string"]:
            check_query(scope["query_string"], route.query)
        request = Request(scope, receive)
        try:
            response = await route.endpoint(request)
        except (errors.ApiError, StoreError):
            raise
        except Exception as error:
            response = await on_any_error(request, error)
        await response(scope, receive, send)


def _route(scope: Scope, fast_path: object) -> str:
    return str(scope["path"] if fast_path else getattr(scope.get("route"), "path", "unmatched"))


def _correlation(scope: Scope) -> str:
    given = header(scope, b"x-correlation-id") or header(scope, b"x-request-id")
    if not given or len(given) > MAX_CORRELATION_CHARS or not given.isprintable():
        return urandom(16).hex()
    return given


async def refusal(manager: Manager, error: errors.ApiError) -> Response:
    if isinstance(error, errors.TooManyRequests | errors.QueueFull):
        await manager.rate_limiter.linger()
    return error_response(error)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ApiError)  # noqa: S101 - registered for this class only
    return await refusal(manager_of(request), error)


async def on_disconnect(_: Request, __: Exception) -> Response:
    """Answer a client that has left in the middle of its request: nobody reads the answer."""
    return error_response(errors.BadRequest("the connection ended before the whole request had arrived"))


async def on_store_error(_: Request, error: Exception) -> Response:
    """Log the store's address and error, but hide them from the client."""
    log.warning("the store failed a request", error=str(error))
    return store_refusal(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the router itself refuses. Only clients with a key learn which routes exist."""
    manager = manager_of(request)
    try:
        key = manager.keys.find(header(request.scope, b"authorization"))
        manager.rate_limiter.take(key, request.method, "")
    except errors.ApiError as refused:
        return await refusal(manager, refused)
    status = int(getattr(error, "status_code", 500))
    known = {404: errors.NotFound, 405: errors.MethodNotAllowed}
    kind = known.get(status, errors.BadRequest)
    return error_response(kind(str(getattr(error, "detail", error))))


async def on_any_error(request: Request, error: Exception) -> Response:
    log.error("a request failed", path=request.url.path, exc_info=error)
    return error_response(errors.ApiError("internal error; the server log has the details"))
