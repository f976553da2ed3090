"""`gpu-orchestrator login` and `logout`: store the address of a server and your key for it."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from gpu_orchestrator.adapters import private_files
from gpu_orchestrator.cli import client, output, where
from gpu_orchestrator.cli.options import Server
from gpu_orchestrator.cli.where import Place

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def login(
    url: Annotated[str, Parameter(help="The server's address; by default the one in use.")] = "",
    /,
    *,
    key_file: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    ca: Annotated[Path | None, Parameter(metavar="FILE")] = None,
) -> None:
    """Store the address of a server and your key for it, once the server has accepted the key. All commands
    then use them, until `logout`.

    Parameters
    ----------
    key_file
        A file with the key; by default it is asked for, or read from stdin.
    ca
        A file with the certificates to trust, for a server whose certificate the system does not trust.
    """
    try:
        address = where.checked(url, "URL") if url else where.find(Server(ca=ca)).url
        key = (
            where.read_key(key_file, "--key-file")
            if key_file
            else where.checked_key(_typed(address), "stdin")
        )
        place = Place(address, key, str(ca.absolute()) if ca else "", found="--url", key_found="login")
        mine = client.request(place, "GET", "/limits")
    except client.Refused as error:
        output.fail(_refused(error, key, address))
    except (client.CannotAsk, where.BadPlace) as error:
        output.fail(error)
    path = where.login_file()
    _store(path, {"url": address, "key": key, "ca": place.ca})
    output.say(f"logged in to {address} as {mine['owner']} (key {mine['key_id']}); stored in {path}")
    if address.startswith("http://") and urlsplit(address).hostname not in LOOPBACK:
        output.note("beware: the address is http://, so the key travels in clear; ask for https://")
    if others := [
        name for name in ("GPU_ORCHESTRATOR_URL", "API_KEY", "API_KEY_FILE") if os.environ.get(name)
    ]:
        output.note(
            f"{' and '.join(others)} in your environment still go first; unset them to use this login"
        )


def logout() -> None:
    """Forget what `login` stored. The key stays valid; its operator can revoke it."""
    path = where.login_file()
    try:
        path.unlink()
    except FileNotFoundError:
        return output.say("you are not logged in")
    except OSError as error:
        output.fail(f"{path} cannot be removed: {(error.strerror or str(error)).lower()}")
    return output.say(f"logged out: {path} is removed")


def _typed(address: str) -> str:
    """Return the key from stdin; on a terminal it is not shown while it is typed."""
    if sys.stdin is None:
        return ""
    if not sys.stdin.isatty():
        return sys.stdin.read(10_000).strip()
    from getpass import getpass

    try:
        return getpass(f"key for {address}: ").strip()
    except EOFError:
        return ""


def _refused(error: client.Refused, key: str, address: str) -> str:
    if error.status == 401:
        return f"{address} does not accept this key; ask its operator for another. Nothing was stored"
    if error.status == 403:
        return (
            "this is a key for workers, not for commands; use it with: "
            f"{output.PROGRAM} worker --server {address}. Nothing was stored"
        )
    return str(error)


def _store(path: Path, content: dict[str, str]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        private_files.write(path, json.dumps(content))
    except OSError as error:
        output.fail(
            f"{path} cannot be written: {(error.strerror or str(error)).lower()}; set XDG_CONFIG_HOME"
        )
