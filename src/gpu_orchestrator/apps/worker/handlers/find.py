"""Handlers by task type: which there are (for the agent, imports none) and the function (for a runner)."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.task import Task

GROUP = "gpu_orchestrator.handlers"
Handler = Callable[[Task], Any]


class UnknownTaskType(LookupError):
    pass


def task_types(options: Options) -> tuple[str, ...]:
    """What this worker can run as it was started."""
    return tuple(sorted(name for name in _installed() if not _off(name, options)))


def handler(task_type: str, options: Options) -> Handler:
    if reason := _off(task_type, options):
        raise UnknownTaskType(f"task type '{task_type}' is off on this worker: {reason}")
    return _load(task_type)


def _off(task_type: str, options: Options) -> str:
    """Why a task type cannot be run, or nothing. What reaches out of the sandbox is off until asked for."""
    if task_type == "command" and not options.allow_command:
        return "its operator can start it with --allow-command"
    if task_type == "python" and not options.functions:
        return "its operator can register functions with --function name=module:function"
    if task_type == "http" and not options.upstreams:
        return "its operator can name servers with --upstream name=URL"
    return ""


@cache
def _load(task_type: str) -> Handler:
    found = _installed().get(task_type)
    if found is None:
        known = ", ".join(sorted(_installed()))
        raise UnknownTaskType(f"unknown task type '{task_type}'; this worker knows: {known}")
    loaded: Handler = found.load()
    return loaded


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
