"""The live view of `make demo`: a table of workloads and the last events.

Columns that do not fit are left out; none is squeezed until it says nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

Json = dict[str, Any]
Row = dict[str, str]

COLUMNS = ("name", "GPUs", "strategy", "priority", "phase", "node", "message")
EVENT_COLUMNS = ("time", "name", "reason", "message")
LEFT_OUT = ("time", "priority", "strategy", "GPUs", "reason", "node")
"""Which columns go if the terminal is narrow, the first one first."""
LEAST_MESSAGE = 30
"""Characters that a line of a message has at least."""
SPEAKS_FOR_ITSELF = ("Running", "Succeeded")
"""Phases whose message says no more than the column with the node."""
LAST_EVENTS = 8
STYLES = {
    "Running": "green",
    "Succeeded": "bold green",
    "Failed": "red",
    "Pending": "yellow",
    "Scheduling": "yellow",
    "Scheduled": "cyan",
}


def view(workloads: Iterable[Json], events: Sequence[Json], *, home: str, width: int) -> Group:
    """Return both tables for a terminal of this width. Names of objects outside the namespace `home` begin
    with their own namespace."""
    rows = [workload_row(each, home) for each in workloads]
    names = columns_for(COLUMNS, rows, width)
    if "node" in names:
        rows = [_without_repetition(row) for row in rows]
    last = [event_row(each, home) for each in events[-LAST_EVENTS:]]
    return Group(
        _table("GPUWorkloads", names, rows),
        _table("Events", columns_for(EVENT_COLUMNS, last, width), last),
    )


def workload_row(workload: Json, home: str) -> Row:
    spec, status = workload["spec"], workload.get("status", {})
    return {
        "name": _name(workload["metadata"], home),
        "GPUs": str(spec["gpuCount"]),
        "strategy": spec["schedulingStrategy"],
        "priority": spec["priority"],
        "phase": status.get("phase", ""),
        "node": status.get("allocated") or status.get("assignedNode", ""),
        "message": status.get("message", ""),
    }


def _without_repetition(row: Row) -> Row:
    return {**row, "message": ""} if row["phase"] in SPEAKS_FOR_ITSELF else row


def event_row(event: Json, home: str) -> Row:
    return {
        "time": str(event["eventTime"])[11:19],
        "name": _name(event["regarding"], home),
        "reason": event["reason"],
        "message": event["note"],
    }


def _name(named: Json, home: str) -> str:
    space = named.get("namespace", home)
    return named["name"] if space == home else f"{space}/{named['name']}"


def columns_for(columns: Sequence[str], rows: Sequence[Row], width: int) -> list[str]:
    """Return the columns that a terminal of this width can show whole, beside a readable message."""
    names = list(columns)
    for name in LEFT_OUT:
        if _needed(names, rows) <= width:
            break
        if name in names:
            names.remove(name)
    return names


def _needed(names: Sequence[str], rows: Sequence[Row]) -> int:
    widths = [max([len(name), *(len(row[name]) for row in rows)]) for name in names if name != "message"]
    return sum(widths) + LEAST_MESSAGE + 3 * len(names) + 1  # a border and two blanks for each column


def _table(title: str, names: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", expand=True)
    for name in names:
        is_message = name == "message"
        table.add_column(name, no_wrap=not is_message, ratio=1 if is_message else None, overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(row[name], STYLES.get(row[name], "") if name == "phase" else "") for name in names)
        )
    return table
