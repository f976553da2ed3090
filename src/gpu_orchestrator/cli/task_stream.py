"""`gpu-orchestrator task stream`: the partial results of a task, as they come."""

import json
import sys
from secrets import token_hex
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, where
from gpu_orchestrator.cli.options import HERE, Server, TaskId
from gpu_orchestrator.cli.plain import output_of_a_program
from gpu_orchestrator.cli.where import Place


def stream(
    task_id: TaskId,
    /,
    *,
    text: Annotated[bool, Parameter(name=("--text", "-t"))] = False,
    after: Annotated[str, Parameter(metavar="PLACE")] = "",
    server: Server = HERE,
) -> None:
    """Show what a task yields or sends before it ends, until it has ended: one JSON value on each line.

    Parameters
    ----------
    text
        Print texts as they are, one behind the other, such as the tokens of an answer.
    after
        Go on behind this place, such as 1-250: the first attempt, and 250 of its values.
    """
    try:
        status = _follow(where.find(server), task_id, after, is_text=text)
    except (client.CannotAsk, where.BadPlace) as error:
        output.fail(error)
    if status not in ("completed", ""):
        output.fail(f"the task is {status}; see why: gpu-orchestrator task get {task_id}")


def _follow(place: Place, task_id: str, after: str, *, is_text: bool) -> str:
    """Print values until the task has ended, and return how; empty if nobody reads them any more."""
    path, query = f"/tasks/{client.part(task_id)}/stream", {"reader": f"cli-{token_hex(8)}"}
    at, has_shown = after, bool(after)
    while True:
        for event in client.follow(place, path, query=query, after=at):
            at = event.id or at
            match event.name:
                case "attempt" if has_shown:
                    output.note(f"attempt {event.data['attempt']} began; what came before is superseded")
                case "values":
                    has_shown = True
                    if missed := event.data["missed"]:
                        output.note(f"{missed} values are not kept")
                    _write(event.data["values"], is_text=is_text)
                case "end":
                    return str(event.data["status"])
                case "more":
                    break
            if output.is_gone():
                return ""


def _write(values: list[Any], *, is_text: bool) -> None:
    """Print values; on a terminal without what could change the terminal."""
    if is_text:
        written = "".join(value if isinstance(value, str) else f"{_json(value)}\n" for value in values)
    else:
        written = "".join(f"{_json(value)}\n" for value in values)
    sys.stdout.write(output_of_a_program(written) if output.is_terminal(sys.stdout) else written)
    sys.stdout.flush()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
