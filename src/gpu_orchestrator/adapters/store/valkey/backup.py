"""Back up the store while it runs, and restore the backup into an empty store.

The backup copies every key whole at some moment. A task's row is authoritative: restoring rebuilds the lists
from the rows, so a task that changed state during the backup has the state of its copied row.

The file is gzip. It holds msgpack records, each after its length: a header, the keys, and last the number of
keys. A file without that number is incomplete.
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
from gpu_orchestrator.adapters.store.valkey import durability, migrations
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.scripts import Script

BATCH = 200
LONGEST = 1 << 30
NOT_KEPT = frozenset(
    {
        *("leader", "apis", "news", "owners", "levels", "logs", durability.KEY, migrations.KEY),
        *("ended", "results", "results:bytes", "forgetting", "links", "schedules"),
    }
)
REBUILT = ("s:", "o:", "on:", "due:", "after:", "pins:", "schedules:of:")
LOGS = ("log:", "logs:")
"""Logs of tasks are not backed up: they may be as large as all the rest."""
TASK, SCHEDULE = "t:", "sc:"


class BadBackup(StoreError):
    """The file is not a backup, is incomplete, or cannot be restored into this store."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """`files` are stored beside the database: hashes of the bootstrap keys. `store` is the version of the
    server whose format the keys have."""

    format: str = "gpu-orchestrator backup 1"
    schema: int = migrations.VERSION
    program: str = __version__
    store: str = ""
    files: dict[str, bytes] = {}


class BackupEntry(Item, frozen=True):
    """One key; `expires_ms` is -1 if it does not expire."""

    name: str
    expires_ms: int
    dump: bytes


@dataclass(frozen=True, slots=True)
class Summary:
    tasks: int
    keys: int


_RESTORE_LISTS = Script[int]("restore_lists", int)
_RESTORE_SCHEDULES = Script[bool]("restore_schedules", bool)
_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(BackupEntry | int).decode


async def save(database: Database, path: Path, files: Mapping[str, bytes]) -> Summary:
    """Write a backup. The file gets its name only when it is complete and on disk."""
    await migrations.refuse_partial_restore(database)
    version = (await database.facts()).version
    new = path.with_name(path.name + ".new")
    seen: set[str] = set()
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as raw:
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3) as file:
            _write(file, Header(files=dict(files), store=version))
            async for names in database.scan(BATCH):
                for name, expires_ms, dump in await database.dump(
                    [name for name in names if _is_kept(name) and name not in seen]
                ):
                    seen.add(name)
                    _write(file, BackupEntry(name, expires_ms, dump))
            _write(file, len(seen))
        raw.flush()
        os.fsync(raw.fileno())
    new.replace(path)
    return Summary(sum(name.startswith(TASK) for name in seen), len(seen))


def check(path: Path) -> Header:
    """Read the whole file and return its header; raises `BadBackup`. Changes nothing in the store."""
    header = None
    for header, _ in _records(path):  # noqa: B007 - to the end of the file
        pass
    if header is None:
        raise BadBackup(f"{path} is empty")
    if header.schema > migrations.VERSION:
        raise BadBackup(
            f"{path} was made by a newer program ({header.program}, data version {header.schema}; "
            f"this program supports up to {migrations.VERSION}): restore it with the newer program"
        )
    return header


async def refuse_unless_it_fits(database: Database, path: Path) -> None:
    """Raise `BadBackup` or `Unfit` if the backup cannot be restored into this store."""
    await migrations.refuse_partial_restore(database)
    if await database.exists("fence", "stats", "workers", "keys"):
        raise BadBackup(
            "the store is not empty; restore into an empty one: name another data directory with --data, or "
            "an empty database of your own server with REDIS_URL"
        )
    header, entry = next(_records(path))
    if entry is not None and not await database.can_read(entry.dump):
        raise BadBackup(
            f"{path} was made on a store of version {header.store or 'unknown'}, and this one, of version "
            f"{(await database.facts()).version}, cannot read it; restore it on the version that it was made "
            "on, or a newer one of the same product: docs/compatibility.md says which read which"
        )


async def load(database: Database, path: Path) -> Summary:
    """Restore a backup into an empty store; call `check` first."""
    await refuse_unless_it_fits(database, path)
    await database.set(migrations.KEY, migrations.RESTORING)
    tasks = keys = schema = 0
    batch: list[BackupEntry] = []
    for header, kept in _records(path):
        schema = header.schema
        if kept is not None:
            batch.append(kept)
        if len(batch) == BATCH or kept is None:
            tasks += await _restore_batch(database, batch)
            keys += len(batch)
            batch = []
    # A new generation makes the event ids issued since the backup invalid.
    await database.set_field("watch", "generation", str(int(time() * 1000)))
    await database.set(migrations.KEY, str(schema).encode())
    return Summary(tasks, keys)


async def _restore_batch(database: Database, batch: list[BackupEntry]) -> int:
    """Restore some keys; return how many of them are tasks."""
    await database.restore([(each.name, each.expires_ms, each.dump) for each in batch])
    names = [each.name for each in batch]
    schedules = [name.removeprefix(SCHEDULE) for name in names if name.startswith(SCHEDULE)]
    await database.call(_RESTORE_SCHEDULES, schedules)
    tasks = [name.removeprefix(TASK) for name in names if name.startswith(TASK)]
    return (await database.call(_RESTORE_LISTS, tasks))[1]


def _is_kept(name: str) -> bool:
    return name not in NOT_KEPT and not name.startswith((*REBUILT, *LOGS))


def _write(file: gzip.GzipFile, value: Any) -> None:
    packed = _encode(value)
    file.write(len(packed).to_bytes(4, "big") + packed)


def _records(path: Path) -> Iterator[tuple[Header, BackupEntry | None]]:
    """Yield the header with each key, and at the end with None."""
    try:
        with gzip.open(path, "rb") as opened:
            file = cast(BinaryIO, opened)
            header = msgspec.msgpack.decode(_read(file), type=Header)
            if header.format != Header().format:
                raise BadBackup(f"{path} is not a backup that this program can read: {header.format[:40]!r}")
            count = 0
            while isinstance(entry := _decode_entry(_read(file)), BackupEntry):
                count += 1
                yield header, entry
            if entry != count or file.read(1):  # reading to the end also checks the checksum
                raise BadBackup(f"{path} is incomplete: it has {count} of {entry} keys")
            yield header, None
    except gzip.BadGzipFile as error:
        raise BadBackup(
            f"{path} is not a backup, or it is damaged; give a file that `backup` wrote"
        ) from error
    except OSError as error:
        raise BadBackup(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except EOFError as error:
        raise BadBackup(f"{path} is incomplete: it ends too early; use another backup") from error
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise BadBackup(f"{path} is damaged ({error}); use another backup") from error


def _read(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(4), "big")
    if not 0 < length <= LONGEST:
        raise EOFError("it ends too early")
    data = file.read(length)
    if len(data) != length:
        raise EOFError("it ends too early")
    return data
