"""`gpu-orchestrator schedule …`: let a cluster manager queue tasks at the moments of a cron expression."""

import os
import sys
from datetime import UTC, datetime
from importlib import import_module
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from gpu_orchestrator.cli import client, output, times, where
from gpu_orchestrator.cli.options import HERE, AsJson, InUtc, Limit, Offset, Server
from gpu_orchestrator.cli.plain import lines
from gpu_orchestrator.cli.tables import Column
from gpu_orchestrator.cli.task_options import USUAL, TaskOptions

app = App(name="schedule", help="Queue tasks at times that a cron expression names.")
ORDER = ("add", "list", "show", "run", "pause", "resume", "delete", "apply")
COLUMNS = [
    Column("NAME"),
    Column("SCHEDULE"),
    Column("TYPE", 1),
    Column("STATUS"),
    Column("NEXT"),
    Column("LAST", 2),
    Column("FIRED", 3),
    Column("OWNER", 4),
    Column("WHY", free=True, below=True),
]
Name = Annotated[str, Parameter(help="The name of the schedule, or its id.")]


@app.command(sort_key=ORDER.index("add"))
def add(
    name: str,
    schedule: str,
    task_type: str,
    /,
    *parameters: str,
    timezone: Annotated[str, Parameter(metavar="ZONE")] = "",
    missed: Annotated[
        Literal["run_once", "run_all", "skip"], Parameter(metavar="run_once|run_all|skip")
    ] = "run_once",
    overlap: Annotated[Literal["allow", "skip", "queue"], Parameter(metavar="allow|skip|queue")] = "allow",
    jitter: Annotated[str, Parameter(metavar="TIME")] = "",
    replace: bool = False,
    how: TaskOptions = USUAL,
    expires: Annotated[str, Parameter(metavar="TIME")] = "",
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Add a schedule.

    Parameters
    ----------
    name
        What to call it; its tasks have the label schedule=NAME.
    schedule
        Minute, hour, day of the month, month, day of the week, such as '0 3 * * *'; or @hourly, @daily,
        @weekly, @monthly, @yearly, or '@every 30s'.
    task_type
        Which handler runs its tasks, such as echo.
    parameters
        For the handler: JSON, `key=value` pairs, `@FILE` with JSON, or `@-` for JSON on stdin.
    timezone
        Whose clocks it goes by, such as Europe/Berlin; UTC if not given.
    missed
        What becomes of moments at which no server could queue the task: the latest is run, or all are, or
        none that is more than a minute old.
    overlap
        What if the task of the moment before has not ended: begin beside it, pass this moment over, or wait.
    jitter
        Fire up to so much later, such as 10m; always by the same delay.
    replace
        Change the schedule of this name, if there is one.
    expires
        End a task that has not begun so long after its moment, such as 1h.
    """
    task = {**how.body(task_type, parameters), **({"expires": expires} if expires else {})}
    body = {"name": name, "schedule": schedule, "task": task, "missed": missed, "overlap": overlap}
    body |= {key: text for key, text in (("timezone", timezone), ("jitter", jitter)) if text}
    answer = client.ask(server, "POST", "/schedules", body={**body, "replace": replace})
    _show(answer, as_json=json_)


@app.command(name="list", sort_key=ORDER.index("list"))
def list_(
    *,
    owner: str = "",
    limit: Limit = 100,
    offset: Offset = 0,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """List schedules, oldest first.

    Parameters
    ----------
    owner
        Only those of this owner (for admins).
    """
    query = {"owner": owner, "limit": limit, "offset": offset}
    answer = client.ask(server, "GET", "/schedules", query=query)
    if json_:
        return output.show_json(answer)
    now = datetime.now(UTC)
    rows = [row(each, now) for each in answer["schedules"]]
    output.show_table(COLUMNS, rows)
    if rows and offset + len(rows) < answer["total"]:
        output.note(f"{len(rows)} of {answer['total']} (--limit, --offset)")
    return None


@app.command(sort_key=ORDER.index("show"))
def show(name: Name, /, *, json_: AsJson = False, utc: InUtc = False, server: Server = HERE) -> None:
    """Show a schedule with its next moments; `task list --label schedule=NAME` lists its tasks."""
    _show(client.ask(server, "GET", _path(name)), as_json=json_, utc=utc)


@app.command(sort_key=ORDER.index("run"))
def run(name: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Queue the task of a schedule now, whatever its moments."""
    answer = client.ask(server, "POST", _path(name, "/run"))
    if json_:
        return output.show_json(answer)
    return output.say(answer["task_id"])


@app.command(sort_key=ORDER.index("pause"))
def pause(name: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Let a schedule fire no more until it is resumed. What it has queued goes on."""
    _show(client.ask(server, "POST", _path(name, "/pause")), as_json=json_)


@app.command(sort_key=ORDER.index("resume"))
def resume(name: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Let a schedule fire again, also one that stopped because its key is over: it goes on under yours."""
    _show(client.ask(server, "POST", _path(name, "/resume")), as_json=json_)


@app.command(sort_key=ORDER.index("delete"))
def delete(name: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Delete a schedule. What it has queued goes on."""
    answer = client.ask(server, "DELETE", _path(name))
    if json_:
        return output.show_json(answer)
    return output.say(lines(f"{answer['name']} is deleted"))


@app.command(sort_key=ORDER.index("apply"))
def apply(module: str, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Add or replace the schedules that a Python module names with `@task(schedule=...)`.

    Parameters
    ----------
    module
        The module that workers serve with --app. It is imported here, from this folder or where Python finds
        it.
    """
    from gpu_orchestrator.client import ClientError
    from gpu_orchestrator.client.blocking import Client

    functions = _scheduled(module)
    given = where.find(server)
    try:
        with Client(given.url, key=given.key, ca=given.ca) as connected:
            found = connected.schedules.apply(*functions)
    except (ClientError, TypeError) as error:
        output.fail(error)
    from msgspec import to_builtins

    answer = [to_builtins(each) for each in found]
    if json_:
        return output.show_json({"schedules": answer, "total": len(answer)})
    now = datetime.now(UTC)
    return output.show_table(COLUMNS, [row(each, now) for each in answer])


def _scheduled(module: str) -> list[Any]:
    """Return the task functions of a module that have a schedule, each once."""
    from gpu_orchestrator.client.functions import TaskFunction

    sys.path.insert(0, os.getcwd())
    try:
        names = vars(import_module(module))
    except Exception as error:
        output.fail(f"{module} cannot be imported: {error}; give a module, in the folder where it is")
    found = {each.name: each for each in names.values() if isinstance(each, TaskFunction) and each.schedule}
    if not found:
        output.fail(f"{module} has no task with a schedule; decorate one with @task(schedule='0 3 * * *')")
    return list(found.values())


def row(schedule: dict[str, Any], now: datetime) -> list[object]:
    """Return a schedule as cells."""
    zone = schedule["timezone"]
    return [
        schedule["name"],
        schedule["schedule"] + (f" ({zone})" if zone != "UTC" else ""),
        schedule["task_type"],
        schedule["status"],
        times.ago(times.parse(schedule["next_at"]), now),
        times.ago(times.parse(schedule["last_at"]), now),
        schedule["fired"],
        schedule["owner"],
        schedule["reason"],
    ]


def _show(schedule: dict[str, Any], *, as_json: bool, utc: bool = False) -> None:
    if as_json:
        return output.show_json(schedule)
    now, zone = datetime.now(UTC), UTC if utc else None

    def moment(name: str) -> str:
        at = times.parse(schedule[name])
        return f"{times.clock(at, now, zone)} ({times.ago(at, now)})" if at else ""

    pairs = [
        ("schedule", schedule["name"]),
        ("id", schedule["schedule_id"]),
        ("owner", schedule["owner"]),
        ("status", schedule["status"]),
        ("why", schedule["reason"]),
        ("fires", f"{schedule['schedule']} ({schedule['timezone']})"),
        ("next", moment("next_at")),
        ("then", ", ".join(schedule["upcoming"][1:])),
        ("last", moment("last_at")),
        ("last task", schedule["last_task"]),
        ("fired", schedule["fired"]),
        ("passed over", schedule["passed_over"]),
        ("if missed", schedule["missed"]),
        ("if it overlaps", schedule["overlap"]),
        ("jitter", schedule["jitter"]),
        ("task type", schedule["task_type"]),
        ("key", schedule["key_id"]),
    ]
    return output.show_card([(name, value) for name, value in pairs if value not in ("", None)])


def _path(name: str, rest: str = "") -> str:
    return f"/schedules/{client.part(name)}{rest}"
