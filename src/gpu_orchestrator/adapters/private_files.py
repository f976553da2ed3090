"""Small files that only their owner may read, written whole or not at all: keys, tokens, addresses."""

import json
import os
from pathlib import Path
from typing import Any

CLIENT = "client.json"
"""In the data directory: what clients on the machine of a server need, `url`, `key` and `ca`."""
TOKEN = "worker-token"  # noqa: S105 - a file name
"""In the data directory: the token with which workers join."""


def read(path: Path) -> str:
    """Return the text without surrounding whitespace; empty if there is no such file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file; empty if there is none, or if a crash left half of one."""
    try:
        found = json.loads(read(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, text: str) -> None:
    """Replace the file. After a crash at any moment it holds the old text or the new one."""
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)
    new.replace(path)
