"""Tasks from functions: `@task` makes a function of a module something that workers run.

The worker that was started with `--app MODULE` imports the same module. So a task names its function, as
`module.function`, and its parameters are the function's arguments by name, as JSON.
"""

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from functools import update_wrapper
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from gpu_orchestrator.api import functions
from gpu_orchestrator.client import errors
from gpu_orchestrator.client.tasks import Call, Cron, Options, Taken, checked

if TYPE_CHECKING:
    from gpu_orchestrator.client.blocking import Client, Handle, StreamHandle

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Y = TypeVar("Y")
ELSEWHERE = frozenset(
    {"apply", "apply_async", "delay", "enqueue", "remote", "s", "send", "send_with_options"}
)
"""How Celery, dramatiq, RQ and Ray call what is `submit` or `options` here."""


class TaskFunction(functions.Definition, Generic[P, R]):
    """A function that workers can run. Called, it runs here and now, as any function."""

    __name__: str

    def __init__(
        self,
        function: Callable[P, Any],
        name: str = "",
        options: Options | None = None,
        schedule: Cron | None = None,
    ) -> None:
        super().__init__(function, name)
        self.task_options: Options = options or {}
        self.schedule = schedule
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(*args, **kwargs))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "Handle[R]":
        """Submit the task with this process's own client, which finds address and key by itself."""
        return default().submit(self, *args, **kwargs)

    def map(self, inputs: Iterable[Any], /) -> list[R]:
        """Run the task for each input and return the results in order."""
        return default().map(self, inputs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return the task with its arguments, to submit it later or with others."""
        taken = Taken()
        try:
            parameters = self.write_arguments(args, kwargs, taken)
            if not taken.ids:
                self.read_arguments(parameters)
        except functions.Unfit as error:
            raise errors.BadArguments(str(error)) from error
        call = Call(
            self.name, parameters, decode=self.read_result, decode_value=self.read_value, **self.task_options
        )
        call.take(taken.ids)
        return call

    def options(self, **options: Unpack[Options]) -> "TaskFunction[P, R]":
        """Return the same task with other options: `train.options(gpus=2, priority="high").submit(3)`."""
        return type(self)(self.function, self.name, {**self.task_options, **checked(options)}, self.schedule)

    if not TYPE_CHECKING:  # a type checker names what is not there by itself

        def __getattr__(self, name: str) -> Any:
            hint = "; submit(...) submits it, options(...) says how it is run" if name in ELSEWHERE else ""
            raise AttributeError(f"task {self.__dict__.get('name', '')} has no attribute {name}{hint}")

    def read_result(self, result: bytes) -> R:
        try:
            return cast(R, self.decode_result(result))
        except functions.Unfit as error:
            raise errors.BadResult(str(error)) from error

    def read_value(self, value: bytes) -> Any:
        """Return a value that the function has yielded."""
        try:
            return self.decode_value(value)
        except functions.Unfit as error:
            raise errors.BadResult(str(error)) from error


class StreamFunction(TaskFunction[P, R], Generic[P, Y, R]):
    """A task function that is a generator function: what it yields is seen while it runs, what it returns is
    its result. Called, it returns a generator, as any other."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "StreamHandle[Y, R]":
        """Submit the task with this process's own client, which finds address and key by itself."""
        return default().submit(self, *args, **kwargs)

    def options(self, **options: Unpack[Options]) -> "StreamFunction[P, Y, R]":
        """Return the same task with other options."""
        return type(self)(self.function, self.name, {**self.task_options, **checked(options)}, self.schedule)


Callback: TypeAlias = TaskFunction[[list[R]], S] | TaskFunction[[list[R | None]], S]
"""A task of one argument, the results of other tasks; None for those without, if it runs then as well."""


class AsyncTaskFunction(TaskFunction[P, R]):
    """A task function that is a coroutine function. Called, it is awaited as any other."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        return cast(Coroutine[Any, Any, R], self.function(*args, **kwargs))


class Decorator(Protocol):
    """`@task(...)`: makes a function a task."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTaskFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Generator[Y, Any, R]], /) -> StreamFunction[P, Y, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Iterator[Y]], /) -> StreamFunction[P, Y, None]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[Y]], /) -> StreamFunction[P, Y, None]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTaskFunction[P, R]: ...
@overload
def task(function: Callable[P, Generator[Y, Any, R]], /) -> StreamFunction[P, Y, R]: ...  # type: ignore[overload-overlap]
@overload
def task(function: Callable[P, Iterator[Y]], /) -> StreamFunction[P, Y, None]: ...
@overload
def task(function: Callable[P, AsyncIterator[Y]], /) -> StreamFunction[P, Y, None]: ...
@overload
def task(function: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(*, name: str = "", schedule: str | Cron = "", **options: Unpack[Options]) -> Decorator: ...
def task(function: Any = None, /, *, name: str = "", schedule: str | Cron = "", **options: Any) -> Any:
    """Make a function a task: `@task`, or `@task(gpus=1, gpu_memory="8GB", retries=2)`.

    With `schedule`, such as `"0 3 * * *"` or a `Cron`, it is queued at these moments once
    `client.schedules.apply(function)` or `gpu-orchestrator schedule apply MODULE` has told the server.

    Arguments and result must be what JSON can carry: numbers, texts, lists, dicts, dataclasses, and all else
    that msgspec knows. They are checked by the annotations here and on the worker. What a generator function
    yields is streamed to those who follow the task: see `stream` of its handle."""
    chosen = checked(options)
    when = Cron.of(schedule) if schedule else None
    if function:
        return _made(function, name, chosen, when)
    return lambda decorated: _made(decorated, name, chosen, when)


def _made(
    function: Callable[..., Any], name: str, options: Options, schedule: Cron | None
) -> TaskFunction[..., Any]:
    name = name or _name_in_program(function)
    made: TaskFunction[..., Any]
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        made = StreamFunction(function, name, options, schedule)
    elif iscoroutinefunction(function):
        made = AsyncTaskFunction(function, name, options, schedule)
    else:
        made = TaskFunction(function, name, options, schedule)
    REGISTRY[made.name] = made
    return made


PROGRAM = ("__main__", "__mp_main__")
"""What Python calls the program, and what it calls it in the processes of multiprocessing."""


def _name_in_program(function: Callable[..., Any]) -> str:
    """Return the name by which a worker knows a function of the program that was started: it imports the file
    as a module. Empty for functions of modules, and where there is no file, as in a notebook."""
    if function.__module__ not in PROGRAM or "<" in function.__qualname__:
        return ""
    program = sys.modules[function.__module__]
    spec = getattr(program, "__spec__", None)  # of `python -m`
    module = spec.name if spec else Path(getattr(program, "__file__", "")).stem
    return f"{module}.{function.__qualname__}" if module.isidentifier() or spec else ""


REGISTRY: dict[str, TaskFunction[..., Any]] = {}
"""The tasks of the modules that this process has imported, by name."""
_default: list["Client"] = []


def default() -> "Client":
    """Return the client of this process, or the one that `gpu_orchestrator.testing` put in its place."""
    if not _default:
        import atexit

        from gpu_orchestrator.client.blocking import Client

        _default.append(client := Client())
        atexit.register(client.close)
    return _default[-1]


def put_in_place(client: "Client") -> None:
    """Let tasks be submitted with this client until `put_back`."""
    _default.append(client)


def put_back() -> None:
    _default.pop()
