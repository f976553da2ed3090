"""A file that arrives: written to disk as it comes, with its size and digest, before a place takes it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

from gpu_orchestrator.adapters.results.place import CHUNK, ResultError


@dataclass(frozen=True, slots=True)
class Spooled:
    """A complete file on this machine."""

    path: Path
    size: int
    sha256: str

    def discard(self) -> None:
        with suppress(OSError):
            self.path.unlink()


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


class TooLong(Exception):
    """More bytes arrived than were announced."""


async def spool(path: Path, chunks: AsyncIterator[bytes], size: int) -> Spooled:
    """Write what arrives to a new file; raise `TooLong` for more than `size` bytes, and leave nothing
    then."""
    try:
        file = await asyncio.to_thread(_opened, path)
    except OSError as error:
        raise ResultError(f"cannot write to {path.parent}: {error.strerror}") from error
    digest, came, waiting = sha256(), 0, bytearray()
    try:
        with file:
            async for chunk in chunks:
                came += len(chunk)
                if came > size:
                    raise TooLong
                waiting += chunk
                if len(waiting) >= CHUNK:
                    await asyncio.to_thread(_write, file, digest, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(_write, file, digest, bytes(waiting))
    except BaseException as error:
        Spooled(path, came, "").discard()
        if isinstance(error, OSError):
            raise ResultError(f"cannot write to {path.parent}: {error.strerror}") from error
        raise
    return Spooled(path, came, digest.hexdigest())


def _opened(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _write(file: BinaryIO, digest: "Digest", data: bytes) -> None:
    digest.update(data)
    file.write(data)
