"""Errors of calls to the API server, one type per kind of failure. Each message says what to do about it.

KubeError
├─ Permanent                sending the same request again cannot help
│  ├─ ConfigError           the kubeconfig or the pod's own files are wrong
│  ├─ Untrusted             TLS: one side does not accept the other's certificate
│  ├─ BadAnswer             not an API server's answer, or larger than we accept
│  └─ ApiError: BadRequest (TooLarge) · Unauthorized · Forbidden · NotFound · NotServed · Conflict
│               · AlreadyExists · Gone · Invalid
└─ Temporary                worth another try, not before `delay_s`
   ├─ Unreachable           no connection: nothing was sent
   ├─ LostAnswer            sent, but no answer came: the server may have carried it out or not
   └─ ApiError: Throttled (not done; BlockedByBudget for evictions) · Unavailable (may have been done)
"""

from dataclasses import dataclass
from typing import Any

import msgspec


class KubeError(Exception):
    """Base of all errors of this adapter."""


class Permanent(KubeError):
    """Sending the same request again cannot help."""


class Temporary(KubeError):
    """Worth another try, not before `delay_s` has passed."""

    delay_s: float = 0.0


class ConfigError(Permanent):
    """The configuration is missing or wrong; nothing was sent."""


class Untrusted(Permanent):
    """The TLS handshake failed; nothing was sent."""


class BadAnswer(Permanent):
    """The answer does not look like an API server's, or is larger than we accept."""


class Unreachable(Temporary):
    """No connection could be made; nothing was sent."""


class LostAnswer(Temporary):
    """We sent the request and got no complete answer: the server may have carried it out or not."""


class Cause(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: float = 0.0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The body of the API server's answer when it refuses a request."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What a request is for, in the words of RBAC, so that an error can name it."""

    verb: str
    what: str
    group: str = ""
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        where = f"{self.namespace}/{self.name}" if self.namespace and self.name else self.name
        where = where or (f"in namespace {self.namespace}" if self.namespace else "")
        return " ".join(part for part in (self.verb, self.full_name, where) if part)

    @property
    def full_name(self) -> str:
        plural, _, subresource = self.what.partition("/")
        full = f"{plural}.{self.group}" if self.group else plural
        return f"{full}/{subresource}" if subresource else full


class ApiError(KubeError):
    """The server answered with an error."""

    advice = ""

    def __init__(self, operation: Operation, status: Status, retry_after_s: float = 0.0) -> None:
        self.operation, self.status, self.delay_s = operation, status, retry_after_s
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        found = " ".join(self.status.message.split()) or self.status.reason or "no reason given"
        advice = f"; {self._advice()}" if self._advice() else ""
        return f"cannot {self.operation}: {found} ({self.status.code}){advice}"

    def _advice(self) -> str:
        return self.advice


class BadRequest(ApiError, Permanent):
    """400, 405, 406, 415: the server does not understand or accept such a request."""


class TooLarge(BadRequest):
    """413, or 500 from etcd: the object, or what it would become, is larger than the server can store."""

    advice = "make the object smaller"


class Unauthorized(ApiError, Permanent):
    """401: the server does not know who we are."""

    advice = "renew the credentials of this context (token, client certificate or exec plugin)"


class Forbidden(ApiError, Permanent):
    """403: we may not do this."""

    def _advice(self) -> str:
        if 'is forbidden: User "' not in self.status.message:
            return ""  # refused by admission or a quota: the server's message says what to do
        group = f" of API group {self.operation.group}" if self.operation.group else ""
        return (
            f"grant verb '{self.operation.verb}' on '{self.operation.what}'{group} in a Role or ClusterRole"
        )


class NotFound(ApiError, Permanent):
    """404: the server knows the kind, but has no such object."""


class NotServed(ApiError, Permanent):
    """404 for the kind itself: most often its CustomResourceDefinition is not installed."""

    def _sentence(self) -> str:
        return (
            f"cannot {self.operation}: the server does not serve {self.operation.full_name} (404); "
            "install its CustomResourceDefinition (kubectl apply -k config/crd) or check the server's version"
        )


class Conflict(ApiError, Permanent):
    """409: the object is not in the state that the request expects; read it again."""


class AlreadyExists(Conflict):
    """409 on create: the name is in use. With a computed name this means that the object is there already."""


class Gone(ApiError, Permanent):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError, Permanent):
    """422: the object breaks a rule of its schema or of admission."""


class Throttled(ApiError, Temporary):
    """429: not carried out; try again after `delay_s`."""


class BlockedByBudget(Throttled):
    """429 to an eviction: a PodDisruptionBudget forbids it for now."""


class Unavailable(ApiError, Temporary):
    """5xx: the server failed; it may have carried the request out or not."""


_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")

_BY_CODE: dict[int, type[ApiError]] = {
    401: Unauthorized,
    413: TooLarge,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Throttled,
}


def from_answer(operation: Operation, code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the typed error for an answer that is not a success."""
    status = _status(code, body)
    return _kind(code, status)(operation, status, _retry_after_s(status, retry_after))


def from_event(operation: Operation, raw: Any) -> ApiError:
    """Return the typed error for an ERROR event of a watch."""
    status = _status(500, bytes(raw))
    return _kind(status.code, status)(operation, status, _retry_after_s(status, None))


def _status(code: int, body: bytes) -> Status:
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = Status(message=body[:300].decode(errors="replace"))
    return msgspec.structs.replace(status, code=status.code or code)


def _kind(code: int, status: Status) -> type[ApiError]:
    causes = status.details.causes if status.details else ()
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists
    if code == 429 and any(cause.reason == "DisruptionBudget" for cause in causes):
        return BlockedByBudget
    if code == 404 and (status.kind != "Status" or "could not find the requested resource" in status.message):
        return NotServed
    if code == 500 and any(each in status.message for each in _TOO_LARGE):
        return TooLarge
    if code == 410 or status.reason == "Expired":
        return Gone
    return _BY_CODE.get(code, Unavailable if code >= 500 else BadRequest)


def _retry_after_s(status: Status, header: str | None) -> float:
    try:
        return max(0.0, float(header)) if header else (status.details or Details()).retry_after_seconds
    except ValueError:
        return 1.0  # a date: no API server sends one, a proxy may
