"""`gpu-orchestrator key create|list|revoke|limits|show`: who may use a cluster manager, and how much."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from gpu_orchestrator.cli import client, output, times, where
from gpu_orchestrator.cli.mistakes import unknown
from gpu_orchestrator.cli.options import HERE, AsJson, Limit, Offset, Server
from gpu_orchestrator.cli.tables import Column, state_colour

app = App(name="key", help="Create, list and revoke keys.")
Scope = Literal["read", "submit", "admin", "worker"]
LIMITS = {
    "requests_per_minute": "requests a minute",
    "requests_per_hour": "requests an hour",
    "queued_tasks": "waiting tasks",
    "running_tasks": "running tasks",
    "gpu_seconds_per_day": "GPU seconds a day",
    "weight": "weight",
}
COLUMNS = (
    Column("KEY"),
    Column("NAME", 1),
    Column("OWNER", 4),
    Column("SCOPES", 2),
    Column("STATUS", 3, paint=state_colour),
    Column("EXPIRES", 5),
    Column("LAST USED", 6),
    Column("LIMITS", free=True, below=True),
)


@app.command
def create(
    name: str,
    /,
    *,
    scope: tuple[Scope, ...] = ("submit",),
    owner: str = "",
    expires: Annotated[str, Parameter(metavar="TIME")] = "",
    limit: Annotated[tuple[str, ...], Parameter(metavar="NAME=NUMBER")] = (),
    pool: Annotated[tuple[str, ...], Parameter(metavar="NAME")] = (),
    worker: Annotated[str, Parameter(metavar="NAME")] = "",
    json_: AsJson = False,
    server: Server = HERE,
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
        How long it is valid, such as 12h or 90d; until it is revoked if not given.
    limit
        requests_per_minute, requests_per_hour, queued_tasks, running_tasks, gpu_seconds_per_day or weight;
        0 for no limit. May be repeated.
    pool
        Its tasks run in this pool of workers alone. May be repeated.
    worker
        The one worker that may join with it, for scope worker; '*' for any number of them. By default the
        first that joins with it.
    """
    body: dict[str, Any] = {"name": name, "scopes": list(scope)}
    if owner:
        body["owner"] = owner
    if expires:
        body["expires_in"] = _seconds(expires)
    if limit or pool:
        body["limits"] = {**_limits(limit), **({"pools": list(pool)} if pool else {})}
    if worker:
        body["worker"] = worker
    answer = client.ask(server, "POST", "/keys", body=body)
    if json_:
        return output.show_json(answer)
    output.show_card(_card(answer, datetime.now(UTC)))
    return output.say("", answer["key"], "", *_what_to_do(answer, where.find(server).url))


@app.command(name="list")
def list_(
    *,
    owner: str = "",
    limit: Limit = 100,
    offset: Offset = 0,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """List keys, without their secrets.

    Parameters
    ----------
    owner
        Only keys of this owner.
    """
    answer = client.ask(server, "GET", "/keys", query={"owner": owner, "limit": limit, "offset": offset})
    if json_:
        return output.show_json(answer)
    now = datetime.now(UTC)
    rows = [row(each, now) for each in answer["keys"]]
    output.show_table(COLUMNS, rows)
    if rows and offset + len(rows) < answer.get("total", 0):
        output.note(f"{len(rows)} of {answer['total']} (--limit, --offset)")
    return None


@app.command
def revoke(
    key_id: Annotated[str, Parameter(help="The key's id, as `key list` shows it.")],
    /,
    *,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Revoke a key permanently; every server refuses it within a second."""
    answer = client.ask(server, "DELETE", f"/keys/{client.part(key_id)}")
    if json_:
        return output.show_json(answer)
    return output.show_card(_card(answer, datetime.now(UTC)))


@app.command
def limits(*, json_: AsJson = False, server: Server = HERE) -> None:
    """Show the limits of your own key, and how much of them is used now."""
    answer = client.ask(server, "GET", "/limits")
    if json_:
        return output.show_json(answer)
    rows = [
        [LIMITS.get(name, name), f"{each['used']:g}", f"{each['most']}" if each["most"] else "no limit"]
        for name, each in answer.items()
        if isinstance(each, dict)
    ]
    output.show_table([Column("LIMIT"), Column("USED"), Column("AT MOST")], rows)
    if answer["held_back"]:
        output.note(answer["held_back"])
    return None


@app.command
def show(*, server: Server = HERE) -> None:
    """Print the key that the commands on this machine use, alone on one line: for scripts."""
    try:
        place = where.find(server)
    except where.BadPlace as error:
        output.fail(error)
    if not place.key:
        output.fail(
            f"this machine has no key for {place.url}; "
            f"run `{output.PROGRAM} login {place.url}`, or set API_KEY"
        )
    output.say(place.key)


def row(key: dict[str, Any], now: datetime) -> list[object]:
    """Return a key as cells."""
    is_own = key.get("configured")
    used = times.parse(key.get("last_used_at"))
    return [
        key["key_id"],
        key["name"],
        key["owner"],
        _scopes(key),
        key["status"],
        times.ago(times.parse(key.get("expires_at")), now) or "never",
        times.ago(used, now) or "never",
        "no limits" if is_own else limits_in_words(key.get("limits") or {}) or "the server's limits",
    ]


def _scopes(key: dict[str, Any]) -> str:
    worker = key.get("worker") or "*"
    return ",".join(key["scopes"]) + (f" of {worker}" if worker != "*" else "")


def limits_in_words(given: dict[str, Any]) -> str:
    parts = []
    for name, value in given.items():
        if name == "pools":
            parts += [f"only in {'pool' if len(value) == 1 else 'pools'} {', '.join(value)}"] if value else []
            continue
        words = LIMITS.get(name, name)
        if value == 1:  # `1 running task`, `1 request a minute`
            words = re.sub(r"(request|task|second)s\b", r"\1", words)
        if value is None or (name == "weight" and value == 1):
            continue
        parts.append(f"{words} {value:g}" if name == "weight" else f"{value or 'any number of'} {words}")
    return ", ".join(parts)


def _card(key: dict[str, Any], now: datetime) -> list[tuple[str, object]]:
    names = ("key", "name", "owner", "scopes", "status", "expires", "last used", "limits")
    return list(zip(names, row(key, now), strict=True))


def _what_to_do(key: dict[str, Any], url: str) -> list[str]:
    kept = "It is not shown again: only its hash is kept."
    if key["scopes"] == ["worker"]:
        return [
            kept,
            f"Put it into a file there, then: {output.PROGRAM} worker --server {url} --token-file FILE",
        ]
    return [kept, f"Give it to {key['owner']}, for: {output.PROGRAM} login {url}"]


def _limits(given: tuple[str, ...]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for each in given:
        pair = re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)", each)
        if not pair:
            output.fail(f"--limit {each} is not a limit; write for example running_tasks=4")
        if pair[1] not in LIMITS:
            output.fail(unknown("limit", pair[1], LIMITS))
        number = float(pair[2])
        numbers[pair[1]] = int(number) if number.is_integer() else number
    return numbers


def _seconds(given: str) -> float:
    try:
        return times.seconds(given)
    except ValueError as error:
        output.fail(f"--expires {error}")
