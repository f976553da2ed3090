"""Tasks as rows of a table, as a card, and as one line. Pure: the server's answers and the moment come in.

A field that an older server does not send is left out.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from gpu_orchestrator.cli import times
from gpu_orchestrator.cli.tables import Column, state_colour

Task = Mapping[str, Any]
Field = Callable[[Task], object]
FINAL = frozenset({"completed", "failed", "cancelled", "dead"})
FAILED = frozenset({"failed", "dead"})
WAITING = frozenset({"scheduled", "queued"})
COUNT = re.compile(r"^0/[1-9]\d* workers fit: ")
"""What a reason begins with, left out in lists: the room is for what comes after it."""
TASK = Column("TASK")
STATUS = Column("STATUS", paint=state_colour)


def table(
    tasks: Sequence[Task], now: datetime, *, wide: bool = False
) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows. Progress, position and reason share one column, unless there is room for
    all."""
    columns: list[tuple[Column, Field]] = [
        (TASK, lambda each: each["task_id"]),
        (STATUS, lambda each: each["status"]),
        (Column("TYPE", 3), lambda each: each.get("task_type")),
        (Column("WORKER", 5), lambda each: each.get("assigned_worker")),
        (Column("GPUS", 6), gpus),
        (Column("AGE", 1), lambda each: times.age(times.parse(each.get("created_at")), now)),
        (Column("DURATION", 4), lambda each: duration(each, now)),
    ]
    if wide:
        columns += [
            (Column("POSITION", 7, below=True), lambda each: each.get("queue_position")),
            (Column("DEVICES", 8, below=True), devices),
            (Column("MEMORY", 8, below=True), memory),
            (Column("ATTEMPT", 8, below=True), lambda each: each.get("attempt")),
            (Column("PRIORITY", 8, below=True), lambda each: each.get("priority")),
            (Column("OWNER", 8, below=True), lambda each: each.get("owner")),
            (Column("LABELS", 8, below=True), lambda each: labels(each.get("labels") or {})),
            (Column("PROGRESS", 2, free=True, below=True), _progress),
            (
                Column("REASON", 2, free=True, below=True),
                lambda each: _joined(reason(each), expiry(each, now)),
            ),
        ]
    else:
        columns.append((Column("DETAIL", 2, free=True, below=True), lambda each: detail(each, now)))
    return [column for column, _ in columns], [[field(each) for _, field in columns] for each in tasks]


def _rank(task: Task) -> str:
    return f"rank {task.get('gang_rank')} of {task.get('gang_size')}"


def card(task: Task, now: datetime, zone: tzinfo | None = None) -> list[tuple[str, object]]:
    """Return what is known of one task, field by field."""
    error = task.get("error") or {}
    position = task.get("queue_position")
    return [
        ("task", task["task_id"]),
        ("status", task["status"]),
        ("reason", task.get("reason")),
        ("position", f"{position} in the queue" if position else ""),
        ("gang", f"{task['gang_id']}, {_rank(task)}" if task.get("gang_id") else ""),
        ("type", task.get("task_type")),
        ("model", task.get("model_name")),
        ("parameters", _json(task.get("parameters"))),
        ("worker", task.get("assigned_worker")),
        ("devices", _each_device(task)),
        (
            "gpus",
            f"{task['gpus']}, {memory(task)}" if task.get("gpus") and memory(task) else task.get("gpus"),
        ),
        ("attempt", task.get("attempt")),
        ("priority", task.get("priority")),
        ("owner", task.get("owner")),
        ("labels", labels(task.get("labels") or {})),
        ("pool", task.get("pool")),
        ("worker labels", labels(task.get("worker_labels") or {})),
        ("depends on", "\n".join(task.get("depends_on") or [])),
        ("on failure", task.get("on_failure")),
        ("not before", _moment(task.get("not_before"), now, zone)),
        ("expires", _moment(task.get("expires"), now, zone)),
        ("created", _moment(task.get("created_at"), now, zone)),
        ("started", _moment(task.get("started_at"), now, zone)),
        ("ended", _moment(task.get("completed_at"), now, zone)),
        ("duration", duration(task, now)),
        ("progress", task.get("progress")),
        ("callback", task.get("callback")),
        ("correlation", task.get("correlation_id")),
        ("deaths", "\n".join(_death(each, now, zone) for each in task.get("deaths") or [])),
        ("error", f"{error.get('type')}: {error.get('message')}" if error else ""),
        ("result", _json(task.get("result"))),
    ]


