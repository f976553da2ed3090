"""`gpu-orchestrator events`: what happened in the cluster, or what happens now."""

import json
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, times, where
from gpu_orchestrator.cli.mistakes import unknown
from gpu_orchestrator.cli.options import HERE, InUtc, Limit, Server
from gpu_orchestrator.cli.tables import Column, state_colour, text

TYPES = (
    "task_started",
    "task_completed",
    "task_failed",
    "task_cancelled",
    "task_requeued",
    "schedule_fired",
    "schedule_skipped",
    "schedule_stopped",
    "worker_registered",
    "worker_status_changed",
    "gpu_alert",
    "callback_failed",
    "model_loaded",
    "model_unloaded",
    "cluster_rebalance_started",
    "cluster_rebalance_ended",
    "scale_event",
    "reset",
)
COLUMNS = (
    Column("TIME", 1),
    Column("EVENT", paint=lambda word: state_colour(word.rpartition("_")[2])),
    Column("OBJECT"),
    Column("DETAILS", 2, free=True, below=True),
)
FIRST = ("error", "message", "reason", "status", "state", "worker_id", "devices")
MOST = 1000
"""How many events one request may ask for."""
NAMES = ("task_id", "worker_id")
"""Fields that say what an event is about, most exact first."""


def events(
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    type_: Annotated[tuple[str, ...], Parameter(name="--type", metavar="TYPE")] = (),
    after: Annotated[str, Parameter(metavar="ID")] = "",
    limit: Limit = 50,
    json_: Annotated[
        bool, Parameter(name="--json", help="Print JSON; with --follow one object a line.")
    ] = False,
    utc: InUtc = False,
    server: Server = HERE,
) -> None:
    """Show the latest events of the cluster, or follow them: tasks that start and end, workers that come and
    go, alerts of GPUs.

    Parameters
    ----------
    follow
        Show events as they happen, until Ctrl-C.
    type_
        Only events of this type, such as task_failed; `task_` and `worker_` stand for all of them. May be
        repeated.
    after
        Only events after the one with this id (see --json); 0 for the oldest that is kept.
    """
    wanted = _wanted(type_)
    try:
        place = where.find(server)
        if follow:
            return _follow(place, wanted, after, as_json=json_, utc=utc)
        answer = _chosen(place, wanted, limit) if wanted and not after else _page(place, after, limit)
    except (client.CannotAsk, where.BadPlace) as error:
        output.fail(error)
    found = [each for each in answer["events"] if is_wanted(each["event"], wanted)]
    if json_:
        return output.show_json({**answer, "events": found})
    now = datetime.now(UTC)
    return output.show_table(COLUMNS, [row(each, now, utc=utc) for each in found])


def row(event: Mapping[str, Any], now: datetime, *, utc: bool) -> list[object]:
    """Return an event as the cells of a row."""
    data = event.get("data") or {}
    subject = next((name for name in NAMES if data.get(name)), "")
    moment = times.clock(times.parse(event.get("timestamp")), now, UTC if utc else None)
    return [moment, event.get("event"), data.get(subject), details(data, subject)]


def details(data: Mapping[str, Any], subject: str) -> str:
    """Return the other fields in words, what went wrong first; a first attempt goes without saying."""
    parts = [_in_words(name, data[name]) for name in sorted(data, key=_place) if name != subject]
    return "; ".join(each for each in parts if each)


def _place(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _in_words(name: str, value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    match name, value:
        case "worker_id", _:
            return f"on {value}"
        case "attempt", 0 | 1:
            return ""
        case "status", "completed" | "failed" | "cancelled":  # the name of the event says so
            return ""
        case "error", {"message": message}:
            return f"{value.get('type')}: {message}"
        case "devices", [*found]:
            return ", ".join(f"GPU {each.get('index')} ({each.get('model')})" for each in found)
        case "duration_seconds", int() | float():
            return times.duration(value)
        case _, int() | float() if name.endswith("_seconds"):
            return f"{name.removesuffix('_seconds')} {times.duration(value)}"
        case _, str():
            return value
    return f"{name} {json.dumps(value)}"


def task_line(event: Mapping[str, Any], now: datetime, *, utc: bool) -> str:
    """Return an event as one line for a pipe."""
    return "  ".join(text(each) for each in row(event, now, utc=utc))


def is_wanted(name: str, wanted: tuple[str, ...]) -> bool:
    return not wanted or any(
        name == each or (each.endswith("_") and name.startswith(each)) for each in wanted
    )


def _wanted(given: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(each for word in given for each in word.split(",") if each)
    for each in found:
        if each not in TYPES and not each.endswith("_"):
            output.fail(unknown("type", each, TYPES), code=2)
    return found


def _page(place: where.Place, after: str, limit: int) -> Any:
    return client.request(place, "GET", "/cluster/events", query={"after": after, "limit": limit})


def _chosen(place: where.Place, wanted: tuple[str, ...], limit: int) -> dict[str, Any]:
    """Return the latest events of these types among all that are kept: the last page may have none."""
    found: deque[dict[str, Any]] = deque(maxlen=max(limit, 0))
    at = "0"
    while True:
        answer = _page(place, at, MOST)
        found += [each for each in answer["events"] if is_wanted(each["event"], wanted)]
        if answer["next"] == at or not answer["next"]:
            return {**answer, "events": list(found)}
        at = answer["next"]


def _follow(place: where.Place, wanted: tuple[str, ...], after: str, *, as_json: bool, utc: bool) -> None:
    for event in client.follow(place, "/events", query={"after": after}):
        if event.data is not None and is_wanted(event.name, wanted):
            words = json.dumps(event.data) if as_json else task_line(event.data, datetime.now(UTC), utc=utc)
            output.say(words)
        if output.is_gone():
            return
