"""What `up` and `server` have in common: settings, keys, the lock on the data directory, and a clean end."""

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters import logs, settings
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.adapters.store.errors import Occupied, StoreError, Unfit
from gpu_orchestrator.apps.cluster import keys, server
from gpu_orchestrator.policies.registry import UnknownPolicy

CLIENT = "client.json"
LOG = "manager.log"
TOKEN = "worker-token"  # noqa: S105 - a file name
COLLECT = (20_000, 20, 50)
"""Rarer than by default: our values hold no cycles, so there is little to find."""
KNOWN_ERRORS = (BadSettings, StoreError, server.CannotListen, UnknownPolicy)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Keys in the clear, as far as this machine has them. `fresh`: made just now, and shown this once."""

    api_key: str
    worker_token: str
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    server: server.Running
    secrets: Secrets
    settings: Settings


@contextlib.asynccontextmanager
async def hosting(
    given: Mapping[str, Any], *, insecure: bool = False, log_to_file: bool = False
) -> AsyncIterator[Host]:
    """A running server with its keys. `log_to_file`: the terminal is for something else."""
    chosen = settings.load(**given)
    folder = Path(chosen.data_dir)
    with _locked(folder) as note, contextlib.ExitStack() as stack:
        stream = stack.enter_context((folder / LOG).open("a")) if log_to_file else None
        logs.configure(1 if chosen.log_level == "DEBUG" else 0, stream=stream)
        known, secrets = _keys(chosen, folder)
        async with server.running(chosen, keys.Keys(known), insecure=insecure) as running:
            note(running.url)
            _write_private(folder / CLIENT, json.dumps({"url": running.url, "key": secrets.api_key}))
            _settle_down()
            yield Host(running, secrets, chosen)


def _settle_down() -> None:
    """What was loaded to start with stays for ever: the collector need not look at it again and again.
    Otherwise one task in a hundred waits ten milliseconds and more for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


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
def _locked(folder: Path) -> Iterator[Callable[[str], None]]:
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


def _keys(chosen: Settings, folder: Path) -> tuple[list[keys.Key], Secrets]:
    """The keys this server knows, by their hashes alone, and those that this machine's own client and worker
    use. A local worker whose token file was removed gets a token for this run."""
    hashes = folder / "keys.json"
    client = _read_json(folder / CLIENT)
    configured = Secrets(chosen.api_key, _worker_token(chosen))
    if configured.api_key and configured.worker_token:
        return _of(configured), configured
    if not hashes.exists():
        made = Secrets(configured.api_key or keys.make(), configured.worker_token or keys.make(), True)
        _write_private(hashes, json.dumps([[key.digest.hex(), *key.scopes] for key in _of(made)]))
        _write_private(folder / TOKEN, made.worker_token)
        return _of(made), replace(made, fresh=not configured.api_key)
    known = [
        keys.configured(bytes.fromhex(digest), scope) for digest, scope in json.loads(hashes.read_text())
    ]
    token = configured.worker_token or _read(folder / TOKEN) or keys.make()
    secrets = Secrets(configured.api_key or client.get("key", ""), token)
    return [*known, *_of(secrets)], secrets


def _of(secrets: Secrets) -> list[keys.Key]:
    api = [keys.key_of(secrets.api_key, "admin")] if secrets.api_key else []
    return [*api, keys.key_of(secrets.worker_token, "worker")]


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _read_json(path: Path) -> dict[str, str]:
    return dict(json.loads(_read(path) or "{}"))


def _worker_token(chosen: Settings) -> str:
    if not chosen.worker_token_file:
        return ""
    try:
        return Path(chosen.worker_token_file).read_text().strip()
    except OSError as error:
        given = f"WORKER_TOKEN_FILE={chosen.worker_token_file}"
        raise BadSettings(f"{given} is not allowed: {error.strerror}; give a file to read") from error


def _write_private(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    new.replace(path)
