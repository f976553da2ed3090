"""`gpu-orchestrator key create|list|revoke|limits`: who may use a cluster manager, and how much."""

import re
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

app = App(name="key", help="Create, list and revoke keys.")
AsJson = Annotated[bool, Parameter(name="--json", negative="")]
COLUMNS = {
    "KEY": "key_id",
    "NAME": "name",
    "OWNER": "owner",
    "SCOPES": "scopes",
    "STATUS": "status",
    "EXPIRES": "expires_at",
    "LAST USED": "last_used_at",
}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command
def create(
    name: str,
    /,
    *,
    scope: tuple[str, ...] = ("submit",),
    owner: str = "",
    expires: str = "",
    limit: tuple[str, ...] = (),
    json_: AsJson = False,
) -> None:
    """Create a key and show it, only this once.

    Parameters
    ----------
    name
        Its name in lists and in the audit log.
    scope
        read, submit (which includes read), admin (all) or worker. May be repeated.
    owner
        Whose it is: keys of one owner share their tasks. The name if not given.
    expires
        How long it is valid, such as 12h or 90d; for good if not given.
    limit
        `name=number` such as requests_per_minute=600, queued_tasks=1000, running_tasks=4,
        gpu_seconds_per_day=3600 or weight=2; 0 for no limit. May be repeated.
    json_
        Print JSON.
    """
    from gpu_orchestrator.cli.client import ask

    body: dict[str, Any] = {"name": name, "scopes": list(scope)}
    if owner:
        body["owner"] = owner
    if expires:
        body["expires_in"] = _seconds(expires)
    if limit:
        body["limits"] = _limits(limit)
    answer = ask("POST", "/keys", body=body)
    _show(answer, [answer], as_json=json_)
    if not json_:
        print(f"\n{answer['key']}\n\nIt is not shown again: only its hash is kept.")


@app.command(name="list")
def list_(*, owner: str = "", limit: int = 100, offset: int = 0, json_: AsJson = False) -> None:
    """List keys, without their secrets."""
    from gpu_orchestrator.cli.client import ask

    answer = ask("GET", "/keys", owner=owner, limit=limit, offset=offset)
    _show(answer, answer["keys"], as_json=json_)


@app.command
def revoke(key_id: str, /, *, json_: AsJson = False) -> None:
    """Revoke a key for good; every server refuses it within a second."""
    from gpu_orchestrator.cli.client import ask

    answer = ask("DELETE", f"/keys/{key_id}")
    _show(answer, [answer], as_json=json_)


@app.command
def limits(*, json_: AsJson = False) -> None:
    """Show the limits of your own key, and how much of them is used now."""
    from gpu_orchestrator.cli.client import ask, show

    answer = ask("GET", "/limits")
    rows = [
        {
            "what": name,
            "used": f"{each['used']:g}",
            "most": f"{each['most']}" if each["most"] else "any number",
        }
        for name, each in answer.items()
        if isinstance(each, dict)
    ]
    show(answer, as_json=json_, columns={"WHAT": "what", "USED": "used", "MOST": "most"}, rows=rows)
    if answer["held_back"] and not json_:
        print(answer["held_back"])


def _show(answer: Any, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from gpu_orchestrator.cli.client import show

    rows = [{**row, "scopes": ",".join(row["scopes"])} for row in rows]
    show(answer, as_json=as_json, columns=COLUMNS, rows=rows)


def _limits(given: tuple[str, ...]) -> dict[str, float]:
    pairs = [re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)", each) for each in given]
    for each, pair in zip(given, pairs, strict=True):
        if not pair:
            sys.exit(f"gpu-orchestrator: --limit {each} is not a limit; write for example running_tasks=4")
    numbers = {pair[1]: float(pair[2]) for pair in pairs if pair}
    return {name: int(number) if number.is_integer() else number for name, number in numbers.items()}


def _seconds(given: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", given)
    if not found:
        sys.exit(f"gpu-orchestrator: --expires {given} is not a duration; write for example 30m, 12h or 90d")
    return float(found[1]) * UNITS[found[2]]
