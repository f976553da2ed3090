"""`gpu-orchestrator task logs`: what a task has printed, all of it or as it comes."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, where
from gpu_orchestrator.cli.options import HERE, Server, TaskId, whole
from gpu_orchestrator.cli.plain import output_of_a_program
from gpu_orchestrator.cli.where import Place


def logs(
    task_id: TaskId,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    tail: Annotated[int | None, Parameter(name=("--tail", "-n"), metavar="N", converter=whole)] = None,
    server: Server = HERE,
) -> None:
    """Show what a task has printed.

    Parameters
    ----------
    follow
        Go on until the task has ended.
    tail
        Only the last lines of what it has printed so far.
    """
    if tail is not None and tail < 0:
        output.fail(f"--tail {tail} is not a number of lines; write 0 or more", code=2)
    try:
        place = where.find(server)
        at = _so_far(place, task_id, tail)
        if follow and not output.is_gone():
            _follow(place, task_id, at)
    except (client.CannotAsk, where.BadPlace) as error:
        output.fail(error)


def _so_far(place: Place, task_id: str, tail: int | None) -> int:
    """Print what is kept, and return where it ends."""
    at, kept = 0, []
    for page in _pages(place, task_id):
        if page.get("omitted_bytes") and not at:
            output.note(f"the first {page['omitted_bytes']} bytes are no longer kept")
        at = page["next"]
        if tail is None:
            _write(page["text"])
        else:
            kept.append(page["text"])
    if tail is not None:
        _write(last_lines("".join(kept), tail))
    return at


def _pages(place: Place, task_id: str) -> Iterator[dict[str, Any]]:
    at = 0
    while True:
        page = client.request(place, "GET", f"/tasks/{client.part(task_id)}/logs", query={"after": at})
        yield page
        if page["next"] <= at or not page["text"]:
            return
        at = page["next"]


def _follow(place: Place, task_id: str, at: int) -> None:
    path = f"/tasks/{client.part(task_id)}/logs"
    for event in client.follow(place, path, query={"after": at}, after=str(at)):
        if event.name == "end":
            return
        if event.name == "log" and event.data:
            if missed := event.data.get("omitted_bytes"):
                output.note(f"{missed} bytes are not kept")
            _write(event.data.get("text", ""))
        if output.is_gone():
            return


def last_lines(text: str, count: int) -> str:
    """Return the last lines of a text."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[-count:]) if count else ""


def _write(text: str) -> None:
    """Print the text as it is; on a terminal without what could change the terminal."""
    if output.is_terminal(sys.stdout):
        text = output_of_a_program(text)
    sys.stdout.write(text)
    sys.stdout.flush()
