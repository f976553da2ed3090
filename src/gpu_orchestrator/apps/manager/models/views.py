"""Models and their copies as response bodies. The routes for models and for workers call it."""

from collections.abc import Iterable

import msgspec

from gpu_orchestrator.api import session
from gpu_orchestrator.api.units import MIB, show_memory, show_seconds
from gpu_orchestrator.apps.manager.fleet.models import KnownModel
from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState
from gpu_orchestrator.apps.manager.models import schema
from gpu_orchestrator.apps.manager.views import when

HEALTHY = "healthy"


def copy_of(worker: WorkerState, each: session.Copy) -> schema.ModelCopy:
    held = each.used_mib * len(each.devices)
    reported = worker.reported_s
    return schema.ModelCopy(
        model_name=each.model,
        worker_id=worker.hello.name,
        devices=list(each.devices),
        status=_status(each),
        memory_usage=show_memory(held),
        memory_usage_bytes=held * MIB,
        load_time=show_seconds(each.load_s),
        load_seconds=round(each.load_s, 3),
        loaded_at=when(int((reported - each.loaded_ago_s) * 1000)) if each.is_loaded else None,
        last_used=when(int((reported - each.used_ago_s) * 1000)) if each.is_loaded else None,
        pinned=each.pinned,
        server_restarts=each.server_restarts,
        server_error=each.server_why,
    )


def _status(each: session.Copy) -> str:
    if not each.is_loaded:
        return "loading"
    if each.server not in ("", HEALTHY):
        return each.server
    return "in_use" if each.task else "loaded"


def copies(workers: Iterable[WorkerState], model: str = "") -> list[schema.ModelCopy]:
    """Return the copies on workers that are online, of one model or of all."""
    here = (worker for worker in workers if worker.online)
    found = [copy_of(each, copy) for each in here for copy in each.copies if model in ("", copy.model)]
    return sorted(found, key=lambda each: (each.model_name, each.worker_id, each.devices))


def info(known: KnownModel, loaded: list[schema.ModelCopy]) -> schema.ModelInfo:
    declared, mib, load_s = known.declared, known.memory_mib, known.load_s
    return schema.ModelInfo(
        name=known.name,
        handler=declared.handler if declared else known.name,
        backend=declared.backend if declared else "class",
        declared=declared is not None,
        memory=show_memory(mib) if mib else "",
        memory_bytes=mib * MIB,
        memory_measured=any(each.mib for each in known.measured.values()),
        load_time=show_seconds(load_s) if load_s is not None else "",
        load_seconds=None if load_s is None else round(load_s, 3),
        path=declared.path if declared else "",
        options=declared.options if declared else msgspec.Raw(b"{}"),
        gpus=declared.gpus if declared else 1,
        pinned_on=list(known.pins),
        copies=loaded,
        created_at=when(known.created_ms),
    )
