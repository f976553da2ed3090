"""What a handler is given: the task, and the few words it may have with the outside while it runs.

A handler is a function `handle(task) -> result`; the result is anything JSON can say.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gpu_orchestrator.apps.worker.runners.frames import Options, Run

T = TypeVar("T")


class Cancelled(BaseException):
    """Somebody asked for this task to end. Not an `Exception`: a handler that catches all still ends."""


class SoftLimitReached(Exception):
    """The task ran past its soft limit; there is a little time left to end it in good order."""


class Temporary(Exception):
    """Raised by a handler for what may end better elsewhere or later: the task is tried again."""


class BadParameters(ValueError):
    """The parameters are not what this task type takes."""


class Task:
    def __init__(self, run: Run, options: Options, say: Callable[[str], None]) -> None:
        self.id = run.task
        self.attempt = run.attempt
        self.type = run.task_type
        self.model_name = run.model_name
        self.memory_mib = run.memory_mib
        self.correlation_id = run.correlation_id
        self.options = options
        self._parameters = run.parameters
        self.is_cancelled = False
        self._say = say
        self._going_on = threading.Lock()
        self._going_on.acquire()

    def parameters(self, shape: type[T]) -> T:
        """The parameters as a value of this type, or `BadParameters`."""
        try:
            return msgspec.json.decode(self._parameters, type=shape)
        except msgspec.MsgspecError as error:
            raise BadParameters(f"parameters of a '{self.type}' task: {error}") from error

    def progress(self, line: str) -> None:
        """Told to whoever watches the task."""
        self._say(line)

    def cancel(self) -> None:
        """Whoever gets the lock from now on passes it on. Not an `Event`: to make one takes a
        short task longer than all its other preparations."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._going_on.release()

    def check(self) -> None:
        """Ends the task here if somebody asked for that."""
        if self.is_cancelled:
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Sleeps, and ends the task if somebody asks for that meanwhile."""
        if self._going_on.acquire(timeout=max(seconds, 0)):
            self._going_on.release()
            raise Cancelled
