"""`gpu-orchestrator task cancel|retry`: one task, several, or all that match."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, task_rows
from gpu_orchestrator.cli.filters import ALL, Filter
from gpu_orchestrator.cli.options import HERE, AsJson, Server
from gpu_orchestrator.cli.tables import Column

DONE = {"cancel": "cancelled", "retry": "retried"}
MOST = 1000
"""How many ids one request may name."""
Ids = Annotated[str, Parameter(help="Ids of tasks, or beginnings of ids that no other task has.")]
Everything = Annotated[
    bool, Parameter(name="--all", help="All that can be; only yours, unless you are an admin.")
]


def cancel(
    *task_ids: Ids,
    all_: Everything = False,
    which: Filter = ALL,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Cancel tasks, by id or all that match: waiting ones at once, others through their worker."""
    _change("cancel", task_ids, which, is_all=all_, as_json=json_, server=server)


def retry(
    *task_ids: Ids,
    all_: Everything = False,
    which: Filter = ALL,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Queue tasks again that ended without a result, by id or all that match."""
    _change("retry", task_ids, which, is_all=all_, as_json=json_, server=server)


def _change(
    word: str, task_ids: Sequence[str], which: Filter, *, is_all: bool, as_json: bool, server: Server
) -> None:
    chosen = bool(task_ids) + is_all + (not which.is_empty)
    if chosen != 1:
        what = "one of these, not several" if chosen else "which"
        output.fail(
            f"say {what}: ids of tasks, --all, or --status, --type, --label, --worker, --owner", code=2
        )
    if len(task_ids) == 1:
        return _one(word, task_ids[0], as_json=as_json, server=server)
    bodies: list[dict[str, Any]] = [
        {"task_ids": list(task_ids[at : at + MOST])} for at in range(0, len(task_ids), MOST)
    ]
    found: list[dict[str, Any]] = []
    left, is_complete = 0, True
    for body in bodies or [{"all": True} if is_all else which.body()]:
        answer = client.ask(server, "POST", f"/tasks/{word}", body=body, answer_s=10 * client.ANSWER_S)
        found += answer["tasks"]
        left += answer.get("remaining", 0)
        is_complete = is_complete and answer.get("complete", True)
    if as_json:
        output.show_json({"tasks": found, "total": len(found)})
    else:
        _show(word, found)
    if left:
        output.note(f"{left} more match; run the command again")
    elif not is_complete:
        output.note("there are too many tasks to search all of them; more may match")
    if task_ids and (failed := sum(bool(each.get("error")) for each in found)):
        output.fail(f"{failed} of {len(found)} tasks could not be {DONE[word]}; ERROR says why")
    return None


def _one(word: str, task_id: str, *, as_json: bool, server: Server) -> None:
    path = f"/tasks/{client.part(task_id)}"
    answer = (
        client.ask(server, "DELETE", path)
        if word == "cancel"
        else client.ask(server, "POST", f"{path}/retry")
    )
    if as_json:
        return output.show_json(answer)
    return output.show_table([task_rows.TASK, task_rows.STATUS], [[answer["task_id"], answer["status"]]])


def _show(word: str, found: Sequence[dict[str, Any]]) -> None:
    if not found:
        return output.note(f"no task to {word}")
    columns = [task_rows.TASK, task_rows.STATUS, Column("ERROR", 1, free=True)]
    return output.show_table(
        columns, [[each["task_id"], each.get("status"), each.get("error")] for each in found]
    )
