"""`gpu-orchestrator task …`: submit tasks to a cluster manager and follow them."""

import sys
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from gpu_orchestrator.cli import client, output, task_rows, waiting, where
from gpu_orchestrator.cli.filters import ALL, Filter
from gpu_orchestrator.cli.options import HERE, AsJson, InUtc, Limit, Offset, Server, TaskId, whole
from gpu_orchestrator.cli.plain import lines
from gpu_orchestrator.cli.tables import Column
from gpu_orchestrator.cli.task_options import USUAL, TaskOptions

app = App(name="task", help="Submit tasks and follow them.")
ORDER = ("submit", "list", "get", "watch", "logs", "stream", "wait", "explain", "cancel", "retry")
"""Of the help page: as one needs them."""
for name, place, line in (
    (
        "watch",
        "watch:watch",
        "Follow the states of tasks, or of one task, as they change. Ctrl-C ends the view.",
    ),
    ("logs", "task_logs:logs", "Show what a task has printed."),
    ("stream", "task_stream:stream", "Show what a task yields or sends before it ends, as it comes."),
    (
        "cancel",
        "task_changes:cancel",
        "Cancel tasks, by id or all that match: waiting ones at once, others through their worker.",
    ),
    (
        "retry",
        "task_changes:retry",
        "Queue tasks again that ended without a result, by id or all that match.",
    ),
):
    app.command(f"gpu_orchestrator.cli.{place}", name=name, help=line, sort_key=ORDER.index(name))