def line(task: Task, now: datetime) -> str:
    """Return the state of a task in one line: `running on vm, GPU 0 (L4), 12s: epoch 3`."""
    words = str(task["status"])
    if task["status"] == "queued":
        position = task.get("queue_position")
        why = task.get("reason")
        return words + (f", {position} in the queue" if position else "") + (f": {why}" if why else "")
    if place := _place(task.get("assigned_worker"), task.get("devices")):
        words += f" {place}"
    if taken := duration(task, now):
        words += f", {taken}"
    return words + (f": {task['progress']}" if task.get("progress") and task["status"] not in FINAL else "")


def last_place(explanation: Task) -> str:
    """Return where an explained task ran last: `on vm, GPU 0 (L4)`; empty if it did not run."""
    return _place(explanation.get("last_worker"), explanation.get("last_devices"))


def _place(worker: object, devices: Sequence[Task] | None) -> str:
    names = " and ".join(f"GPU {each.get('index')} ({each.get('model')})" for each in devices or [])
    return ", ".join(filter(None, [f"on {worker}" if worker else "", names]))


def stuck(task: Task) -> str:
    """Return why a task may wait forever; empty if it does not."""
    return str(task.get("reason") or "") if task.get("waits_for_worker") else ""


def gpus(task: Task) -> object:
    """Return the devices by number once it has some (`#0 #2-5`), else how many it asks for."""
    if found := task.get("devices"):
        return " ".join(_ranges(sorted(int(each.get("index") or 0) for each in found)))
    return task.get("gpus")


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers, three and more in a row as one range."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return [
        word
        for run in runs
        for word in ([f"#{run[0]}-{run[-1]}"] if len(run) > 2 else [f"#{each}" for each in run])
    ]


def devices(task: Task) -> str:
    return ", ".join(
        f"{each.get('index')} {each.get('model')} {each.get('uuid')}" for each in task.get("devices") or []
    )


def memory(task: Task) -> str:
    """Return what it has reserved on each device."""
    if task.get("memory_reserved"):
        return (
            f"{task['memory_reserved']} each" if (task.get("gpus") or 1) > 1 else str(task["memory_reserved"])
        )
    return "whole" if task.get("exclusive") else ""


def duration(task: Task, now: datetime) -> str:
    """Return how long it took, or has run so far."""
    if task.get("duration_seconds") is not None:
        return times.duration(float(task["duration_seconds"]))
    started = times.parse(task.get("started_at"))
    if task["status"] == "running" and started:
        return times.duration((now - started).total_seconds())
    return ""


def reason(task: Task) -> str:
    """Return why it waits or how it failed, in few words."""
    error = task.get("error") or {}
    if error.get("message") and task["status"] in FINAL:
        return f"{error.get('type')}: {error['message']}".partition("\n")[0]
    return COUNT.sub("", str(task.get("reason") or ""))


def expiry(task: Task, now: datetime) -> str:
    """Return when a task that waits is given up; empty for any other."""
    at = times.parse(task.get("expires")) if task["status"] in WAITING else None
    return f"expires {times.ago(at, now)}" if at else ""


def detail(task: Task, now: datetime) -> str:
    """Return what matters most: how far it is, or its place in the queue, why it waits and until when, or how
    it failed."""
    position = task.get("queue_position")
    said = _joined(str(_progress(task) or "") or reason(task), expiry(task, now))
    return (f"#{position}: {said}" if said else f"#{position} in the queue") if position else said


def labels(given: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(given.items()))


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _progress(task: Task) -> object:
    return "" if task["status"] in FINAL else task.get("progress")


def _each_device(task: Task) -> str:
    return "\n".join(
        f"{each.get('index')}  {each.get('model')}  {each.get('uuid')}" for each in task.get("devices") or []
    )


def _moment(text: object, now: datetime, zone: tzinfo | None) -> str:
    found = times.parse(text)
    return f"{times.clock(found, now, zone)} ({times.ago(found, now)})" if found else ""


def _death(death: Mapping[str, Any], now: datetime, zone: tzinfo | None) -> str:
    moment = datetime.fromtimestamp(float(death.get("at", 0)) / 1000, UTC)
    when = times.clock(moment, now, zone)
    gpus = ", ".join(f"GPU {index}" for index in death.get("devices") or [])
    place = f"{death.get('worker')}{f', {gpus}' if gpus else ''}"
    return f"{when} attempt {death.get('attempt')} on {place}: {death.get('evidence')}"


def _json(value: Any) -> str:
    return "" if value is None or value == {} else json.dumps(value, indent=2, ensure_ascii=False)
