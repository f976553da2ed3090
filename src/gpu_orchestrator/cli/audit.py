"""`gpu-orchestrator audit`: who changed what, newest first."""

from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, times
from gpu_orchestrator.cli.options import HERE, AsJson, InUtc, Limit, Server
from gpu_orchestrator.cli.tables import Column

COLUMNS = (
    Column("TIME"),
    Column("OWNER", 2),
    Column("ACTION"),
    Column("OBJECT", below=True),
    Column("STATUS", 1, paint=lambda word: "red" if word >= "400" else "green"),
    Column("KEY", 4),
    Column("SOURCE", 5),
    Column("NUMBER", 6),
)


def row(entry: dict[str, Any], now: datetime, zone: tzinfo | None = None) -> list[object]:
    """Return an entry as cells."""
    return [
        times.clock(times.parse(entry["time"]), now, zone),
        entry["owner"],
        entry["action"],
        entry["object"],
        entry["status"],
        entry["key_id"],
        entry["source"],
        entry["number"],
    ]


def audit(
    *,
    limit: Limit = 50,
    before: Annotated[int, Parameter(metavar="NUMBER")] = 0,
    json_: AsJson = False,
    utc: InUtc = False,
    server: Server = HERE,
) -> None:
    """Show who changed what, newest first; also what was refused.

    Parameters
    ----------
    before
        Begin below this number, to go further back.
    """
    answer = client.ask(server, "GET", "/audit", query={"limit": limit, "before": before or None})
    if json_:
        return output.show_json(answer)
    now, zone = datetime.now(UTC), UTC if utc else None
    output.show_table(COLUMNS, [row(each, now, zone) for each in answer["entries"]])
    if words := more(answer):
        output.note(words)
    return None


def more(answer: dict[str, Any]) -> str:
    """Return how to see the rest; empty if this is all."""
    shown, total = len(answer["entries"]), answer["total"]
    if not answer.get("next") or shown >= total:
        return ""
    return f"{shown} of {total} (--limit, --before {answer['next']})"
