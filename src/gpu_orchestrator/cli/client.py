"""Shared by the client commands: where the server is, one request at a time, tables or JSON."""

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
from rich.text import Text

from gpu_orchestrator.adapters import settings, tls
from gpu_orchestrator.cli.plain import plain

console = Console()
CA = "GPU_ORCHESTRATOR_CA"


class CannotAsk(Exception):
    """The server does not answer, or refused the request; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Where:
    """`ca` is a file with the certificates to trust; if empty, those of the system."""

    url: str
    key: str
    ca: str = ""


def where() -> Where:
    """Return GPU_ORCHESTRATOR_URL, API_KEY or API_KEY_FILE, and --ca; or what `up` left for its own machine.
    That key is for that server only: no other server receives it."""
    chosen = settings.load()
    url, key, ca = os.environ.get("GPU_ORCHESTRATOR_URL", ""), chosen.api_key, os.environ.get(CA, "")
    kept = Path(chosen.data_dir) / "client.json"
    found = json.loads(kept.read_text()) if not (url and key) and kept.exists() else {}
    if found and url.rstrip("/") in ("", found["url"]):
        ca = ca or found.get("ca", "")
        url, key = found["url"], key or found["key"]
    return Where(url or "http://127.0.0.1:8000", key, ca)


def ask(method: str, path: str, *, body: Any = None, **query: Any) -> Any:
    """Send one request; return the decoded answer, or exit with a line that says what is wrong."""
    try:
        return asyncio.run(_ask(where(), method, path, body, query))
    except (CannotAsk, settings.BadSettings, tls.BadCertificate) as error:
        sys.exit(f"gpu-orchestrator: {error}")


async def _ask(place: Where, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
    asked = {name: str(value) for name, value in query.items() if value not in (None, "")}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    headers = {"Authorization": f"Bearer {place.key}"} if place.key else {}
    trust = tls.client(place.ca) if place.url.startswith("https:") else True
    try:
        async with (
            aiohttp.ClientSession(place.url, headers=headers, timeout=timeout) as session,
            session.request(method, f"/api/v1{path}", json=body, params=asked, ssl=trust) as response,
        ):
            answer = json.loads(await response.read() or b"null")
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
        raise CannotAsk(
            f"the certificate of {place.url} is not trusted ({error}); "
            "give the certificate of its issuer with --ca FILE"
        ) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise CannotAsk(
            f"no cluster manager answers at {place.url} ({error}); start one with `gpu-orchestrator up`, "
            "or set GPU_ORCHESTRATOR_URL and API_KEY"
        ) from error
    if response.status >= 400:
        raise CannotAsk(answer["error"]["message"] if isinstance(answer, dict) else str(answer))
    return answer


def show(answer: Any, *, as_json: bool, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """Print a table or JSON. `columns` are headings and the fields under them."""
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in columns:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(_cell(row.get(field)) for field in columns.values()))
    console.print(table)


def _cell(value: Any) -> Text:
    if value is None or value == "":
        return plain("-")
    return plain(value if isinstance(value, str) else json.dumps(value))
