"""A backup of all that is in the store, made while it works, and brought back into an empty one.

Every key is written down whole at some moment of the backup. A task's row is the truth about it: lists are
made anew from the rows, so a task that moved on meanwhile is found where it was when it was written down.

The file is gzip; in it records of msgpack, each after its length: a header, keys, and the number of keys as
an end, without which it is not whole.
"""

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, BinaryIO, cast

import msgspec

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey import migrations
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.scripts import Script

AT_ONCE = 200
LONGEST = 1 << 30
NOT_KEPT = frozenset({"leader", "apis", "news", "owners", "levels", migrations.KEY})
MADE_ANEW = ("s:", "o:", "on:")
TASK = "t:"


class BadBackup(StoreError):
    """The file is not a backup, is not whole, or cannot be brought back here."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """`files` are kept beside the store: hashes of the keys with which everything begins."""

    format: str = "gpu-orchestrator backup 1"
    schema: int = migrations.VERSION
    program: str = __version__
    files: dict[str, bytes] = {}


class Kept(Item, frozen=True):
    """One key; `expires_ms` is -1 for one that stays."""

    name: str
    expires_ms: int
    dump: bytes


@dataclass(frozen=True, slots=True)
class Summary:
    tasks: int
    keys: int


_RESTORE_LISTS = Script[int]("restore_lists", int)
_encode = msgspec.msgpack.Encoder().encode


async def save(database: Database, path: Path, files: Mapping[str, bytes]) -> Summary:
    """Whole or not at all: the file has its name only when it is complete and on disk."""
    await migrations.refuse_a_part(database)
    new = path.with_name(path.name + ".new")
    seen: set[str] = set()
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as raw:
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3) as file:
            _write(file, Header(files=dict(files)))
            async for names in database.scan(AT_ONCE):
                for name, expires_ms, dump in await database.dump(
                    [name for name in names if _is_kept(name) and name not in seen]
                ):
                    seen.add(name)
                    _write(file, Kept(name, expires_ms, dump))
            _write(file, len(seen))
        raw.flush()
        os.fsync(raw.fileno())
    new.replace(path)
    return Summary(sum(name.startswith(TASK) for name in seen), len(seen))


def check(path: Path) -> Header:
    """Reads all of it; raises `BadBackup` before anything was changed."""
    header = None
    for header, _ in _records(path):  # noqa: B007 - to the end of the file
        pass
    if header is None:
        raise BadBackup(f"{path} is empty")
    if header.schema > migrations.VERSION:
        raise BadBackup(
            f"{path} was made by a newer program ({header.program}, data of version {header.schema}; "
            f"this one knows {migrations.VERSION}): restore it with that one"
        )
    return header


async def refuse_if_full(database: Database) -> None:
    """Raises `BadBackup` or `Unfit` for a store that nothing can be restored into."""
    await migrations.refuse_a_part(database)
    if await database.exists("fence", "stats", "workers", "keys"):
        raise BadBackup(
            "the store is not empty; give an empty one (another --data, or FLUSHDB on a store of your own)"
        )


async def load(database: Database, path: Path) -> Summary:
    """Into an empty store; call `check` first."""
    await refuse_if_full(database)
    await database.set(migrations.KEY, migrations.RESTORING)
    tasks = keys = schema = 0
    batch: list[Kept] = []
    for header, kept in _records(path):
        schema = header.schema
        if kept is not None:
            batch.append(kept)
        if len(batch) == AT_ONCE or kept is None:
            tasks += await _bring(database, batch)
            keys += len(batch)
            batch = []
    await database.set_field("watch", "generation", str(int(time() * 1000)))  # ids given out since are void
    await database.set(migrations.KEY, str(schema).encode())
    return Summary(tasks, keys)


async def _bring(database: Database, batch: list[Kept]) -> int:
    """How many tasks were among them."""
    await database.restore([(each.name, each.expires_ms, each.dump) for each in batch])
    ids = [each.name.removeprefix(TASK) for each in batch if each.name.startswith(TASK)]
    return (await database.call(_RESTORE_LISTS, ids))[1]


def _is_kept(name: str) -> bool:
    return name not in NOT_KEPT and not name.startswith(MADE_ANEW)


def _write(file: gzip.GzipFile, value: Any) -> None:
    packed = _encode(value)
    file.write(len(packed).to_bytes(4, "big") + packed)


def _records(path: Path) -> Iterator[tuple[Header, Kept | None]]:
    """The header with each key, and with None at the end."""
    try:
        with gzip.open(path, "rb") as opened:
            file = cast(BinaryIO, opened)
            header = msgspec.msgpack.decode(_read(file), type=Header)
            if header.format != Header().format:
                raise BadBackup(f"{path} is no backup that this program can read: {header.format[:40]!r}")
            count = 0
            while isinstance(kept := msgspec.msgpack.decode(_read(file), type=Kept | int), Kept):
                count += 1
                yield header, kept
            if kept != count or file.read(1):  # at the end of the file its checksum is compared
                raise BadBackup(f"{path} is not whole: it has {count} keys of {kept}")
            yield header, None
    except (OSError, EOFError, ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise BadBackup(f"{path} cannot be read as a backup: {error}") from error


def _read(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(4), "big")
    if not 0 < length <= LONGEST:
        raise EOFError("it ends too early")
    data = file.read(length)
    if len(data) != length:
        raise EOFError("it ends too early")
    return data
