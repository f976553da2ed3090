"""`gpu-orchestrator audit`: who changed what, newest first."""

from typing import Annotated

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(name="--json", negative="")]
COLUMNS = {
    "NUMBER": "number",
    "TIME": "time",
    "KEY": "key_id",
    "OWNER": "owner",
    "ACTION": "action",
    "OBJECT": "object",
    "STATUS": "status",
    "SOURCE": "source",
}


def audit(*, limit: int = 50, before: int = 0, json_: AsJson = False) -> None:
    """Show the audit log.

    Parameters
    ----------
    limit
        How many entries to show.
    before
        Begin below this number, to go further back.
    json_
        Print JSON.
    """
    from gpu_orchestrator.cli.client import ask, show

    answer = ask("GET", "/audit", limit=limit, before=before)
    show(answer, as_json=json_, columns=COLUMNS, rows=answer["entries"])
