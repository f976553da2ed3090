"""Faults of one request: plain values that a test passes to `proxy.on(..., do=...)`.

Faults of a single answer are here; faults of a running watch are in `streams.py`. `then` adds a second fault
after `Delay` and `Call`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tests.faults.calls import Call as Request
from tests.faults.statuses import status
from tests.faults.streams import StreamFault


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy answers instead of the server: a `Status`, or `body` (an object, such as an older list)."""

    status: int
    retry_after: float | None = None
    reason: str = ""
    message: str = "from the fault proxy"
    body: dict[str, Any] | None = None

    def content(self) -> dict[str, Any]:
        return self.body if self.body is not None else status(self.status, self.reason, self.message)


@dataclass(frozen=True, slots=True)
class DropAnswer:
    """The server carries out the request; its answer is lost and the connection is reset."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The server never receives the request; the connection is reset."""


@dataclass(frozen=True, slots=True)
class Delay:
    seconds: float
    then: Fault | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Call `fn(request)` from the proxy's thread: before the server receives the request (`at="request"`),
    when the server has answered but the component has no answer (`"answer"`), or when it has (`"done"`).

    The exchange waits until `fn` returns. At "answer", `then` may be `DropAnswer` or None.
    """

    fn: Callable[[Request], object]
    then: Fault | None = None
    at: Literal["request", "answer", "done"] = "request"

    def __post_init__(self) -> None:
        if self.at == "answer" and not isinstance(self.then, DropAnswer | None):
            raise ValueError(
                f"at='answer' is after the server has answered: then=DropAnswer() or none, not {self.then}"
            )


Fault: TypeAlias = Answer | DropAnswer | Cut | Delay | Call | StreamFault
