"""Handlers by task type: the agent lists them without importing any, a runner loads the function."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.task import Task

GROUP = "gpu_orchestrator.handlers"
FUNCTION = "gpu_orchestrator.apps.worker.handlers.function:handle"
"""Of the task types that are functions of the operator's modules (`--app`)."""
Handler = Callable[[Task], Any]


MODELS = "gpu_orchestrator.models"
"""Entry points of other packages whose objects are classes that load models."""
OURS = "gpu_orchestrator.apps.worker.handlers"
ON_TORCH = {
    "transformers": {
        "text_generation": f"{OURS}.text_generation:TextGeneration",
        "embedding": f"{OURS}.embedding:Embedding",
    },
    "diffusers": {"image_generation": f"{OURS}.image_generation:ImageGeneration"},
}
"""By the package that they need beside torch."""


class UnknownTaskType(LookupError):
    pass


@cache
def installed() -> dict[str, str]:
    """Return `task type -> module:function` of all installed packages.

    The agent looks once and sends the result to its runners: looking takes as long as starting a runner."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


@cache
def installed_models() -> dict[str, str]:
    """Return `task type -> module:class` of the classes that load models: of other packages, and ours where
    what they need is installed. Neither is imported."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    there = [types for package, types in ON_TORCH.items() if find_spec("torch") and find_spec(package)]
    ours = {name: target for types in there for name, target in types.items()}
    return ours | {point.name: point.value for point in entry_points(group=MODELS)}


def task_types(options: Options) -> tuple[str, ...]:
    """Return the task types that this worker can run with these options."""
    return tuple(
        sorted({*(name for name in installed() if not _off(name, options)), *options.tasks, *options.models})
    )


def handler(task_type: str, options: Options, known: Mapping[str, str]) -> Handler:
    if task_type in options.tasks:
        return _load(FUNCTION)
    if reason := _off(task_type, options):
        raise UnknownTaskType(f"task type '{task_type}' is off on this worker: {reason}")
    if task_type not in known:
        names = ", ".join(sorted(known))
        raise UnknownTaskType(f"unknown task type '{task_type}'; this worker knows: {names}")
    return _load(known[task_type])


def _off(task_type: str, options: Options) -> str:
    """Return why a task type is off, or "". Types that reach outside the worker are off by default."""
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
