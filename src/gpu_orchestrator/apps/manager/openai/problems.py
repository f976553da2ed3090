"""Errors in OpenAI's shape, and those of tasks that ended without a result. Pure.

`http/responses.py` sends errors of routes under `/v1` in this shape, and all others in ours.
"""

from collections.abc import Mapping

import msgspec

from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.schema import Answer

PREFIX = "/v1/"
BAD_REQUEST = 400
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
SERVER_ERROR = 500
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
NO_RETRY: Mapping[str, str] = {"X-Should-Retry": "false"}
"""What the `openai` package heeds: it would repeat a 409 or a 500, which ends the same."""


class OpenAiProblem(Answer, frozen=True):
    """`param` is the option at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiError(Answer, frozen=True):
    """Every error of the routes under `/v1`."""

    error: OpenAiProblem


class TaskFailed(errors.ApiError):
    """The task of a request ended without a usable result. The server has retried what can be retried."""

    status, code = 500, "task_failed"

    @property
    def headers(self) -> dict[str, str]:
        return dict(NO_RETRY)


class TaskTimedOut(TaskFailed):
    status, code = 504, "timeout"


class ErrorOfTask(msgspec.Struct, frozen=True):
    type: str
    message: str


def shape_of(error: errors.ApiError) -> OpenAiError:
    status = status_of(error)
    kind = "server_error" if status >= SERVER_ERROR else KINDS.get(status, "invalid_request_error")
    code = error.details.get("code") or CODES.get(status, error.code)
    problem = OpenAiProblem(
        message=error.message, type=kind, param=error.details.get("param"), code=str(code) if code else None
    )
    return OpenAiError(error=problem)


def status_of(error: errors.ApiError) -> int:
    """Return the status under `/v1`: what the body asks wrongly is 400 there."""
    return BAD_REQUEST if isinstance(error, errors.Unprocessable) else error.status


def headers_of(error: errors.ApiError) -> Mapping[str, str]:
    return NO_RETRY if isinstance(error, errors.Conflict) else error.headers


def of_task(name: str, state: str, error: str | None) -> errors.ApiError:
    """Return the error of a task that ended without a result; `error` is what its row says."""
    if not error:
        return TaskFailed(f"task {name} was {state}", code=state)
    known = msgspec.json.decode(error, type=ErrorOfTask)
    match known.type:
        case "BadParameters":
            return errors.Unprocessable(known.message, code="bad_parameters")
        case "ParametersTooLarge":
            return errors.TooLarge(known.message)
        case "Timeout" | "ModelLoadTimeout" | "Expired":
            return TaskTimedOut(known.message, task_id=name)
    return TaskFailed(f"{known.type}: {known.message}", task_id=name, code=_code_of(known.type))


def model_not_found(error: errors.NotFound) -> errors.NotFound:
    return errors.NotFound(error.message, param="model", code="model_not_found")


def event_of(error: errors.ApiError) -> bytes:
    """Return the error for a stream that has begun."""
    return b"data: %b\n\n" % msgspec.json.encode(shape_of(error))


def _code_of(kind: str) -> str:
    """Return `OutOfMemory` as `out_of_memory`; a type with an odd name has no code of its own."""
    if not kind.isascii() or not kind.isalnum() or len(kind) > 40:
        return "task_failed"
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in kind).lstrip("_")
