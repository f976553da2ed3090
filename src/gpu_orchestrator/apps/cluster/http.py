"""Around every request: who asks, how large it is, how long it took; and the one shape of errors."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from os import urandom
from time import perf_counter
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.apps.cluster import audit, errors
from gpu_orchestrator.apps.cluster.access import Door, header, manager_of
from gpu_orchestrator.apps.cluster.manager import Manager
from gpu_orchestrator.apps.cluster.schema import PREFIX, ErrorBody, Problem

log = structlog.get_logger()
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

LONGEST_CORRELATION = 100
COME_AGAIN = (429, 503)
"""Nothing was done. These are counted and not written down, or a flood would wash everything else out of the
audit log."""
LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})
NO_HEADERS: Mapping[str, str] = {}
_encode = msgspec.json.Encoder().encode


class JsonResponse(Response):
    """With as many headers as it needs, and no search for those that somebody may have set before."""

    def __init__(self, value: Any, status: int, headers: Mapping[str, str]) -> None:
        self.status_code, self.background, self.body = status, None, _encode(value)
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
            *((name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()),
        ]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    return JsonResponse(value, status, headers)


def error_response(error: errors.ApiError) -> Response:
    body = ErrorBody(Problem(error.code, error.message, error.details))
    return json_response(body, error.status, error.headers)


async def read(request: Request, kind: type[T]) -> T:
    """The body as a value of this kind, or an error that says where it is wrong."""
    body = await body_of(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise errors.Unprocessable(f"the body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.BadRequest(f"the body is no JSON that can be read: {error}") from error


async def body_of(request: Request) -> bytes:
    """Not more than is allowed."""
    manager = manager_of(request)
    most = int(manager.settings.max_request_mb * 1024 * 1024)
    declared = header(request.scope, b"content-length")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    parts, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def while_there(request: Request, doing: Awaitable[T]) -> T | None:
    """What comes of it; None if whoever asks leaves before, and then it is cancelled. For after the body."""
    done = await done_before(doing, until_left(request.receive))
    return None if done is None else done.result()


async def done_before(doing: Awaitable[T], over: Awaitable[None]) -> "asyncio.Future[T] | None":
    """Done, well or not; None if the other came first, and then it is cancelled."""
    tasks = asyncio.ensure_future(doing), asyncio.ensure_future(over)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0] if tasks[0].done() else None
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_left(receive: Receive) -> None:
    """Until whoever asks leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> errors.TooLarge:
    return errors.TooLarge(
        f"the body is larger than {most} bytes; send less, or raise MAX_REQUEST_MB", limit_bytes=most
    )


class Gate:
    """What every request passes: correlation id, measure, errors, audit log. `quick` are routes without
    parameters in their path that are called straight from here: finding one's way through a framework costs
    as much as taking a task."""

    def __init__(
        self, app: Starlette, manager: Manager, quick: Mapping[tuple[str, str], tuple[Endpoint, Door]]
    ) -> None:
        self._app, self._manager, self._quick = app, manager, quick

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["correlation"] = _correlation(scope)
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._app(scope, receive, self._watched(scope, send))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        status = 500
        quick = self._quick.get((scope["method"], scope["path"]))

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                correlation = scope["state"]["correlation"].encode("latin-1")
                message["headers"] = [*message["headers"], (b"x-correlation-id", correlation)]
                if scope["method"] not in LOOKS and status not in COME_AGAIN:
                    await self._write_down(scope, _route(scope, quick), status)
            await send(message)

        try:
            if quick is None:
                await self._app(scope, receive, answer)
            else:
                await self._call(*quick, scope, receive, answer)
        except errors.ApiError as error:
            await (await refusal(self._manager, error))(scope, receive, answer)
        except StoreError as error:
            await (await on_store_error(Request(scope), error))(scope, receive, answer)
        finally:
            seconds = perf_counter() - began
            self._manager.metrics.answered(scope["method"], _route(scope, quick), status, seconds)

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
        door: Door | None = scope["state"].get("door")
        if door is None or not door.is_watched:
            return
        action = f"{scope.get('method', 'WS')} {route.removeprefix(PREFIX)}"
        entry = audit.entry_of(scope, action=action, status=status, at_ms=self._manager.keys.now_ms())
        await self._manager.audit.note(audit.stream_of(door.needs, scope["state"].get("key")), entry)

    async def _call(self, endpoint: Endpoint, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self._app
        door.enter(scope, self._manager)
        request = Request(scope, receive)
        try:
            response = await endpoint(request)
        except (errors.ApiError, StoreError):
            raise
        except Exception as error:
            response = await on_any_error(request, error)
        await response(scope, receive, send)


def _route(scope: Scope, quick: object) -> str:
    return str(scope["path"] if quick else getattr(scope.get("route"), "path", "unmatched"))


def _correlation(scope: Scope) -> str:
    given = header(scope, b"x-correlation-id") or header(scope, b"x-request-id")
    return given if given.isprintable() and 0 < len(given) <= LONGEST_CORRELATION else urandom(16).hex()


async def refusal(manager: Manager, error: errors.ApiError) -> Response:
    if isinstance(error, errors.TooManyRequests | errors.QueueFull):
        await manager.tally.linger()
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
        manager.tally.take(key, request.method, "")
    except errors.ApiError as unwelcome:
        return await refusal(manager, unwelcome)
    status = int(getattr(error, "status_code", 500))
    known = {404: errors.NotFound, 405: errors.MethodNotAllowed}
    kind = known.get(status, errors.BadRequest)
    return error_response(kind(str(getattr(error, "detail", error))))


async def on_any_error(request: Request, error: Exception) -> Response:
    log.error("a request failed", path=request.url.path, exc_info=error)
    return error_response(errors.ApiError("something went wrong here; the log has it"))
