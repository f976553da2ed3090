"""What `up` and `server` have in common: checks, keys, the lock on the data directory, and a clean shutdown.

Everything that can fail is tried before anything is written: settings, certificate, policy, disk, port, lock,
store. Only a server that runs writes its keys down.
"""

import asyncio
import contextlib
import fcntl
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters import disk, logs, private_files, setting_names, settings, tls
from gpu_orchestrator.adapters.settings import BadSettings, Settings, why_unreadable
from gpu_orchestrator.adapters.store.errors import Occupied, StoreError, Unfit
from gpu_orchestrator.adapters.tls import BadCertificate
from gpu_orchestrator.apps.manager import server
from gpu_orchestrator.apps.manager.access import keys
from gpu_orchestrator.apps.manager.events import signing
from gpu_orchestrator.apps.manager.fleet import strategies
from gpu_orchestrator.cli import own_keys
from gpu_orchestrator.cli.own_keys import Secrets
from gpu_orchestrator.policies.registry import BadPlugin, UnknownPolicy

CALLBACK_SECRET = "callback-secret"  # noqa: S105 - a file name
LOG = "manager.log"
COLLECT = (20_000, 20, 50)
"""Collect less often than by default: our values form no cycles, so there is little to collect."""
KNOWN_ERRORS = (BadSettings, BadCertificate, StoreError, server.CannotListen, UnknownPolicy, BadPlugin)
NOT_UNDERSTOOD, INTERRUPTED = 2, 130


@dataclass(frozen=True, slots=True)
class Host:
    server: server.Running
    secrets: Secrets
    settings: Settings