@app.command(sort_key=ORDER.index("submit"))
def submit(
    task_type: str,
    /,
    *parameters: str,
    how: TaskOptions = USUAL,
    depends_on: Annotated[tuple[str, ...], Parameter(metavar="TASK")] = (),
    on_failure: Annotated[Literal["cancel", "run"], Parameter(metavar="cancel|run")] = "cancel",
    not_before: Annotated[str, Parameter(metavar="TIME")] = "",
    expires: Annotated[str, Parameter(metavar="TIME")] = "",
    gang: Annotated[int, Parameter(metavar="N", converter=whole)] = 0,
    gang_same: Annotated[str, Parameter(metavar="LABEL")] = "",
    gang_near: Annotated[str, Parameter(metavar="LABEL")] = "",
    idempotency_key: Annotated[str, Parameter(metavar="KEY")] = "",
    wait: bool = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"))] = False,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Submit a task.

    Parameters
    ----------
    task_type
        Which handler runs it, such as echo or sleep.
    parameters
        For the handler: JSON, `key=value` pairs, `@FILE` with JSON, or `-` for JSON on stdin.
    depends_on
        Begin after this task has ended: its whole id. May be repeated. In the parameters,
        {"$result": "ID"} stands for its result.
    on_failure
        What becomes of it if one of those ends without a result.
    not_before
        Do not begin before this time: 10m from now, or a time such as 2026-01-31T12:00:00Z.
    expires
        End it if it has not begun by this time: 1h from now, or a time such as 2026-01-31T12:00:00Z.
    gang
        Make N tasks that begin together and end together, with ranks from 0.
    gang_same
        All members run on workers with the same value of this label, such as rack.
    gang_near
        The same, if it is possible at once.
    idempotency_key
        Submitting the same key again returns the same task.
    wait
        Wait until it has ended, and exit with 1 if it did not complete.
    quiet
        Print the id alone; with --wait the result alone.
    """
    body = {**how.body(task_type, parameters), "idempotency_key": idempotency_key}
    body |= {name: text for name, text in (("not_before", not_before), ("expires", expires)) if text}
    if depends_on:
        body |= {"depends_on": depends_on, "on_failure": on_failure}
    if gang or gang_same or gang_near:
        body["gang"] = {"size": gang, "same": gang_same, "near": gang_near}
    answer = client.ask(server, "POST", "/tasks", body=body)
    if wait:
        with waiting.interruptible(answer["task_id"]):
            if not quiet:
                output.note(f"task {answer['task_id']}")
            _wait(server, answer["task_id"], as_json=json_, result_alone=quiet)
    elif json_:
        output.show_json(answer)
    elif quiet:
        output.say(answer["task_id"])
    else:
        _show_accepted(answer)


@app.command(sort_key=ORDER.index("get"))
def get(task_id: TaskId, /, *, json_: AsJson = False, utc: InUtc = False, server: Server = HERE) -> None:
    """Show a task: what it needs, where it runs, how far it is, and its result or error."""
    _show_one(client.ask(server, "GET", f"/tasks/{client.part(task_id)}"), as_json=json_, utc=utc)


@app.command(sort_key=ORDER.index("wait"))
def wait(
    task_id: TaskId,
    /,
    *,
    timeout: Annotated[str, Parameter(metavar="TIME")] = "10m",
    json_: AsJson = False,
    utc: InUtc = False,
    server: Server = HERE,
) -> None:
    """Wait until a task has ended and show it; exit with 1 if it did not complete.

    Parameters
    ----------
    timeout
        Give up after this time: seconds, or such as 30m. The task itself goes on.
    """
    from gpu_orchestrator.cli.parameters import seconds

    with waiting.interruptible(task_id):
        _wait(server, task_id, as_json=json_, utc=utc, timeout_s=seconds(timeout, "--timeout"))


@app.command(name="list", sort_key=ORDER.index("list"))
def list_(
    *,
    which: Filter = ALL,
    since: Annotated[str, Parameter(metavar="TIME")] = "",
    wide: Annotated[bool, Parameter(name=("--wide", "-w"))] = False,
    limit: Limit = 50,
    offset: Offset = 0,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """List tasks, newest first.

    Parameters
    ----------
    since
        Only those submitted within this time (30m, 2h, 7d), or since a date such as 2026-01-31.
    wide
        Also show devices, memory, attempt, priority, owner and labels.
    """
    query = [*which.query(), ("since", since), ("limit", limit), ("offset", offset)]
    answer = client.ask(server, "GET", "/tasks", query=query)
    if json_:
        return output.show_json(answer)
    columns, rows = task_rows.table(answer["tasks"], datetime.now(UTC), wide=wide)
    output.show_table(columns, rows)
    shown, total = offset + len(rows), answer.get("total", 0)
    if shown < total and rows:
        output.note(f"{len(rows)} of {total} (--limit, --offset)")
    if not answer.get("complete", True):
        output.note("only the latest tasks were searched; narrow the search with --since or --status")
    return None


def verdict(answer: dict[str, Any]) -> str:
    """Return an explanation in one line; a reason that begins with the state says it once."""
    status, goes_to = answer["status"], answer.get("would_go_to")
    words = answer["reason"] or (f"goes to {goes_to}" if goes_to else "")
    return words if words.startswith(status) else f"{status}: {words}" if words else status


@app.command(sort_key=ORDER.index("explain"))
def explain(task_id: TaskId, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Show why a task waits: every device, and why it cannot be used."""
    answer = client.ask(server, "GET", f"/tasks/{client.part(task_id)}/explain")
    if json_:
        return output.show_json(answer)
    rows = [
        [
            worker["worker_id"],
            device["index"],
            device["model"],
            device["memory_free"],
            device["why"] or "; ".join(worker["why"]) or "fits",
        ]
        for worker in answer["workers"]
        for device in worker["devices"]
    ]
    output.say(lines(verdict(answer)))
    if until := task_rows.expiry(answer, datetime.now(UTC)):
        output.say(lines(f"it {until} if it has not begun by then"))
    if answer["status"] in task_rows.FINAL:
        if place := task_rows.last_place(answer):
            output.say(lines(f"it last ran {place}"))
        return None
    columns = [
        Column("WORKER"),
        Column("DEVICE"),
        Column("MODEL", 2),
        Column("FREE", 1),
        Column("WHY", free=True, below=True),
    ]
    if rows:
        output.show_table(columns, rows)
    if counted := [each["worker_id"] for each in answer["workers"] if _only_counts(each)]:
        output.say(lines(f"reserved GPU memory is counted, not enforced, on {', '.join(counted)}"))
    return None


def _only_counts(worker: dict[str, Any]) -> bool:
    return bool(worker["devices"]) and worker.get("sharing") == "accounted"


def _wait(
    server: Server,
    task_id: str,
    *,
    as_json: bool,
    utc: bool = False,
    timeout_s: float | None = None,
    result_alone: bool = False,
) -> None:
    try:
        answer = waiting.on_terminal(where.find(server), task_id, timeout_s=timeout_s)
    except (client.CannotAsk, where.BadPlace) as error:
        output.fail(error)
    if answer.get("result") is None and answer.get("result_bytes", 0) > len("null"):
        answer["result"] = client.ask(
            server, "GET", answer["result_url"]
        )  # too large to be shown with the task
    if result_alone and not as_json:
        _show_result(answer)
    else:
        _show_one(answer, as_json=as_json, utc=utc)
    if answer["status"] not in task_rows.FINAL:
        task_id = answer["task_id"]
        output.note(f"it has not ended yet; wait again with: {output.PROGRAM} task wait {task_id}")
    elif answer["status"] in task_rows.FAILED:
        output.note(f"see what it printed: {output.PROGRAM} task logs {answer['task_id']}")
    if answer["status"] != "completed":
        sys.exit(1)


def _show_accepted(answer: dict[str, Any]) -> None:
    state = answer["status"], answer.get("estimated_wait_time")
    rows = [[each, *state] for each in answer.get("members") or [answer["task_id"]]]
    output.show_table([task_rows.TASK, task_rows.STATUS, Column("EXPECTED WAIT", 1)], rows)


def _show_one(answer: dict[str, Any], *, as_json: bool, utc: bool = False) -> None:
    if as_json:
        return output.show_json(answer)
    return output.show_card(task_rows.card(answer, datetime.now(UTC), UTC if utc else None))


def _show_result(answer: dict[str, Any]) -> None:
    if answer["status"] == "completed":
        return output.show_json(answer.get("result"))
    return output.note(f"task {answer['task_id']} {answer['status']}: {task_rows.reason(answer)}")
