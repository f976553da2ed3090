"""Workers, their devices and the cluster as rows and cards. Pure: answers of the server and `now` come in."""

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

from gpu_orchestrator.cli import times
from gpu_orchestrator.cli.tables import Column, state_colour

GIB = 2**30
WORKER = Column("WORKER")
STATUS = Column("STATUS", paint=state_colour)
_ON_DISCONNECT = {
    "stop": "ends its tasks when the lease expires",
    "keep": "keeps its tasks when the lease expires; they may run twice",
}
ENDED = ("completed", "failed", "cancelled", "dead")


def table(workers: Sequence[Mapping[str, Any]], now: datetime) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows of `worker list`."""
    columns = [
        WORKER,
        STATUS,
        Column("TASKS", 2),
        Column("GPUS", 1),
        Column("MEMORY", 3),
        Column("RESERVED", 4),
        Column("IN USE", 5),
        Column("SEEN", 6),
    ]
    rows = [_row(each, now) for each in workers]
    if any(each.get("on_disconnect") == "keep" for each in workers):
        columns.append(Column("ON DISCONNECT", 7))
        rows = [[*row, each.get("on_disconnect")] for row, each in zip(rows, workers, strict=True)]
    return columns, rows


def _row(worker: Mapping[str, Any], now: datetime) -> list[object]:
    found = worker["gpu_info"]
    return [
        worker["worker_id"],
        worker["status"],
        f"{worker['current_tasks']}/{worker['max_concurrent']}",
        gpus(found),
        _sum(found, "memory_total_bytes"),
        _sum(found, "memory_reserved_bytes"),
        _sum(found, "memory_used_bytes"),
        times.ago(times.parse(worker.get("last_heartbeat")), now),
    ]


def gpus(found: Sequence[Mapping[str, Any]]) -> str:
    """`4 × L4`, with what keeps some of them from taking tasks: `4 × L4 (1 cordoned)`."""
    if not found:
        return "none"
    counts = {
        model: sum(each["model"] == model for each in found) for model in sorted({g["model"] for g in found})
    }
    words = ", ".join(f"{count} × {model}" for model, count in counts.items())
    states = [state(each) for each in found]
    odd = [f"{states.count(word)} {word}" for word in ("cordoned", "faulty", "alert") if word in states]
    return f"{words} ({', '.join(odd)})" if odd else words


def state(gpu: Mapping[str, Any]) -> str:
    """Return one word: the first thing that is odd about a device."""
    if gpu.get("problem"):
        return "faulty"
    if gpu.get("cordoned"):
        return "cordoned"
    return "alert" if gpu.get("alerts") else "ok"


def devices(found: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows of the devices in `worker show`."""
    columns = [
        Column("DEVICE"),
        Column("STATE", paint=_device_colour),
        Column("MODEL", 1),
        Column("MEMORY", 3),
        Column("RESERVED", 2),
        Column("IN USE", 4),
        Column("TEMP", 5),
        Column("BUSY", 6),
        Column("UUID", 8),
        Column("PROBLEM", 7, free=True),
    ]
    return columns, [_device_row(each) for each in found]


def _device_colour(word: str) -> str:
    return {"faulty": "red", "alert": "yellow"}.get(word) or state_colour(word)


def _device_row(gpu: Mapping[str, Any]) -> list[object]:
    alerts = "; ".join(str(each.get("message")) for each in gpu.get("alerts") or [])
    return [
        gpu["index"],
        state(gpu),
        gpu["model"],
        gib(gpu["memory_total_bytes"]),
        gib(gpu.get("memory_reserved_bytes", 0)),
        gib(gpu.get("memory_used_bytes", 0)),
        f"{gpu['temperature']:.0f} °C" if gpu.get("temperature") else "",
        f"{gpu.get('utilization', 0):.0%}",
        gpu["uuid"],
        "; ".join(each for each in (gpu.get("problem", ""), alerts) if each),
    ]


def card(worker: Mapping[str, Any], now: datetime, zone: tzinfo | None = None) -> list[tuple[str, object]]:
    """Return what is known of a worker but its devices."""
    system, history = worker.get("system_info") or {}, worker.get("task_history") or {}
    done = history.get("completed_today")
    joined = times.parse(worker.get("registered_at"))
    return [
        ("worker", worker["worker_id"]),
        ("status", worker["status"]),
        ("tasks", f"{worker['current_tasks']} running, at most {worker['max_concurrent']} at once"),
        ("today", _today(history) if done else ""),
        ("task types", ", ".join(worker.get("task_types") or [])),
        (
            "labels",
            ", ".join(f"{name}={value}" for name, value in sorted((worker.get("labels") or {}).items())),
        ),
        ("pool", worker.get("pool")),
        ("machine", ", ".join(str(system[name]) for name in ("cpu", "os") if system.get(name))),
        (
            "memory",
            f"{system.get('ram_used')} of {system['ram_total']} used" if system.get("ram_total") else "",
        ),
        ("on disconnect", _ON_DISCONNECT.get(str(worker.get("on_disconnect")), "")),
        ("joined", times.clock(joined, now, zone)),
        ("seen", times.ago(times.parse(worker.get("last_heartbeat")), now)),
        ("gpus", gpus(worker["gpu_info"])),
    ]


def _today(history: Mapping[str, Any]) -> str:
    average = times.duration(float(history.get("average_duration_seconds") or 0))
    return (
        f"{history['completed_today']} tasks completed, {average} each on average, "
        f"{float(history.get('success_rate', 1)):.0%} of all succeeded"
    )


def status(answer: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the card of the cluster. Memory that can be reserved is less than there is, and it says why."""
    states = answer.get("tasks") or {}
    ended = [f"{states[name]} {name}" for name in ENDED if states.get(name)]
    tasks = [f"{answer['queued_tasks']} queued", f"{answer['running_tasks']} running", *ended]
    total, free = answer["total_memory_bytes"], answer["available_memory_bytes"]
    part = f"{1 - answer['memory_threshold']:.0%}" if answer.get("memory_threshold") else "a part"
    kept_back = f" (GPU_MEMORY_THRESHOLD keeps {part} of each device back)"
    return [
        ("status", answer["status"]),
        ("workers", f"{answer['active_workers']} of {answer['total_workers']} online"),
        ("tasks", ", ".join(tasks)),
        (
            "GPU memory",
            f"{gib(total)}; {gib(free)} can still be reserved{kept_back if free < total else ''}"
            if total
            else "none: no worker that is online has a GPU",
        ),
        ("GPUs busy", f"{answer.get('gpu_utilization', 0):.0%}" if total else ""),
        ("up for", times.duration(float(answer["uptime_seconds"]))),
    ]


def gib(number: float) -> str:
    """`24GB`, `1.5GB`, `512MB`: binary units, as vendors of GPUs use them."""
    if number >= GIB or number == 0:
        return f"{round(number / GIB, 1):g}GB"
    return f"{round(number / 2**20):g}MB"


def _sum(found: Sequence[Mapping[str, Any]], field: str) -> str:
    return gib(sum(each.get(field, 0) for each in found)) if found else ""
