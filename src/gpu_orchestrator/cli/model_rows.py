"""Models and their copies as rows and cards. Pure: answers of the server and `now` come in."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_orchestrator.cli import times
from gpu_orchestrator.cli.tables import Column

MOST_NAMED = 3


def table(models: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows of `model list`."""
    columns = [
        Column("MODEL"),
        Column("HANDLER", 3),
        Column("MEMORY", 1),
        Column("LOAD TIME", 4),
        Column("LOADED ON", 2),
        Column("PINNED ON", 5),
    ]
    return columns, [
        [
            each["name"],
            each["handler"],
            _memory(each),
            each["load_time"],
            _named([f"{copy['worker_id']}{_mark(copy)}" for copy in each["copies"]]),
            _pinned(each),
        ]
        for each in models
    ]


def card(model: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        ("model", model["name"]),
        ("handler", model["handler"]),
        ("memory", _memory(model)),
        ("load time", model["load_time"]),
        ("path", model["path"]),
        ("options", model["options"] or ""),
        ("pinned on", _pinned(model)),
    ]


def moves(found: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[list[object]]]:
    """Return columns and rows of `model rebalance`."""
    columns = [
        Column("MODEL"),
        Column("FROM"),
        Column("TO"),
        Column("STATUS", 1),
        Column("WHY", 2, free=True, below=True),
    ]
    return columns, [
        [each["model_name"], each["from_worker"], each["to_worker"], each["status"], each["reason"]]
        for each in found
    ]


def copies(found: Sequence[Mapping[str, Any]], now: datetime) -> tuple[list[Column], list[list[object]]]:
    columns = [
        Column("WORKER"),
        Column("DEVICES", 3),
        Column("STATUS", 1),
        Column("HOLDS", 2),
        Column("LOAD TIME", 5),
        Column("USED", 4),
    ]
    return columns, [
        [
            each["worker_id"],
            ", ".join(map(str, each["devices"])) or "none",
            each["status"] + (", pinned" if each["pinned"] else ""),
            each["memory_usage"] if each["memory_usage_bytes"] else "",
            each["load_time"],
            times.ago(times.parse(each["last_used"]), now),
        ]
        for each in found
    ]


def _memory(model: Mapping[str, Any]) -> str:
    if not model["memory"]:
        return ""
    return f"{model['memory']}{'' if model['memory_measured'] else ' (declared)'}"


def _pinned(model: Mapping[str, Any]) -> str:
    return ", ".join("all workers" if each == "*" else each for each in model["pinned_on"])


def _mark(copy: Mapping[str, Any]) -> str:
    return {"loading": " (loading)", "in_use": " (in use)"}.get(copy["status"], "")


def _named(workers: list[str]) -> str:
    more = f" and {len(workers) - MOST_NAMED} more" if len(workers) > MOST_NAMED else ""
    return ", ".join(workers[:MOST_NAMED]) + more
