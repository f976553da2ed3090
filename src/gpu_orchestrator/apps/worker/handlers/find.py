"""Handlers by task type: which there are (for the agent, imports none) and the function (for a runner)."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from gpu_orchestrator.apps.worker.runners.frames import Options
from gpu_orchestrator.apps.worker.task import Task

GROUP = "gpu_orchestrator.handlers"
Handler = Callable[[Task], Any]


class UnknownTaskType(LookupError):
    pass


@cache
def installed() -> dict[str, str]:
    """`task type -> module:function` of all installed packages. The agent looks once and tells its runners:
    looking takes as long as starting a runner."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def task_types(options: Options) -> tuple[str, ...]:
    """What this worker can run as it was started."""
    return tuple(sorted(name for name in installed() if not _off(name, options)))


def handler(task_type: str, options: Options, known: Mapping[str, str]) -> Handler:
    if reason := _off(task_type, options):
        raise UnknownTaskType(f"task type '{task_type}' is off on this worker: {reason}")
    if task_type not in known:
        names = ", ".join(sorted(known))
        raise UnknownTaskType(f"unknown task type '{task_type}'; this worker knows: {names}")
    return _load(known[task_type])


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
def _load(target: str) -> Handler:
    module, _, name = target.partition(":")
    loaded: Handler = getattr(import_module(module), name)
    return loaded
