"""Load, unload and pin models where an operator says so. The routes for models call it.

To load a model is a task that does nothing more: it waits for its place, is explained, retried and logged as
any other, and finds the model loaded if it is.
"""

from collections.abc import Sequence

from gpu_orchestrator.api import session, task
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.fleet.models import EVERYWHERE, KnownModel
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.apps.manager.manager import Manager


async def known(manager: Manager, name: str) -> KnownModel:
    """Return a model of the registry, or one that is called as its handler; raise if there is none."""
    await manager.overview.refresh()
    if manager.models.get(name) is None:
        await manager.model_sync.refresh()
    if (found := manager.models.get(name)) is not None:
        return found
    if name in manager.overview.model_types:
        return KnownModel(name)
    names = sorted({*manager.models.models, *manager.overview.model_types})
    shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    raise errors.NotFound(f"there is no model {name}; known: {shown or 'none'}")


async def worker_of(manager: Manager, name: str) -> WorkerState:
    """Return a worker that loads models; raise for one that does not, or is not there."""
    if name not in manager.overview.workers:
        await manager.overview.refresh(at_most_old_s=0.0)
    worker = manager.overview.workers.get(name)
    if worker is None:
        raise errors.NotFound(f"there is no worker {name}")
    if not worker.hello.model_types:
        raise errors.Conflict(f"worker {name} loads no models; start it with --model NAME=module:Class")
    return worker


async def holders(manager: Manager, model: str, worker: str) -> list[WorkerState]:
    """Return the workers that have a copy of a model, as reported just now; only this one if it is named."""
    await manager.overview.refresh(at_most_old_s=0.0)
    here = [each for each in manager.overview.workers.values() if each.online]
    return [
        each
        for each in here
        if worker in ("", each.hello.name) and any(copy.model == model for copy in each.copies)
    ]


async def users(manager: Manager, model: str, workers: Sequence[WorkerState]) -> list[str]:
    """Return the tasks that use a model on these workers, as the store has them: reports are older."""
    found = []
    async for part in manager.store.workers.holding([each.hello.name for each in workers]):
        ids = [name for _, held in part for name, _ in held.placements()]
        for name, row in zip(ids, await manager.store.tasks.fetch(ids), strict=True):
            if row and row["state"] in task.ACTIVE and task.decode(row["spec"]).model == model:
                found.append(name)
    return found


async def unload(manager: Manager, model: str, worker: str, *, force: bool) -> list[str]:
    """Tell the workers that have a model to unload it; return them. Without `force`, raise if a task uses it
    or it is pinned."""
    there = await holders(manager, model, worker)
    entry = manager.models.get(model)
    pinned = [each.hello.name for each in there if entry and entry.is_pinned_on(each.hello.name)]
    using = await users(manager, model, there)
    if not force and using:
        raise errors.Conflict(
            f"{len(using)} task{'s use' if len(using) > 1 else ' uses'} model {model}; wait, or give force "
            "to interrupt and retry them",
            task_ids=using[:10],
        )
    if not force and pinned:
        raise errors.Conflict(
            f"model {model} is pinned on {', '.join(pinned[:10])}; unpin it first, or give force",
            workers=pinned,
        )
    if pinned and entry is not None:
        for name in [EVERYWHERE] if EVERYWHERE in entry.pins else pinned:
            await manager.store.models.pin(model, name, pinned=False)
        await manager.model_sync.refresh()
    for each in there:
        manager.sessions.send(each.hello.name, each.api, session.Unload(model, force), each.epoch)
    return [each.hello.name for each in there]
