"""Move models between workers: what `/cluster/rebalance` does. The plan is made in `models/rebalance.py`.

Each model is loaded on its new worker first, by a task that does nothing more, and unloaded on the old one
only after that. Whatever ends this process on the way leaves a model loaded twice at worst.
"""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

import structlog
from msgspec import structs

from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.api import session
from gpu_orchestrator.api.units import MIB, show_seconds
from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.access.keys import Key
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState
from gpu_orchestrator.apps.manager.http import model_loading, submission
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.models.rebalance import Holder, LoadedCopy, Move, Strategy, plan
from gpu_orchestrator.apps.manager.models.rebalance_schema import (
    Rebalance,
    RebalanceEnded,
    RebalanceOperation,
    RebalanceRequest,
    RebalanceStarted,
)

log = structlog.get_logger()
UNKNOWN_LOAD_S = 10.0
LONGEST_LOAD_S = 900.0
"""How long one model may take to be loaded on its new worker, its time in the queue included."""


@dataclass(frozen=True, slots=True)
class Caller:
    key: Key
    correlation: str


async def planned(manager: Manager, wanted: RebalanceRequest) -> Rebalance:
    """Return what would be moved now."""
    workers, cluster = await manager.overview.cluster()
    holders = [
        holder_of(manager, each, len(cluster.held_on(name)) if name in cluster else 0)
        for name, each in workers.items()
        if each.online and each.hello.model_types
    ]
    # Of thousands of workers it takes a moment, and other requests are served meanwhile.
    moves = await asyncio.to_thread(plan, holders, wanted.strategy, force=wanted.force)
    return _answer(wanted.strategy, moves, force=wanted.force)


def holder_of(manager: Manager, worker: WorkerState, active: int) -> Holder:
    """Return a worker as the plan sees it. What the driver says is in use counts, by whatever process."""
    hello, memory = worker.hello, manager.memory
    index = {device.index: at for at, device in enumerate(hello.devices)}
    copies = tuple(
        LoadedCopy(
            each.model,
            _handler(manager, each.model),
            each.used_mib,
            tuple(index[device] for device in each.devices if device in index),
            each.load_s,
            each.uses,
            bool(each.task),
            each.pinned,
        )
        for each in worker.copies
        if each.is_loaded
    )
    return Holder(
        hello.name,
        sum(int(each.memory_mib * memory.threshold) for each in hello.devices),
        _free(worker, memory),
        min(active / hello.max_concurrent, 1.0),
        copies,
        frozenset(hello.model_types),
        hello.most_models,
        hello.pool,
        takes_tasks=not (worker.cordoned or worker.draining),
    )


def _free(worker: WorkerState, memory: MemoryPolicy) -> tuple[int, ...]:
    """Return what each device can still take beside what is held there now, without evicting anything."""
    used = {each.index: each.used_mib for each in worker.readings}
    for copy in worker.copies:
        for device in copy.devices:
            held = sum(each.used_mib for each in worker.copies if device in each.devices)
            used[device] = max(used.get(device, 0), held)
    return tuple(
        0
        if each.index in worker.cordoned_devices
        else max(int(each.memory_mib * memory.threshold) - used.get(each.index, 0), 0)
        for each in worker.hello.devices
    )


def _handler(manager: Manager, model: str) -> str:
    known = manager.models.get(model)
    return known.declared.handler if known and known.declared else model


def _answer(strategy: Strategy, moves: list[Move], *, force: bool) -> Rebalance:
    operations = [
        RebalanceOperation(
            operation="move",
            model_name=each.copy.model,
            from_worker=each.source,
            to_worker=each.target,
            memory_bytes=each.copy.mib * len(each.copy.devices) * MIB,
            estimated_seconds=round(each.copy.load_s or UNKNOWN_LOAD_S, 1),
            benefit=round(each.benefit, 3),
            reason=each.reason,
        )
        for each in moves
    ]
    takes_s = sum(each.estimated_seconds for each in operations)
    return Rebalance(
        rebalance_id=uuid4().hex,
        status="planned" if operations else "nothing_to_do",
        strategy=strategy,
        force=force,
        estimated_duration=show_seconds(takes_s),
        estimated_seconds=takes_s,
        affected_workers=sorted({name for each in moves for name in (each.source, each.target)}),
        operations=operations,
    )