class Ending:
    """What SIGINT and SIGTERM mean: before the server is up, give up; then, end in good order (`asked`); the
    second time, end at once (`at_once`)."""

    def __init__(self) -> None:
        self.asked, self.at_once = asyncio.Event(), asyncio.Event()
        self._starting = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._told)

    def is_up(self) -> None:
        self._starting = None

    def _told(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        elif self.asked.is_set():
            self.at_once.set()
        self.asked.set()


async def serve(given: Mapping[str, Any], *, insecure: bool = False) -> int:
    async def work(ending: Ending) -> None:
        chosen = settings.load(**given)
        async with _opened(chosen, insecure=insecure) as url:
            ending.is_up()
            print(f"listening on {url}; keys are in {chosen.data_dir}", file=sys.stderr)
            await ending.asked.wait()

    return await reported(work)


@contextlib.asynccontextmanager
async def _opened(chosen: Settings, *, insecure: bool) -> AsyncIterator[str]:
    """Run a server, in one process or in several; yield its URL."""
    if chosen.worker_processes > 1:
        from gpu_orchestrator.cli import process_group

        async with process_group.hosting(chosen, insecure=insecure) as url:
            yield url
    else:
        async with hosting(chosen, insecure=insecure) as host:
            yield host.server.url


async def reported(work: Callable[[Ending], Awaitable[None]]) -> int:
    """Do the work of a command; return its exit code. A known error is a line, and so is an interruption."""
    ending = Ending()
    try:
        check_names()
        await work(ending)
    except KNOWN_ERRORS as error:
        print(f"gpu-orchestrator: {error}", file=sys.stderr)
        return NOT_UNDERSTOOD if isinstance(error, BadSettings) else 1
    except asyncio.CancelledError:
        print("gpu-orchestrator: stopped before it was up", file=sys.stderr)
        return INTERRUPTED
    return 0


def check_names() -> None:
    """Raise `BadSettings` for misspelt settings; say which of those given have no effect."""
    setting_names.refuse_slips()
    if line := setting_names.without_effect():
        print(f"gpu-orchestrator: {line}", file=sys.stderr)


@contextlib.asynccontextmanager
async def hosting(
    chosen: Settings, *, insecure: bool = False, log_to_file: bool = False
) -> AsyncIterator[Host]:
    """Run a server with its keys. `log_to_file`: the terminal is used for something else."""
    with prepared(chosen, log_to_file=log_to_file) as ready:
        async with server.running(
            ready.settings, keys.Keys(ready.begun.known), insecure=insecure, listening=ready.listening
        ) as running:
            ready.keep(running.url)
            settle_down()
            yield Host(running, ready.begun.secrets, chosen)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A server that may start: its settings with the callback secret, its keys, its socket, and the lock on
    its folder, in which `note` writes where it listens."""

    chosen: Settings
    settings: Settings
    begun: own_keys.Begun
    listening: socket.socket
    note: Callable[[str], None]

    def keep(self, url: str) -> None:
        """Write down the keys and the address, now that the server runs."""
        folder = Path(self.chosen.data_dir)
        with _writing(folder):
            if not self.chosen.callback_secret and not (folder / CALLBACK_SECRET).exists():
                private_files.write(folder / CALLBACK_SECRET, self.settings.callback_secret)
            own_keys.keep(self.begun, self.chosen, url)
            self.note(url)


@contextlib.contextmanager
def prepared(chosen: Settings, *, log_to_file: bool = False) -> Iterator[Prepared]:
    """Check everything, and take the port and the data directory."""
    _check(chosen)
    folder = Path(chosen.data_dir)
    with _listening(chosen, folder) as listening, locked(folder) as note, contextlib.ExitStack() as stack:
        stack.callback(configure_logs(chosen, folder, only_file=log_to_file))
        begun = own_keys.begin(chosen, folder)
        complete = replace(chosen, callback_secret=_callback_secret(chosen, folder))
        yield Prepared(chosen, complete, begun, listening, note)


def _check(chosen: Settings) -> None:
    """Raise for what would fail later. Write nothing."""
    if chosen.ssl_cert_path:
        tls.server(chosen.ssl_cert_path, chosen.ssl_key_path)
    strategies.registry(chosen.placement_policy)
    left = disk.left(Path(chosen.data_dir))
    if left.is_full and not chosen.external_store:
        raise Unfit(f"{left}, or choose another folder with --data")


@contextlib.contextmanager
def _listening(chosen: Settings, folder: Path) -> Iterator[socket.socket]:
    """Open the listening socket. If the port is taken by a server of the same folder, say that."""
    try:
        listening = server.listen(chosen.api_host, chosen.api_port)
    except server.CannotListen:
        if (folder / "lock").exists():
            with locked(folder):
                pass
        raise
    with listening:
        yield listening


def configure_logs(chosen: Settings, folder: Path, *, only_file: bool) -> Callable[[], None]:
    """Return the function that closes the log file."""
    path = chosen.log_file or (str(folder / LOG) if only_file else "")
    try:
        most_bytes = int(chosen.log_file_mb * 1_000_000)
        file = logs.LogFile(Path(path), most_bytes=most_bytes, kept=chosen.log_files_kept) if path else None
    except OSError as error:
        why = why_unreadable(error).replace("read", "written", 1)
        raise BadSettings(f"LOG_FILE={path} {why}; give a file to write") from error
    verbosity = 1 if chosen.log_level == "DEBUG" else 0
    logs.configure(verbosity, style=chosen.log_format, file=file, only_file=only_file)
    return file.close if file else lambda: None


def _callback_secret(chosen: Settings, folder: Path) -> str:
    """Return the configured secret, else the one made at the first start, else a new one."""
    return chosen.callback_secret or private_files.read(folder / CALLBACK_SECRET) or signing.new_secret()


def settle_down() -> None:
    """Exclude everything loaded at start from garbage collection. Otherwise one task in a hundred waits ten
    milliseconds or more for it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Callable[[str], None]]:
    """Allow one process per data directory; a second one learns where the first one listens."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unfit(
            f"the data directory {folder} cannot be written: {error.strerror}; give another with --data"
        ) from error
