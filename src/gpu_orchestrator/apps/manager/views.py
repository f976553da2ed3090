"""Convert rows of the store to response bodies of the HTTP API. Routes and callbacks call it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from gpu_orchestrator.adapters.results.place import ResultAt
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import session, task, task_gangs, timestamps
from gpu_orchestrator.api.units import MIB, show_memory, show_seconds
from gpu_orchestrator.apps.manager import schema, task_schema
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import HALF_OPEN, OPEN, ActiveAlert, WorkerState

_error = msgspec.json.Decoder(task_schema.ErrorInfo)
_deaths = msgspec.json.Decoder(list[task_schema.Death])


def when(ms: str | int | None) -> str | None:
    if not ms:
        return None
    second, part = divmod(int(ms), 1000)
    return f"{_second(second)}.{part:03d}Z" if second or part else None


@lru_cache(maxsize=64)
def _second(number: int) -> str:
    """Cached, because the events of one task mostly fall into the same second."""
    return timestamps.seconds(datetime.fromtimestamp(number, UTC)).removesuffix("Z")


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a queued task waits, and its place in the queue. `for_worker`: no worker that is there can ever
    take it."""

    reason: str = ""
    position: int | None = None
    for_worker: bool = False


NO_WAIT = Wait()


def task_status(name: str, row: Row, wait: Wait = NO_WAIT) -> task_schema.TaskStatus:
    spec = task.decode(row["spec"])
    seconds = _seconds(row)
    shared_mib = max(spec.memory_mib, _granted_mib(row.get("place", ""))) if spec.gpus else 0
    error, deaths = row.get("error"), row.get("deaths")
    return task_schema.TaskStatus(
        task_id=name,
        status=row["state"],
        task_type=spec.task_type,
        model_name=spec.model_name,
        priority=spec.priority,
        attempt=int(row["attempt"]),
        assigned_worker=row.get("worker") or None,
        created_at=when(row["created"]) or "",
        started_at=when(began) if (began := row.get("started")) else None,
        completed_at=when(ended) if (ended := row.get("finished")) else None,
        duration=None if seconds is None else show_seconds(seconds),
        duration_seconds=seconds,
        progress=row.get("progress") or None,
        result=msgspec.Raw(row.get("result") or "null"),
        result_bytes=(size := size_of(row)),
        result_url=f"/tasks/{name}/result" if size else "",
        error=_error.decode(error) if error else None,
        reason=wait.reason or waits_for(row) or row.get("reason", ""),
        deaths=_deaths.decode(deaths) if deaths else [],
        labels=spec.labels,
        correlation_id=row.get("correlation", ""),
        callback=row.get("callback", ""),
        owner=row.get("tenant") or spec.tenant,
        gpus=spec.gpus,
        devices=devices(row),
        memory_reserved=show_memory(shared_mib) if shared_mib else "",
        memory_reserved_bytes=shared_mib * MIB,
        exclusive=bool(spec.gpus) and not shared_mib,
        queue_position=wait.position,
        waits_for_worker=wait.for_worker,
        not_before=when(at) if (at := row.get("not_before")) else None,
        expires=when(at) if (at := row.get("expires")) else None,
        worker_labels=spec.worker_labels,
        pool=spec.pool,
        depends_on=dependencies_of(row),
        on_failure=row["needs"].partition(" ")[0] if row.get("needs") else "",
        open_dependencies=open_of(row),
        **(_gang_of(name, spec) if spec.gang else {}),
    )


def _gang_of(name: str, spec: task.TaskSpec) -> dict[str, Any]:
    gang, rank = task_gangs.split(name)
    return {"gang_id": gang, "gang_rank": rank, "gang_size": spec.gang.size if spec.gang else 0}


def waits_for(row: Row) -> str:
    """Return what a scheduled task waits for, as a reason; empty for any other."""
    if row["state"] != "scheduled":
        return ""
    if left := open_of(row):
        first, *others = dependencies_of(row)
        return f"waits for {left} of {len(others) + 1} tasks" if others else f"waits for task {first}"
    return f"not before {when(row.get('not_before'))}"


def dependencies_of(row: Row) -> list[str]:
    return row["needs"].split(" ")[1:] if row.get("needs") else []


def open_of(row: Row) -> int:
    """Return how many of the tasks that a scheduled one depends on have not ended; before the leader has
    looked at them, all count."""
    if row["state"] != "scheduled" or not row.get("needs"):
        return 0
    counted = int(row.get("open") or 0)
    return counted if counted >= 0 else len(dependencies_of(row))


def size_of(row: Row) -> int:
    """Return how many bytes the result of a task has; 0 if it has none."""
    if at := row.get("result_at"):
        return ResultAt.read(at).size
    return len(row["result"].encode()) if row.get("result") else int(row.get("result_bytes") or 0)


def devices(row: Row) -> list[task_schema.TaskDevice]:
    """Return the devices of a task's current attempt, or else of the last one."""
    return _devices(row.get("place", ""))


@lru_cache(maxsize=1024)
def _devices(place: str) -> list[task_schema.TaskDevice]:
    """Cached, because thousands of tasks run on the same devices. Nothing changes the list."""
    grant = rows.read_grant(place) if place else None
    return (
        [task_schema.TaskDevice(each.index, each.uuid, each.model) for each in grant.devices] if grant else []
    )