def refuse_second(manager: Manager) -> None:
    """Raise if this process moves models already: plans that know nothing of each other would fill the same
    worker."""
    if manager.rebalance is not None and manager.rebalance.status == "running":
        raise errors.Conflict(
            f"rebalance {manager.rebalance.rebalance_id} is under way; wait for its end",
            rebalance_id=manager.rebalance.rebalance_id,
        )


def start(manager: Manager, found: Rebalance, caller: Caller) -> Rebalance:
    """Begin to move models one after the other."""
    refuse_second(manager)  # another request may have come first while this one was planned
    manager.rebalance = found = structs.replace(found, status="running")
    manager.rebalances.start(_perform(manager, found, caller))
    return found


async def _perform(manager: Manager, found: Rebalance, caller: Caller) -> None:
    started = RebalanceStarted(
        rebalance_id=found.rebalance_id,
        strategy=found.strategy,
        operations=len(found.operations),
        affected_workers=found.affected_workers,
    )
    done: list[RebalanceOperation] = []
    try:
        await manager.store.events.emit("cluster_rebalance_started", started)
        for each in found.operations:
            done.append(await _moved(manager, each, caller, force=found.force))
            log.info("model moved", **structs.asdict(done[-1]))
            manager.rebalance = structs.replace(found, operations=[*done, *found.operations[len(done) :]])
        counts = {
            status: sum(each.status == status for each in done) for status in ("moved", "kept", "failed")
        }
        await manager.store.events.emit(
            "cluster_rebalance_ended", RebalanceEnded(rebalance_id=found.rebalance_id, **counts)
        )
    except StoreError as error:
        log.warning("rebalancing stops: the store does not answer", error=str(error))
    except Exception:
        log.exception("rebalancing failed")
    finally:
        rest = [
            structs.replace(each, status="failed", note="not begun") for each in found.operations[len(done) :]
        ]
        manager.rebalance = structs.replace(found, status="completed", operations=[*done, *rest])


async def _moved(
    manager: Manager, each: RebalanceOperation, caller: Caller, *, force: bool
) -> RebalanceOperation:
    """Load a model on its new worker, then unload it on the old one."""
    try:
        taken = await _load(manager, each, caller)
    except errors.ApiError as error:
        return structs.replace(each, status="failed", note=str(error))
    each = structs.replace(each, task_id=taken)
    row = await manager.tasks.wait(taken, LONGEST_LOAD_S)
    if row["state"] != "completed":
        return structs.replace(each, status="failed", note=f"the load on {each.to_worker} is {row['state']}")
    return await _unload(manager, each, force=force)


async def _load(manager: Manager, each: RebalanceOperation, caller: Caller) -> str:
    known = await model_loading.known(manager, each.model_name)
    worker = await model_loading.worker_of(manager, each.to_worker)
    source = await model_loading.worker_of(manager, each.from_worker)
    copy = next((copy for copy in source.copies if copy.model == each.model_name), None)
    if copy is None:
        raise errors.Conflict(f"{each.from_worker} has evicted the model meanwhile")
    asked = task_schema.TaskRequest(
        task_type=known.declared.handler if known.declared else known.name,
        model_name=known.name,
        priority="high",
        resources=task_schema.Resources(
            gpus=len(copy.devices),
            gpu_memory=f"{copy.used_mib}MiB" if copy.devices else "",
            pool=worker.hello.pool,
        ),
    )
    taken = await submission.accept_load(manager, asked, caller.key, caller.correlation, each.to_worker)
    return taken.id


async def _unload(manager: Manager, each: RebalanceOperation, *, force: bool) -> RebalanceOperation:
    model, source = each.model_name, each.from_worker
    there = await model_loading.holders(manager, model, source)
    if not there:
        return structs.replace(each, status="moved", note=f"{source} had evicted it already")
    known = manager.models.get(model)
    pinned = known is not None and known.is_pinned_on(source)
    if not force and (await model_loading.users(manager, model, there) or pinned):
        why = "it was pinned there" if pinned else "a task uses it there"
        return structs.replace(each, status="kept", note=f"it is loaded on both: {why} meanwhile")
    if force and known is not None and source in known.pins:
        await manager.store.models.pin(model, each.to_worker, pinned=True)
        await manager.store.models.pin(model, source, pinned=False)
        await manager.model_sync.refresh()
    for worker in there:
        manager.sessions.send(source, worker.api, session.Unload(model, force), worker.epoch)
    return structs.replace(each, status="moved")
