"""What the client commands share: where the server is, one request at a time, tables or JSON."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from gpu_orchestrator.adapters import settings

console = Console()


class CannotAsk(Exception):
    """The server is not there, or said no; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Where:
    url: str
    key: str


def where() -> Where:
    """GPU_ORCHESTRATOR_URL and API_KEY, or what `up` left for its own machine."""
    url, key = os.environ.get("GPU_ORCHESTRATOR_URL", ""), os.environ.get("API_KEY", "")
    kept = Path(settings.load().data_dir) / "client.json"
    if not (url and key) and kept.exists():
        found = json.loads(kept.read_text())
        url, key = url or found["url"], key or found["key"]
    return Where(url or "http://127.0.0.1:8000", key)


def ask(method: str, path: str, *, body: Any = None, **query: Any) -> Any:
    """One request; the decoded answer, or exit with a line that says what is wrong."""
    try:
        return asyncio.run(_ask(where(), method, path, body, query))
    except (CannotAsk, settings.BadSettings) as error:
        sys.exit(f"gpu-orchestrator: {error}")


async def _ask(place: Where, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
    asked = {name: str(value) for name, value in query.items() if value not in (None, "")}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    headers = {"Authorization": f"Bearer {place.key}"}
    try:
        async with (
            aiohttp.ClientSession(place.url, headers=headers, timeout=timeout) as session,
            session.request(method, f"/api/v1{path}", json=body, params=asked) as response,
        ):
            answer = json.loads(await response.read() or b"null")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise CannotAsk(
            f"no cluster manager answers at {place.url} ({error}); start one with `gpu-orchestrator up`, "
            "or set GPU_ORCHESTRATOR_URL and API_KEY"
        ) from error
    if response.status >= 400:
        raise CannotAsk(answer["error"]["message"] if isinstance(answer, dict) else str(answer))
    return answer


def show(answer: Any, *, as_json: bool, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """`columns` are headings and the fields under them."""
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in columns:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(_cell(row.get(field)) for field in columns.values()))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
