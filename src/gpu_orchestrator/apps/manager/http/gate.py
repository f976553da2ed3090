"""What every request passes on its way in and out: correlation id, timing, audit log, errors."""

from collections.abc import Awaitable, Callable, Mapping
from os import urandom
from time import perf_counter

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.access import audit
from gpu_orchestrator.apps.manager.http.responses import error_response
from gpu_orchestrator.apps.manager.http.route_auth import RouteGuard, header, manager_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.schema import PREFIX

log = structlog.get_logger()
Endpoint = Callable[[Request], Awaitable[Response]]

LONGEST_CORRELATION = 100
COME_AGAIN = (429, 503)
"""Nothing was done. These are counted and not written down, or a flood would wash everything else out of the
audit log."""
LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """What every request passes: correlation id, measure, errors, audit log. `quick` are routes without
    parameters in their path that are called straight from here: finding one's way through a framework costs
    as much as taking a task."""

    def __init__(
        self,
        app: Starlette,
        manager: Manager,
        fast_path: Mapping[tuple[str, str], tuple[Endpoint, RouteGuard]],
    ) -> None:
        self._app, self._manager, self._fast_path = app, manager, fast_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["correlation"] = _correlation(scope)
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._app(scope, receive, self._watched(scope, send))

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
                if scope["method"] not in LOOKS and status not in COME_AGAIN:
                    await self._write_down(scope, _route(scope, fast_path), status)
            await send(message)

        try:
            if fast_path is None:
                await self._app(scope, receive, answer)
            else:
                await self._call(*fast_path, scope, receive, answer)
        except errors.ApiError as error:
            await (await refusal(self._manager, error))(scope, receive, answer)
        except StoreError as error:
            await (await on_store_error(Request(scope), error))(scope, receive, answer)
        finally:
            seconds = perf_counter() - began
            self._manager.metrics.answered(scope["method"], _route(scope, fast_path), status, seconds)

    def _watched(self, scope: Scope, send: Send) -> Send:
        """For a WebSocket: the first word decides."""

        async def answer(message: Message) -> None:
            if message["type"] == "websocket.accept":
                await self._write_down(scope, _route(scope, None), 101)
            elif message["type"] == "websocket.http.response.start":
                await self._write_down(scope, _route(scope, None), message["status"])
            await send(message)

        return answer

    async def _write_down(self, scope: Scope, route: str, status: int) -> None:
        """In the audit log, what may have changed something."""
        route_guard: RouteGuard | None = scope["state"].get("route_guard")
        if route_guard is None or not route_guard.is_watched:
            return
        action = f"{scope.get('method', 'WS')} {route.removeprefix(PREFIX)}"
        entry = audit.entry_of(scope, action=action, status=status, at_ms=self._manager.keys.now_ms())
        await self._manager.audit.note(audit.stream_of(route_guard.needs, scope["state"].get("key")), entry)

    async def _call(
        self, endpoint: Endpoint, route_guard: RouteGuard, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope["app"] = self._app
        route_guard.enter(scope, self._manager)
        request = Request(scope, receive)
        try:
            response = await endpoint(request)
        except (errors.ApiError, StoreError):
            raise
        except Exception as error:
            response = await on_any_error(request, error)
        await response(scope, receive, send)


def _route(scope: Scope, fast_path: object) -> str:
    return str(scope["path"] if fast_path else getattr(scope.get("route"), "path", "unmatched"))


def _correlation(scope: Scope) -> str:
    given = header(scope, b"x-correlation-id") or header(scope, b"x-request-id")
    return given if given.isprintable() and 0 < len(given) <= LONGEST_CORRELATION else urandom(16).hex()


async def refusal(manager: Manager, error: errors.ApiError) -> Response:
    if isinstance(error, errors.TooManyRequests | errors.QueueFull):
        await manager.rate_limiter.linger()
    return error_response(error)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ApiError)  # noqa: S101 - registered for nothing else
    return await refusal(manager_of(request), error)


async def on_store_error(_: Request, error: Exception) -> Response:
    """Where the store is and what it said is for the log, not for whoever has a key."""
    log.warning("the store failed a request", error=str(error))
    return error_response(errors.Unavailable("the store does not answer; try again"))


async def on_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses. Only who has a key is told what there is and what not."""
    manager = manager_of(request)
    try:
        key = manager.keys.find(header(request.scope, b"authorization"))
        manager.rate_limiter.take(key, request.method, "")
    except errors.ApiError as unwelcome:
        return await refusal(manager, unwelcome)
    status = int(getattr(error, "status_code", 500))
    known = {404: errors.NotFound, 405: errors.MethodNotAllowed}
    kind = known.get(status, errors.BadRequest)
    return error_response(kind(str(getattr(error, "detail", error))))


async def on_any_error(request: Request, error: Exception) -> Response:
    log.error("a request failed", path=request.url.path, exc_info=error)
    return error_response(errors.ApiError("something went wrong here; the log has it"))
