"""`gpu-orchestrator task watch`: follow the states of tasks.

On a terminal the list is drawn again as it changes. In a pipe each change is one line, from the events of the
server, so that none is missed.
"""

import json
import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, task_rows, times, waiting, where
from gpu_orchestrator.cli.events import task_line
from gpu_orchestrator.cli.filters import ALL, Filter
from gpu_orchestrator.cli.options import HERE, InUtc, Server
from gpu_orchestrator.cli.plain import lines
from gpu_orchestrator.cli.tables import INDENT, Page, painted, state_colour, table
from gpu_orchestrator.cli.where import Place

DRAW_S = 1.0
ASK_S = 2.0
LONGER_S = 5.0
"""A key that somebody was given may send a thousand requests an hour: after a while ask less often."""
SOON = 60
LINES_BELOW = 2


def watch(
    task_id: Annotated[
        str, Parameter(help="Follow this task until it has ended; without it, all tasks.")
    ] = "",
    /,
    *,
    which: Filter = ALL,
    json_: Annotated[bool, Parameter(name="--json", help="Print one JSON object for each change.")] = False,
    utc: InUtc = False,
    server: Server = HERE,
) -> None:
    """Follow the states of tasks, or of one task, as they change. Ctrl-C ends the view."""
    try:
        place = where.find(server)
        if task_id:
            _one(place, task_id, as_json=json_, utc=utc)
        elif output.is_terminal(sys.stdout) and not json_:
            _list(place, which)
        elif which.is_empty:
            _changes(place, as_json=json_, utc=utc)
        else:
            output.fail(
                "without a terminal, all changes are shown; choose with grep instead of options", code=2
            )
    except (client.CannotAsk, where.BadPlace) as error:
        output.fail(error)


def _one(place: Place, task_id: str, *, as_json: bool, utc: bool) -> None:
    last: list[object] = []
    page = output.page()

    def shown(task: dict[str, Any]) -> None:
        new = [task["status"], task.get("progress"), task.get("attempt"), task.get("reason")]
        if new == last:
            return None
        last[:] = new
        now = datetime.now(UTC)
        if as_json:
            return output.say(json.dumps(task))
        words = lines(task_rows.line(task, now)).replace("\n", " ")
        colour = state_colour(task["status"])
        state, rest = task["status"], words[len(task["status"]) :]
        return output.say(
            f"{times.clock(now, now, UTC if utc else None)}  {painted(state, colour, page)}{rest}"
        )

    task = waiting.until_ended(place, task_id, shown=shown)
    shown(task)
    if task["status"] != "completed":
        sys.exit(1)


def _changes(place: Place, *, as_json: bool, utc: bool) -> None:
    for event in client.follow(place, "/events"):
        if event.name.startswith("task_"):
            output.say(
                json.dumps(event.data) if as_json else task_line(event.data, datetime.now(UTC), utc=utc)
            )
        if output.is_gone():
            return


def _list(place: Place, which: Filter) -> None:
    """Draw the list until Ctrl-C; between two answers only the times move."""
    drawn, asked, next_s = 0, 0, 0.0
    tasks: list[dict[str, Any]] = []
    total, trouble = 0, ""
    while not output.is_gone():
        if time.monotonic() >= next_s:
            pause_s = ASK_S if asked < SOON else LONGER_S
            asked += 1
            try:
                limit = max(output.size()[1] - LINES_BELOW - 2, 1)
                answer = client.request(place, "GET", "/tasks", query=[*which.query(), ("limit", limit)])
                tasks, total, trouble = answer["tasks"], answer["total"], ""
            except client.Refused as error:
                if not error.retry_after_s:
                    raise
                pause_s, trouble = max(error.retry_after_s, pause_s), str(error)
            except client.Unreachable as error:
                if asked == 1:
                    raise
                trouble = str(error)
            next_s = time.monotonic() + pause_s
        most = max(output.size()[1] - LINES_BELOW - 1, 2)
        drawing = picture(tasks, total, trouble, datetime.now(UTC), output.page(), most)
        sys.stdout.write(f"\x1b[{drawn}A\r\x1b[J" if drawn else "")
        output.say(*drawing)
        drawn = len(drawing)
        time.sleep(DRAW_S)


def picture(
    tasks: list[dict[str, Any]], total: int, trouble: str, now: datetime, page: Page, most: int
) -> list[str]:
    """Return the lines to draw, with at most `most` lines of the table."""
    columns, rows = task_rows.table(tasks, now)
    body = table(columns, rows, page)[:most]
    count = sum(not line.startswith(INDENT) for line in body[1:])
    shown = f"{count} of {total}" if total > count else f"{total}"
    below = trouble or f"{shown} tasks; Ctrl-C ends this view, not the tasks"
    return [*body, "", painted(below[: page.width], "dim", page)]
