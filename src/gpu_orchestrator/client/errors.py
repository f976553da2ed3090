"""What can go wrong for a client.

ClientError
├── Unreachable            no cluster manager answers there; the message says what to do
├── BadPlace               the address or the key cannot be used
├── Refused                the server refused the request: `status`, `reasons`, `details`
│   ├── NotAllowed         the key is missing, unknown or may not do this
│   ├── NotFound           there is no such task, or no longer
│   └── Busy               too many requests, or no room: `retry_after_s`
├── TimedOut               a task has not ended in time; it goes on (also a TimeoutError)
├── BadArguments           the arguments do not fit the function (also a TypeError)
├── BadResult              the result, or a value, does not fit the function's annotation
├── ValuesMissed           values of a stream are no longer kept: `count`, `after`
├── StreamRestarted        another attempt began: the values so far are superseded
└── TaskFailed             the task ended without a result: `type`, `message`, `traceback`
    ├── TaskCancelled      somebody cancelled it
    └── TaskDead           the server gave it up, because it was lost too often
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """Base of all errors of the client; the message is for people. `submitted`: of a batch that takes several
    requests, the ids of the tasks that were submitted before this error."""

    submitted: tuple[str, ...] = ()


class Unreachable(ClientError):
    """No cluster manager answers there."""


class BadPlace(ClientError):
    """The address or the key cannot be used."""


class Refused(ClientError):
    """The server refused the request. `reasons` says why a task fits nowhere, if that is why."""

    def __init__(self, message: str, status: int, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.details = status, dict(details or {})

    @property
    def reasons(self) -> list[Any]:
        return list(self.details.get("reasons", ()))


class NotAllowed(Refused):
    """The key is missing or unknown, or it may not do this."""


class NotFound(Refused):
    """There is no such task, or no longer."""


class Busy(Refused):
    """The server takes no more now: too many requests, or no room."""

    def __init__(
        self, message: str, status: int, details: Mapping[str, Any] | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, status, details)
        self.retry_after_s = retry_after_s


class TimedOut(ClientError, TimeoutError):
    """Tasks have not ended in time; they go on. `task_ids` are those."""

    def __init__(self, message: str, task_ids: Sequence[str]) -> None:
        super().__init__(message)
        self.task_ids = tuple(task_ids)


class BadArguments(ClientError, TypeError):
    """The arguments do not fit the function; nothing was sent."""


class BadResult(ClientError):
    """The result does not fit the annotation of the function here."""


class ValuesMissed(ClientError):
    """`count` values of a stream are no longer kept, because they were more than the server keeps and nobody
    read them. `stream(after=error.after)` goes on behind them."""

    def __init__(self, message: str, *, count: int, after: str) -> None:
        super().__init__(message)
        self.count, self.after = count, after


class StreamRestarted(ClientError):
    """Another attempt at the task began, after its worker was lost or because it is tried again. What the one
    before yielded is superseded: call `stream()` again, which begins with the first value of `attempt`."""

    def __init__(self, message: str, *, attempt: int) -> None:
        super().__init__(message)
        self.attempt = attempt


class TaskFailed(ClientError):
    """A task ended without a result. `type` is the name of the worker's exception; `traceback` is what it
    printed last, empty if the error was collected with others."""

    def __init__(self, message: str, *, task_id: str, type: str, traceback: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.task_id, self.type, self.traceback = task_id, type, traceback
        if traceback:
            self.add_note(f"On the worker:\n{traceback.rstrip()}")


class TaskCancelled(TaskFailed):
    """Somebody cancelled the task."""


class TaskDead(TaskFailed):
    """The server gave the task up."""
