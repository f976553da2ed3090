"""What `up` and `server` have in common: settings, keys, the lock on the data directory, and a clean
shutdown."""

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
from gpu_orchestrator.adapters.tls import BadCertificate
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.manager.access import keys
from gpu_orchestrator.apps.manager.events import signing
from gpu_orchestrator.policies.registry import BadPlugin, UnknownPolicy

CLIENT = "client.json"
CALLBACK_SECRET = "callback-secret"  # noqa: S105 - a file name
LOG = "manager.log"
HASHES = "keys.json"
TOKEN = "worker-token"  # noqa: S105 - a file name
COLLECT = (20_000, 20, 50)
"""Collect less often than by default: our values form no cycles, so there is little to collect."""
KNOWN_ERRORS = (BadSettings, BadCertificate, StoreError, server.CannotListen, UnknownPolicy, BadPlugin)


@dataclass(frozen=True, slots=True)
class Secrets:
    """Keys in plain text, as far as this machine has them. `fresh`: made just now, and shown only this
    once."""

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
    """Run a server with its keys. `log_to_file`: the terminal is used for something else."""
    chosen = settings.load(**given)
    folder = Path(chosen.data_dir)
    with locked(folder) as note, contextlib.ExitStack() as stack:
        stack.callback(_configure_logs(chosen, folder, only_file=log_to_file))
        known, secrets = _keys(chosen, folder)
        chosen = _with_callback_secret(chosen, folder)
        async with server.running(chosen, keys.Keys(known), insecure=insecure) as running:
            note(running.url)
            write_private(folder / CLIENT, json.dumps(_client(chosen, running.url, secrets)))
            _settle_down()
            yield Host(running, secrets, chosen)


def _configure_logs(chosen: Settings, folder: Path, *, only_file: bool) -> Callable[[], None]:
    """Return the function that closes the log file."""
    path = chosen.log_file or (str(folder / LOG) if only_file else "")
    try:
        most_bytes = int(chosen.log_file_mb * 1_000_000)
        file = logs.LogFile(Path(path), most_bytes=most_bytes, kept=chosen.log_files_kept) if path else None
    except OSError as error:
        raise BadSettings(
            f"LOG_FILE={path} is not allowed: {error.strerror}; give a file to write"
        ) from error
    verbosity = 1 if chosen.log_level == "DEBUG" else 0
    logs.configure(verbosity, style=chosen.log_format, file=file, only_file=only_file)
    return file.close if file else lambda: None


def _settle_down() -> None:
    """Exclude everything loaded at start from garbage collection. Otherwise one task in a hundred waits ten
    milliseconds or more for it."""
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
def locked(folder: Path) -> Iterator[Callable[[str], None]]:
    """Allow one process per data directory; a second one learns where the first one listens."""
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
            f"{folder} is in use: {where}; use that one, stop it, or give another --data"
        ) from error

    def note(url: str) -> None:
        os.pwrite(handle, f"process {os.getpid()} listens on {url}\n".encode(), 0)

    os.ftruncate(handle, 0)
    try:
        yield note
    finally:
        os.close(handle)


def _keys(chosen: Settings, folder: Path) -> tuple[list[keys.Key], Secrets]:
    """Return the keys this server starts with, and those that this machine's own client and worker use. A key
    that is not configured is made once, and the server keeps only its hash."""
    kept = {scope: digest for digest, scope in json.loads(_read(folder / HASHES) or "[]")}
    client = _read_json(folder / CLIENT).get("key", "")
    admin = _begin("admin", chosen.api_key, client, kept)
    worker = _begin("worker", chosen.worker_token, _read(folder / TOKEN), kept)
    if admin.is_made or worker.is_made:
        made = {
            scope: each.key.digest.hex()
            for scope, each in (("admin", admin), ("worker", worker))
            if each.is_made
        }
        write_private(
            folder / HASHES, json.dumps([[digest, scope] for scope, digest in {**kept, **made}.items()])
        )
    if worker.is_made:
        write_private(folder / TOKEN, worker.secret)
    # A worker of this machine whose token file was removed gets a token for this run.
    token = worker.secret or keys.make()
    known = [admin.key, worker.key, *([] if worker.secret else [keys.key_of(token, "worker")])]
    return known, Secrets(admin.secret, token, fresh=admin.is_made)


def _with_callback_secret(chosen: Settings, folder: Path) -> Settings:
    """Use the configured secret, else the one made at the first start."""
    kept = folder / CALLBACK_SECRET
    if not chosen.callback_secret and not kept.exists():
        write_private(kept, signing.new_secret())
    return replace(chosen, callback_secret=chosen.callback_secret or _read(kept))


@dataclass(frozen=True, slots=True)
class _Begun:
    """`secret` is empty if this machine no longer has it."""

    secret: str
    key: keys.Key
    is_made: bool = False


def _begin(scope: keys.Scope, configured: str, remembered: str, kept: Mapping[str, str]) -> _Begun:
    if configured:
        return _Begun(configured, keys.key_of(configured, scope))
    if scope not in kept:
        secret = keys.make()
        return _Begun(secret, keys.key_of(secret, scope), is_made=True)
    is_it = keys.digest_of(remembered).hex() == kept[scope]
    return _Begun(remembered if is_it else "", keys.configured(bytes.fromhex(kept[scope]), scope))


def _client(chosen: Settings, url: str, secrets: Secrets) -> dict[str, str]:
    """Return what clients on this machine need. They trust exactly the server's own certificate
    file, no matter which CA signed it."""
    ca = str(Path(chosen.ssl_cert_path).absolute()) if chosen.ssl_cert_path else ""
    return {"url": url, "key": secrets.api_key, "ca": ca}


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _read_json(path: Path) -> dict[str, str]:
    return dict(json.loads(_read(path) or "{}"))


def write_private(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    new.replace(path)
