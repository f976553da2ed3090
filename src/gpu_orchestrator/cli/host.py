"""What `up` and `server` have in common: settings, keys, the lock on the data directory, and a clean end."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters import logs, settings
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.adapters.store.errors import Occupied, StoreError, Unfit
from gpu_orchestrator.apps.cluster import keys, server
from gpu_orchestrator.policies.registry import UnknownPolicy

KNOWN_ERRORS = (BadSettings, StoreError, server.CannotListen, UnknownPolicy)


@dataclass(frozen=True, slots=True)
class Secrets:
    """`fresh`: the key was made just now and is shown once."""

    api_key: str
    worker_token: str
    fresh: bool


@dataclass(frozen=True, slots=True)
class Host:
    server: server.Running
    secrets: Secrets
    settings: Settings


@contextlib.asynccontextmanager
async def hosting(given: Mapping[str, Any], *, insecure: bool = False) -> AsyncIterator[Host]:
    """A running server with its keys."""
    chosen = settings.load(**given)
    logs.configure(1 if chosen.log_level == "DEBUG" else 0)
    folder = Path(chosen.data_dir)
    with _locked(folder) as note:
        secrets = _secrets(chosen, folder)
        known = keys.Keys(
            [keys.key_of(secrets.api_key, "admin"), keys.key_of(secrets.worker_token, "worker")]
        )
        async with server.running(chosen, known, insecure=insecure) as running:
            note(running.url)
            _write_private(folder / "client.json", json.dumps({"url": running.url, "key": secrets.api_key}))
            yield Host(running, secrets, chosen)


async def serve(given: Mapping[str, Any], *, insecure: bool = False) -> int:
    try:
        async with hosting(given, insecure=insecure) as host:
            print(f"listening on {host.server.url}; keys are in {host.settings.data_dir}", file=sys.stderr)
            await until_told_to_end()
    except KNOWN_ERRORS as error:
        print(f"gpu-orchestrator: {error}", file=sys.stderr)
        return 1
    return 0


async def until_told_to_end() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


@contextlib.contextmanager
def _locked(folder: Path):  # type: ignore[no-untyped-def]
    """One process per data directory; a second one is told where the first one listens."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unfit(
            f"the data directory {folder} cannot be written: {error.strerror}; give another with --data"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        where = os.read(handle, 200).decode(errors="replace").strip() or "another process"
        os.close(handle)
        raise Occupied(
            f"{folder} is in use: {where}; use that one, end it, or give another --data"
        ) from error

    def note(url: str) -> None:
        os.pwrite(handle, f"process {os.getpid()} listens on {url}\n".encode(), 0)

    os.ftruncate(handle, 0)
    try:
        yield note
    finally:
        os.close(handle)


def _secrets(chosen: Settings, folder: Path) -> Secrets:
    """The configured key, or the one made at the first start."""
    path = folder / "keys.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    api_key = chosen.api_key or kept.get("api_key") or keys.make()
    token = _worker_token(chosen) or kept.get("worker_token") or keys.make()
    fresh = not chosen.api_key and "api_key" not in kept
    _write_private(path, json.dumps({"api_key": api_key, "worker_token": token}))
    return Secrets(api_key, token, fresh)


def _worker_token(chosen: Settings) -> str:
    if not chosen.worker_token_file:
        return ""
    try:
        return Path(chosen.worker_token_file).read_text().strip()
    except OSError as error:
        raise BadSettings(
            f"WORKER_TOKEN_FILE={chosen.worker_token_file} is not allowed: {error.strerror}; give a file to read"
        ) from error


def _write_private(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    new.replace(path)
