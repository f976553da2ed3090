"""What a handler receives: the task, with methods to report progress, to send partial results, and to check
for cancellation.

A handler is a function `handle(task) -> result`; the result is any value that JSON can represent. A generator
function may be one, too: what it yields is sent, and what it returns is the result (see `handlers/partial`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import msgspec

from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep
from gpu_orchestrator.api.partial import LARGEST_VALUE
from gpu_orchestrator.apps.worker.frames import Health, Options, Run

T = TypeVar("T")
LARGEST_RESULT = 8 << 20
PAUSE_S = 0.01
OWN_THREAD = "gpu-orchestrator"
"""The name of the runner's own threads: they stay after a task, and print nothing."""
_encode = msgspec.json.Encoder().encode


class Cancelled(BaseException):
    """The task was cancelled. Not an `Exception`, so a handler with `except Exception` still ends."""


class SoftLimitReached(Exception):
    """The task ran past its soft limit; the handler has a little time left to clean up and end."""


class Temporary(Exception):
    """A handler raises this for a failure that may not recur elsewhere or later: the task is retried."""


class BadParameters(ValueError):
    """The parameters are not valid for this task type."""


class ValueTooLarge(ValueError):
    """A partial result is too large, or nested too deep; send parts of it, or put it into a file."""


class Sink(Protocol):
    """Takes the text of tasks. `key` is the id of a task with the number of its attempt."""

    def write_for(self, key: tuple[str, int], text: str) -> None: ...

    def write_line(self, key: tuple[str, int], line: str) -> None: ...


class Channel(Protocol):
    """Takes the values that tasks send, and makes them wait while the manager is behind."""

    def put(self, key: tuple[str, int], value: bytes) -> bool: ...

    def wait_for_room(self, is_cancelled: Callable[[], bool]) -> None: ...


class Task:
    def __init__(self, run: Run, options: Options, output: Sink, values: Channel) -> None:
        self.id = run.task
        self.attempt = run.attempt
        self.key = (run.task, run.attempt)
        self.type = run.task_type
        self.model_name = run.model_name
        self.memory_mib = run.memory_mib
        self.correlation_id = run.correlation_id
        self.options = options
        self.gang = run.gang
        """The gang of which this task is a member, with the workers of the others; None for any other."""
        self.raw_parameters = bytes(run.parameters)
        self.is_cancelled = False
        self._output, self._values = output, values
        self._not_cancelled = threading.Lock()
        self._not_cancelled.acquire()

    def parameters(self, shape: type[T]) -> T:
        """Return the parameters as a value of this type, or raise `BadParameters`."""
        try:
            return msgspec.json.decode(self.raw_parameters, type=shape)
        except msgspec.ValidationError as error:
            from gpu_orchestrator.api import plain_errors  # few tasks need it, and every runner would load it

            why = plain_errors.plain(error, self.raw_parameters, shape, whole="the whole")
            raise BadParameters(f"parameters of a '{self.type}' task: {why}") from error
        except msgspec.MsgspecError as error:
            raise BadParameters(f"parameters of a '{self.type}' task: {error}") from error

    def progress(self, line: str) -> None:
        """Add a line to the task's log; clients see the newest line as the task's progress."""
        self._output.write_line(self.key, line)

    def write(self, text: str) -> None:
        """Add text to the task's log as it is, such as the output of a program."""
        self._output.write_for(self.key, text)

    def send(self, value: Any) -> None:
        """Send a partial result: any value that JSON can represent. Clients that follow the task get each
        once, in order. Wait while the manager is behind; raise `Cancelled` if the task was cancelled.

        Any thread of the task may call this; the order is that of the calls."""
        written = _written(value)
        self.check()
        while not self._values.put(self.key, written):
            self._values.wait_for_room(lambda: self.is_cancelled)
            self.check()

    async def send_async(self, value: Any) -> None:
        """Do what `send` does, for a handler with an event loop: others may run while this waits."""
        import asyncio  # few tasks need it, and every runner would load it

        written = _written(value)
        self.check()
        while not self._values.put(self.key, written):
            await asyncio.sleep(PAUSE_S)
            self.check()

    def cancel(self) -> None:
        """Release the lock that `sleep` waits for; each waiter releases it again for the next one.

        Not an `Event`: for a short task, creating one would cost more than all its other preparations."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._not_cancelled.release()

    def check(self) -> None:
        """Raise `Cancelled` if the task was cancelled."""
        if self.is_cancelled:
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Sleep, and raise `Cancelled` as soon as the task is cancelled."""
        if self._not_cancelled.acquire(timeout=max(seconds, 0)):
            self._not_cancelled.release()
            raise Cancelled


def _written(value: Any) -> bytes:
    """Return a value as JSON on one line."""
    written = _encode(value)
    if len(written) > LARGEST_VALUE:
        raise ValueTooLarge(f"a value that was sent has {len(written)} bytes; at most {LARGEST_VALUE} may be")
    if is_too_deep(written):
        raise ValueTooLarge(f"a value that was sent is nested deeper than {DEEPEST}; make it flatter")
    return written.replace(b"\n", b" ") if b"\n" in written else written


class LoadFailed(Exception):
    """The model cannot be loaded here; another attempt would end the same."""


@dataclass(frozen=True)
class Model:
    """What `load` receives. `path` is where the weights are, empty if the registry names none; `memory_mib`
    is reserved on each device, 0 for all of it."""

    name: str
    path: str
    memory_mib: int
    raw_options: bytes
    key: tuple[str, int]
    output: Sink
    tell: Callable[[Health], None] = lambda _: None
    """Called by a class with a server, when its health changes."""

    @cached_property
    def options(self) -> dict[str, Any]:
        """The operator's options of this model, as the registry has them."""
        return msgspec.json.decode(self.raw_options, type=dict[str, Any])

    def progress(self, line: str) -> None:
        """Add a line to the log of the task that waits for the load."""
        self.output.write_line(self.key, line)
