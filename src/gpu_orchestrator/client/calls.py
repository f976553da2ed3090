"""Calls from what callers write: a task function with arguments, a `Call`, or a task type. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gpu_orchestrator.client.functions import TaskFunction
from gpu_orchestrator.client.tasks import Call, Pending

R = TypeVar("R")
H = TypeVar("H", bound=Pending[Any])
MOST_OF_GROUP = 1000


def of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call[Any]:
    match task:
        case TaskFunction():
            return task.call(*args, **kwargs)
        case Call() if not args and not kwargs:
            return task
        case str() if len(args) <= 1:
            return Call(task, *args, **kwargs)
        case Call() | str():
            raise TypeError("a Call has its parameters already; a task type takes one value as parameters")
    advice = "decorate it with @task" if callable(task) else "give a @task function, a Call, or a task type"
    raise TypeError(f"{task!r} is not a task; {advice}")


def group(tasks: Iterable[Call[R]], then: Any) -> list[Call[R]]:
    """Return the tasks of a group; before any is submitted, raise `TypeError` if `then` is not a task, and
    `ValueError` if they are too many for one task to wait for."""
    found = list(tasks)
    if not isinstance(then, TaskFunction):
        of(then, (), {})
    if len(found) > MOST_OF_GROUP:
        raise ValueError(
            f"a group has at most {MOST_OF_GROUP} tasks, and these are {len(found)}; make several groups, "
            "and one of their results"
        )
    return found


def handles(given: Iterable[H]) -> list[H]:
    """Return the handles; raise `TypeError` for anything else, such as one alone, or the id of a task."""
    if isinstance(given, Pending) or not isinstance(given, Iterable):
        raise TypeError(f"{given!r} is no list of handles; give one, such as [handle]")
    found = list(given)
    for each in found:
        if not isinstance(each, Pending):
            raise TypeError(f"{each!r} is no handle; `handle(task_id)` of the client makes one of an id")
    return found


def known(task: TaskFunction[..., Any] | None) -> Call[Any]:
    """Return a call that reads results of this function, or any result."""
    if task is None:
        return Call("")
    return Call("", decode=task.read_result, decode_value=task.read_value)
