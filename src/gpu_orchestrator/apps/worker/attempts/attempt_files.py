"""Files of attempts, in the agent: fetches from the server what tasks take, and sends it what they leave.

Each attempt that needs one gets a folder, removed when it has ended. What it takes lies in a part that tasks
cannot change. What it leaves it puts into a part of its own; the agent may have more rights than the task, so
it follows no link there and sends nothing but a file of the task's own."""

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
import structlog

from gpu_orchestrator.adapters import foreign_files
from gpu_orchestrator.adapters.background import BackgroundTasks
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.api.files import plain_name
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Key

TRIES, PAUSE_S = 5, 0.5
AT_ONCE = 4
"""Files that are moved at once, of all attempts of this worker."""
PIECE = 256 << 10
NAMED, LOCK = "gpu-orchestrator-files-", "lock"
LEAVE_FREE = 20
"""Leave a twentieth of the disk to others."""

log = structlog.get_logger()
Tell = Callable[[frames.Got], None]


@dataclass(frozen=True, slots=True)
class FileCallbacks:
    """What the agent offers: a request to the server that it is joined to, as `method, path below the
    worker's own, more`. `user` is who runs tasks, if that is another user."""

    request: Callable[..., Any]
    user: User | None = None


class _Kept(msgspec.Struct):
    file_id: str
    bytes: int


class Refused(Exception):
    """The server refuses, and would go on doing so."""


class AttemptFiles:
    def __init__(self, agent: FileCallbacks) -> None:
        self._agent = agent
        self._base: Path | None = None
        self._lock: BinaryIO | None = None
        self._folders: dict[Key, Path] = {}
        self._work = BackgroundTasks()
        self._turns = asyncio.Semaphore(AT_ONCE)

    def asked(self, frame: frames.Wants | frames.Leaves, tell: Tell) -> None:
        key = (frame.task, frame.attempt)
        try:
            self._folder(key)
        except OSError as error:
            tell(frames.Got(*key, frame.number, error=f"the worker has no room for files: {error}"))
        else:
            self._work.start(self._in_turn(frame, tell))

    def ended(self, key: Key) -> None:
        folder = self._folders.pop(key, None)
        if folder is not None:
            self._work.start(asyncio.to_thread(_remove, folder))

    def forget(self) -> None:
        for key in list(self._folders):
            self.ended(key)

    def close(self) -> None:
        if self._base is not None:
            _remove(self._base)
        if self._lock is not None:
            self._lock.close()

    async def _in_turn(self, frame: frames.Wants | frames.Leaves, tell: Tell) -> None:
        async with self._turns:
            await self._answer(frame, tell)

    async def _answer(self, frame: frames.Wants | frames.Leaves, tell: Tell) -> None:
        """Do what a task asks, and tell it; nothing to a task that has ended."""
        key = (frame.task, frame.attempt)
        error, lasting = "", False
        for attempt in range(TRIES):
            if (folder := self._folders.get(key)) is None:
                return None  # it has ended meanwhile
            try:
                if isinstance(frame, frames.Leaves):
                    kept = await self._sent(frame, folder / "out")
                    return tell(frames.Got(*key, frame.number, file=kept.file_id, size=kept.bytes))
                path = await self._fetched(frame, folder) if frame.file else folder / "out"
                return tell(frames.Got(*key, frame.number, path=str(path)))
            except Refused as refused:
                error, lasting = str(refused), True
                break
            except (aiohttp.ClientError, TimeoutError, OSError) as lost:
                error = f"{type(lost).__name__}: {lost}"
            except Exception as defect:
                log.exception("a file of a task could not be moved", task_id=frame.task)
                error = f"{type(defect).__name__}: {defect}"
                break
            await asyncio.sleep(PAUSE_S * 2**attempt)
        return tell(frames.Got(*key, frame.number, error=error, lasting=lasting))

    def _folder(self, key: Key) -> Path:
        if self._base is None:
            remove_stale()
            new = Path(tempfile.mkdtemp(prefix=f"new-{NAMED}"))
            new.chmod(0o711)
            self._lock = (new / LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._base = new.rename(new.with_name(new.name.removeprefix("new-")))  # its lock is held by now
        folder = self._folders.get(key)
        if folder is None:
            folder = self._folders[key] = self._base / token_hex(16)
            folder.mkdir(mode=0o711)
            out = folder / "out"
            out.mkdir(mode=0o700)
            if self._agent.user is not None:
                os.chown(out, self._agent.user.uid, self._agent.user.gid)
        return folder

    async def _fetched(self, frame: frames.Wants, folder: Path) -> Path:
        async with self._agent.request("GET", f"{_of(frame)}/{quote(frame.file, safe='')}") as answer:
            await _check(answer)
            size = int(answer.headers.get("Content-Length", "0"))
            disk = shutil.disk_usage(folder)
            if disk.free - size < disk.total // LEAVE_FREE:
                raise OSError(f"the worker's disk has no room for file {frame.file} ({size} bytes)")
            said = answer.content_disposition
            path = folder / str(frame.number) / plain_name((said and said.filename) or "file")
            path.parent.mkdir(mode=0o755, exist_ok=True)
            came = 0
            with path.open("wb") as file:
                async for piece in answer.content.iter_chunked(PIECE):
                    came += await asyncio.to_thread(file.write, piece)
            if came != size:
                raise OSError(f"{came} of {size} bytes of file {frame.file} arrived")
            path.chmod(0o644)
            return path

    async def _sent(self, frame: frames.Leaves, out: Path) -> _Kept:
        with await asyncio.to_thread(self._opened, out, str(frame.number)) as file:
            size = os.fstat(file.fileno()).st_size
            target = f"{_of(frame)}?{urlencode({'name': frame.name})}"
            async with self._agent.request(
                "POST", target, data=file, headers={"Content-Length": str(size)}
            ) as answer:
                await _check(answer)
                kept = msgspec.json.decode(await answer.read(), type=_Kept)
        with suppress(OSError):
            (out / str(frame.number)).unlink()
        return kept

    def _opened(self, out: Path, name: str) -> BinaryIO:
        """Open what the task has put there; raise `Refused` for all but a plain file of its own."""
        folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            raise Refused(f"the file that the task leaves cannot be read: {error.strerror}") from error
        finally:
            os.close(folder)
        found = os.fstat(number)
        owner = self._agent.user.uid if self._agent.user is not None else os.geteuid()
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            os.close(number)
            raise Refused("what the task leaves is not a file of its own")
        return open(number, "rb")


def remove_stale() -> None:
    """Remove what agents left that were killed. One that lives holds the lock in its folder."""
    for folder in Path(tempfile.gettempdir()).glob(f"{NAMED}*"):
        try:
            if folder.lstat().st_uid != os.geteuid() or folder.is_symlink():
                continue
            with (folder / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is in use, or is just being made
            continue
        _remove(folder)


def _of(frame: frames.Wants | frames.Leaves) -> str:
    return f"files/{quote(frame.task, safe='')}/{frame.attempt}"


async def _check(answer: aiohttp.ClientResponse) -> None:
    """Raise `Refused`, or `OSError` for what may be better soon."""
    if answer.status < 400:
        return
    try:
        why = msgspec.json.decode(await answer.read())["error"]["message"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        why = f"the server answered {answer.status}"
    if answer.status in (429, 502, 503, 504):
        raise OSError(why)
    raise Refused(why)


def _remove(folder: Path) -> None:
    try:
        foreign_files.remove(folder)
    except OSError as error:
        log.warning("files of an ended task could not be removed", folder=str(folder), error=str(error))
