"""The model of a task: what its handler loads, whether it is known, and how long that may take.

`submission` calls it for each task. A task type that loads models takes the one that `model_name` names, or
one of its own name; for other task types `model_name` is only passed on.
"""

from collections.abc import Sequence

from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.fleet import model_words
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.engine.model_estimates import LOAD_S


async def refresh(manager: Manager, requests: Sequence[task_schema.TaskRequest]) -> None:
    """Read again what workers and registry know if a request names something unknown: it may be new."""
    known = manager.overview.model_types
    strange = {each.task_type for each in requests if each.task_type not in known}
    if strange and not strange <= manager.overview.task_types():
        await manager.overview.refresh(at_most_old_s=0.0 if manager.overview.workers else 1.0)
        known = manager.overview.model_types
    if any(
        each.task_type in known and each.model_name and manager.models.get(each.model_name) is None
        for each in requests
    ):
        await manager.model_sync.refresh()


def model_of(manager: Manager, request: task_schema.TaskRequest, number: int = 0) -> str:
    """Return the model that a task loads, empty for none; raise for one that is unknown, or is another
    task type's."""
    handler, name = request.task_type, request.model_name
    if not _loads(manager, handler):
        return ""
    if name in ("", handler):
        return handler
    known = manager.models.get(name)
    if known is None or known.declared is None:
        raise errors.Unprocessable(
            f"model_name: {model_words.unknown(name, handler, manager.models.of_handler(handler))}",
            task=number,
        )
    if known.declared.handler != handler:
        raise errors.Unprocessable(
            f"model_name: {name!r} is for tasks of type {known.declared.handler!r}, not {handler!r}",
            task=number,
        )
    return name


def load_s(manager: Manager, request: task_schema.TaskRequest) -> float:
    """Return how long loading its model may delay a task; 0 if that is loaded anywhere."""
    if not _loads(manager, request.task_type):
        return 0.0
    name = request.model_name or request.task_type
    if name in manager.overview.loaded_models():
        return 0.0
    known = manager.models.get(name)
    return (known.load_s if known else None) or LOAD_S


def _loads(manager: Manager, handler: str) -> bool:
    """Return whether tasks of this type load models. While no worker knows the type, the registry decides."""
    types = manager.overview.model_types
    return handler in types or (handler in manager.models.handlers and not manager.overview.workers)
