"""Where a large result is, and what every place for results can do.

A result is written under a name of its own before the store commits it, and is deleted after the store has
forgotten its task. Nobody changes it in between, so readers need no lock.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from os import urandom
from pathlib import Path
from typing import Literal, Protocol

Kind = Literal["file", "s3"]
CHUNK = 256 << 10


class ResultError(Exception):
    """A result could not be read or written; the message says why and what to do."""


class ResultMissing(ResultError):
    """The place does not have this result."""


@dataclass(frozen=True, slots=True)
class ResultAt:
    """Where a result is: `str` is what the store keeps, such as `file 4194304 0f3c….1.a1b2c3d4`."""

    kind: Kind
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.size} {self.name}"

    @classmethod
    def read(cls, text: str) -> "ResultAt":
        kind, size, name = text.split(" ", 2)
        return cls("s3" if kind == "s3" else "file", int(size), name)


def new_name(task: str, attempt: int) -> str:
    """Return a name that nobody has used: an outcome that arrives twice is written twice, and only one of the
    two is committed."""
    return f"{task}.{attempt}.{urandom(4).hex()}"


class ResultPlace(Protocol):
    kind: Kind

    async def write(self, name: str, data: bytes) -> None: ...

    async def take(self, name: str, path: Path, size: int, digest: str) -> None:
        """Keep a complete file of this machine under a name; `digest` is its SHA-256 in hex. The file at
        `path` is gone then, or may be removed."""
        ...

    def stream(self, name: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a result; raise `ResultMissing` before the first one if there is none."""
        ...

    async def delete(self, names: Iterable[str]) -> None:
        """Delete results; those that are gone already do not matter."""
        ...

    def old(self, age_s: float) -> AsyncIterator[list[ResultAt]]:
        """Yield the results that are older than this, a page at a time."""
        ...

    async def close(self) -> None: ...
