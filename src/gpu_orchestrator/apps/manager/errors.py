"""The errors of the HTTP API. Every error body is `{"error": {code, message, details}}`.

ApiError
├── BadRequest 400      ├── Conflict 409          ├── TooLarge 413
├── Unauthorized 401    ├── Unprocessable 422
├── Forbidden 403       ├── NotFound 404          ├── MethodNotAllowed 405
└── RetryLater: the client may retry after some seconds
    ├── TooManyRequests 429    └── Unavailable 503 ── QueueFull, StoreFull
"""

from math import ceil
from typing import Any, ClassVar


class ApiError(Exception):
    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message, self.details = message, details

    @property
    def headers(self) -> dict[str, str]:
        return {}


class BadRequest(ApiError):
    status, code = 400, "bad_request"


class Unauthorized(ApiError):
    status, code = 401, "unauthorized"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    status, code = 403, "forbidden"


class NotFound(ApiError):
    status, code = 404, "not_found"


class MethodNotAllowed(ApiError):
    status, code = 405, "method_not_allowed"


class Conflict(ApiError):
    status, code = 409, "conflict"


class TooLarge(ApiError):
    status, code = 413, "too_large"


class Unprocessable(ApiError):
    status, code = 422, "unprocessable"


class RetryLater(ApiError):
    """Temporarily unavailable. `Retry-After` says when the client may retry."""

    def __init__(self, message: str, retry_after_s: float = 1.0, **details: Any) -> None:
        self.retry_after_s = max(ceil(retry_after_s), 1)
        super().__init__(message, **details)

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class TooManyRequests(RetryLater):
    status, code = 429, "too_many_requests"


class Unavailable(RetryLater):
    status, code = 503, "unavailable"


class QueueFull(Unavailable):
    """The queue already holds as many tasks as it may."""

    code = "queue_full"


class StoreFull(Unavailable):
    """Tasks and results already use as much memory or disk as they may."""

    code = "store_full"
