"""What the API answers when it cannot do what was asked; every body is `{"error": {code, message, details}}`.

ApiError
├── BadRequest 400      ├── Conflict 409          ├── TooLarge 413
├── Unauthorized 401    ├── Unprocessable 422     └── Unavailable 503
├── Forbidden 403       ├── NotFound 404          ├── MethodNotAllowed 405
"""

from typing import Any, ClassVar


class ApiError(Exception):
    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message, self.details = message, details


class BadRequest(ApiError):
    status, code = 400, "bad_request"


class Unauthorized(ApiError):
    status, code = 401, "unauthorized"


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


class Unavailable(ApiError):
    status, code = 503, "unavailable"
