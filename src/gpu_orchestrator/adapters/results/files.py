"""Results as files of a folder. Servers that share a store share the folder too, or use S3.

A file gets its name when it is complete, and on disk if `sync` is set, so a reader sees a whole result or
none. Files lie in 256 folders by the start of their names: no folder gets large.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time

from gpu_orchestrator.adapters.results.place import CHUNK, Kind, ResultAt, ResultError, ResultMissing

PAGE = 500
UNFINISHED = ".new"


class ResultFiles:
    kind: Kind = "file"

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.folder, self._sync = folder, sync

    async def write(self, name: str, data: bytes) -> None:
        try:
            await asyncio.to_thread(self._write, self._path(name), data)
        except OSError as error:
            why = error.strerror or str(error)
            raise ResultError(f"cannot write a result to {self.folder} (RESULTS_DIR): {why}") from error

    async def take(self, name: str, path: Path, size: int, digest: str) -> None:
        try:
            await asyncio.to_thread(self._take, self._path(name), path)
        except OSError as error:
            why = error.strerror or str(error)
            raise ResultError(f"cannot keep a file in {self.folder} (RESULTS_DIR): {why}") from error

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        path = self._path(name)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError as error:
            raise ResultMissing(
                f"it is not in RESULTS_DIR of this server ({self.folder}): servers on one store need one "
                "shared RESULTS_DIR, or RESULTS_S3_BUCKET"
            ) from error
        except OSError as error:
            raise ResultError(f"cannot read a result from {self.folder}: {error.strerror}") from error
        with file:
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                yield chunk

    async def delete(self, names: Iterable[str]) -> None:
        await asyncio.to_thread(self._delete, list(names))

    async def old(self, age_s: float) -> AsyncIterator[list[ResultAt]]:
        pages = self._old(time() - age_s)
        while page := await asyncio.to_thread(next, pages, None):
            yield page

    async def close(self) -> None: ...

    def _path(self, name: str) -> Path:
        return self.folder / name.removeprefix("file-")[:2] / name

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(path.name + UNFINISHED)
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                if self._sync:
                    os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            with suppress(OSError):
                new.unlink()
            raise
        if self._sync:
            _sync(path.parent)

    def _take(self, path: Path, arrived: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._sync:
            _sync(arrived)
        arrived.replace(path)
        if self._sync:
            _sync(path.parent)

    def _delete(self, names: list[str]) -> None:
        for name in names:
            with suppress(OSError):  # gone, or for the next sweep
                self._path(name).unlink()

    def _old(self, before_s: float) -> Iterator[list[ResultAt]]:
        """Yield files of the folder in pages; also those that were never finished, as results of their
        own."""
        page: list[ResultAt] = []
        for below in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            with suppress(OSError), os.scandir(below) as files:
                for each in files:
                    with suppress(OSError):
                        found = each.stat(follow_symlinks=False)
                        if each.is_file(follow_symlinks=False) and found.st_mtime < before_s:
                            page.append(ResultAt(self.kind, found.st_size, each.name))
                    if len(page) == PAGE:
                        yield page
                        page = []
        if page:
            yield page


def _sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
