"""Begin to load the model of a request that will not wait for it. The OpenAI routes call it.

The load is a task of the same owner, so the owner's quotas hold for it. A model has one at a time: a thousand
clients that come back every second queue no thousand loads.
"""

from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.http import submission, task_models
from gpu_orchestrator.apps.manager.manager import Manager


async def demand_warm(manager: Manager, request: task_schema.TaskRequest, key: Key, correlation: str) -> None:
    """Return if the model of a request is loaded anywhere; else load it, and raise when to come back."""
    name = request.model_name
    if name not in manager.overview.loaded_models():
        await manager.overview.refresh(at_most_old_s=0.0)
    if name in manager.overview.loaded_models():
        manager.cold_loads.pop(name, None)
        return
    if not await _is_loading(manager, name):
        taken = await submission.accept_load(manager, request, key, correlation, "")
        manager.cold_loads[name] = taken.id
    wait_s = manager.overview.wait_s(manager.metrics.average_s) + task_models.load_s(manager, request)
    raise errors.Unavailable(
        f"model {name!r} is not loaded yet; it is being loaded by task {manager.cold_loads[name]}",
        wait_s,
        code="model_loading",
    )


async def _is_loading(manager: Manager, model: str) -> bool:
    name = manager.cold_loads.get(model)
    if name is None:
        return False
    (row,) = await manager.store.tasks.fetch([name])
    return row is not None and row["state"] not in task.FINAL
