"""Read requests and make responses, for every route: size-limited bodies, JSON, one shape of errors."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpu_orchestrator.api import plain_errors
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of
from gpu_orchestrator.apps.manager.http.uvicorn_tuning import WHOLE
from gpu_orchestrator.apps.manager.openai import problems
from gpu_orchestrator.apps.manager.schema import ErrorBody, Problem

T = TypeVar("T")
NO_HEADERS: Mapping[str, str] = {}
_encode = msgspec.json.Encoder().encode


class JsonResponse(Response):
    """A response with only the headers it needs; skips the base class's search for headers already set."""

    def __init__(self, value: Any, status: int, headers: Mapping[str, str]) -> None:
        # With a line break at the end: after curl, the prompt of a shell would stick to the body.
        self.status_code, self.background, self.body = status, None, _encode(value) + b"\n"
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]
        if headers:
            self.raw_headers += [
                (k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()
            ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if WHOLE not in scope.get("extensions", NO_HEADERS):
            return await super().__call__(scope, receive, send)
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send({**start, WHOLE: self.body})
        return None


def _encoded(header: tuple[str, str]) -> tuple[bytes, bytes]:
    name, text = header
    return name.lower().encode("latin-1"), text.encode("latin-1")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    return JsonResponse(value, status, headers)


class ErrorResponse(JsonResponse):
    """An error in our shape, or in OpenAI's for its routes: what makes the error need not know the path."""

    def __init__(self, error: errors.ApiError) -> None:
        super().__init__(
            ErrorBody(Problem(error.code, error.message, error.details)), error.status, error.headers
        )
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(problems.PREFIX):
            error = self._error
            super().__init__(problems.shape_of(error), problems.status_of(error), problems.headers_of(error))
        await super().__call__(scope, receive, send)


def error_response(error: errors.ApiError) -> Response:
    return ErrorResponse(error)


async def read(request: Request, kind: type[T]) -> T:
    """Return the body decoded as this type, or raise an error that names the wrong place."""
    body = await body_of(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise errors.Unprocessable(plain_errors.plain(error, body, kind)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.BadRequest(f"the body is not valid JSON: {error}") from error


async def body_of(request: Request) -> bytes:
    """Return the raw body; raise `TooLarge` as soon as it exceeds MAX_REQUEST_MB."""
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


async def unless_disconnected(request: Request, doing: Awaitable[T]) -> T | None:
    """Return the result; cancel `doing` and return None if the client disconnects first.

    Call it after the body was read, because it consumes the request's messages.
    """
    done = await done_before(doing, until_disconnected(request.receive))
    return None if done is None else done.result()


async def done_before(doing: Awaitable[T], over: Awaitable[None]) -> "asyncio.Future[T] | None":
    """Return `doing`, finished or failed; cancel it and return None if `over` ends first."""
    tasks = asyncio.ensure_future(doing), asyncio.ensure_future(over)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0] if tasks[0].done() else None
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> errors.TooLarge:
    return errors.TooLarge(
        f"the body is larger than {most} bytes; send less, or raise MAX_REQUEST_MB", limit_bytes=most
    )
