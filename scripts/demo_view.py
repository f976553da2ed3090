"""The live view of `make demo`: a table of workloads and the last events.

Columns that do not fit are left out; none is squeezed until it says nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

Json = dict[str, Any]
Row = dict[str, str]

COLUMNS = ("name", "GPUs", "strategy", "priority", "phase", "node", "message")
LEFT_OUT = ("priority", "strategy", "GPUs", "node")
"""Which columns go if the terminal is narrow, the first one first."""
LEAST_MESSAGE = 30
"""Characters that a message has at least."""
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
    return Group(workload_table([row(each, home) for each in workloads], width), event_table(events, home))


def row(workload: Json, home: str) -> Row:
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


def _name(named: Json, home: str) -> str:
    space = named.get("namespace", home)
    return named["name"] if space == home else f"{space}/{named['name']}"


def workload_table(rows: Sequence[Row], width: int) -> Table:
    table = Table(title="GPUWorkloads", title_justify="left", expand=True)
    names = columns_for(rows, width)
    for name in names:
        table.add_column(name, no_wrap=True, ratio=1 if name == "message" else None, overflow="ellipsis")
    for each in rows:
        table.add_row(*(_cell(name, each[name]) for name in names))
    return table


def columns_for(rows: Sequence[Row], width: int) -> list[str]:
    """Return the columns that a terminal of this width can show whole, beside a readable message."""
    names = list(COLUMNS)
    for name in LEFT_OUT:
        if _needed(names, rows) <= width:
            break
        names.remove(name)
    return names


def _needed(names: Sequence[str], rows: Sequence[Row]) -> int:
    widths = [max([len(name), *(len(row[name]) for row in rows)]) for name in names if name != "message"]
    return sum(widths) + LEAST_MESSAGE + 3 * len(names) + 1  # a border and two blanks for each column


def _cell(name: str, text: str) -> str:
    escaped = text.replace("[", r"\[")
    return f"[{STYLES.get(text, 'dim')}]{escaped}[/]" if name == "phase" else escaped


def event_table(events: Sequence[Json], home: str) -> Table:
    table = Table(title="Events", title_justify="left", expand=True, show_header=False)
    for ratio in (None, None, None, 1):
        table.add_column(no_wrap=True, ratio=ratio, overflow="ellipsis")
    for event in events[-LAST_EVENTS:]:
        moment = str(event["eventTime"])[11:19]
        cells = (moment, _name(event["regarding"], home), event["reason"], event["note"])
        table.add_row(*(_cell("", cell) for cell in cells))
    return table