@lru_cache(maxsize=1024)
def _granted_mib(place: str) -> int:
    """Return what an attempt reserved on each of its devices: a retry may get more than the task asks."""
    grant = rows.read_grant(place) if place else None
    return grant.memory_mib if grant and grant.devices and not grant.exclusive else 0


def _seconds(row: Row) -> float | None:
    began, ended = int(row.get("started") or 0), int(row.get("finished") or 0)
    return (ended - began) / 1000 if began and ended and row["state"] != "cancelled" else None


def worker_detail(row: Row, worker: WorkerState, reserved: dict[int, int]) -> schema.WorkerDetail:
    fields = worker_fields(worker, row["state"], int(row.get("active", 0)), row.get("seen", ""))
    return schema.WorkerDetail(
        **(fields | {"loaded_models": loaded_models(worker)}),
        gpu_info=gpus(worker, reserved),
        system_info=_system(worker.hello.system_info, rows.ram_used_mib(row)),
        task_history=_history(row),
        registered_at=when(row["registered"]) or "",
        epoch=worker.epoch,
    )


def status_of(worker: WorkerState, state: str, active: int) -> str:
    """Return one word: the first thing that keeps the worker from taking tasks, or `online`."""
    if state != "online":
        return state
    if worker.draining:
        return "draining"
    if worker.cordoned:
        return "cordoned"
    if worker.circuit == OPEN:
        return "resting"
    return "busy" if active >= worker.hello.max_concurrent else "online"


def gpus(worker: WorkerState, reserved: dict[int, int]) -> list[schema.GpuInfo]:
    readings = {each.index: each for each in worker.readings}
    return [
        _gpu(each, worker, readings.get(each.index), reserved.get(each.index, 0))
        for each in worker.hello.devices
    ]


def worker_fields(worker: WorkerState, state: str, active: int, seen: str) -> dict[str, Any]:
    """Return all of a `WorkerInfo` but its GPUs."""
    online = worker.online
    return {
        "worker_id": worker.hello.name,
        "status": status_of(worker, state, active),
        "current_tasks": active,
        "max_concurrent": worker.hello.max_concurrent,
        "last_heartbeat": when(seen),
        "circuit": {OPEN: "open", HALF_OPEN: "half_open"}.get(worker.circuit, "closed"),
        "circuit_reason": worker.circuit_why,
        "circuit_until": when(worker.circuit_until_ms) if worker.circuit == OPEN else None,
        "performance_score": 1.0 if worker.score is None else worker.score,
        "labels": worker.hello.labels,
        "pool": worker.hello.pool,
        "task_types": list(worker.hello.task_types),
        "on_disconnect": worker.hello.on_disconnect,
        "sharing": worker.hello.sharing or session.ACCOUNTED,
        "loaded_models": sorted({each.model for each in worker.copies if each.is_loaded}) if online else [],
    }


def loaded_models(worker: WorkerState) -> list[schema.LoadedModel]:
    return [
        schema.LoadedModel(
            name=each.model,
            memory_usage=show_memory(held := each.used_mib * len(each.devices)),
            memory_usage_bytes=held * MIB,
            load_time=show_seconds(each.load_s),
            load_seconds=round(each.load_s, 3),
            last_used=when(int((worker.reported_s - each.used_ago_s) * 1000)),
            devices=list(each.devices),
            pinned=each.pinned,
            in_use=bool(each.task),
            server=each.server,
        )
        for each in worker.copies
        if each.is_loaded and worker.online
    ]


def _gpu(
    device: session.Device, worker: WorkerState, reading: session.Reading | None, reserved_mib: int
) -> schema.GpuInfo:
    used = reading.used_mib if reading else 0
    return schema.GpuInfo(
        index=device.index,
        uuid=device.uuid,
        vendor=device.vendor,
        model=device.model,
        memory_total=show_memory(device.memory_mib),
        memory_total_bytes=device.memory_mib * MIB,
        memory_used=show_memory(used),
        memory_used_bytes=used * MIB,
        memory_reserved_bytes=reserved_mib * MIB,
        temperature=reading.temperature_c if reading else 0.0,
        utilization=reading.utilization if reading else 0.0,
        driver_version=device.driver_version,
        cordoned=device.index in worker.cordoned_devices,
        problem=reading.problem if reading else "",
        alerts=[_alert(each) for each in worker.alerts if each.device == device.index]
        if worker.alerts
        else [],
    )


def _alert(alert: ActiveAlert) -> schema.GpuAlert:
    return schema.GpuAlert(
        kind=alert.kind, message=alert.message, value=alert.value, since=when(alert.since) or ""
    )


def _system(info: session.SystemInfo, used_mib: int) -> schema.WorkerSystem:
    return schema.WorkerSystem(
        cpu=info.cpu,
        ram_total=show_memory(info.ram_total_mib),
        ram_total_bytes=info.ram_total_mib * MIB,
        ram_used=show_memory(used_mib or info.ram_used_mib),
        ram_used_bytes=(used_mib or info.ram_used_mib) * MIB,
        os=info.os,
    )


def _history(row: Row) -> schema.TaskHistory:
    done, failed = int(row.get("done", 0)), int(row.get("failed", 0))
    today = int(row.get(f"done:{int(row['now']) // 86_400_000}", 0)) if "now" in row else 0
    average = int(row.get("ms", 0)) / 1000 / done if done else 0.0
    return schema.TaskHistory(
        completed_today=today,
        average_duration=show_seconds(average),
        average_duration_seconds=round(average, 3),
        success_rate=round(done / (done + failed), 4) if done + failed else 1.0,
    )
