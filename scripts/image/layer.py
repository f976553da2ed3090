"""A layer: files and folders as tar, the same bytes for the same content.

Entries are sorted; times, names of users and what a umask changes are left out.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EPOCH_S = 1_580_601_600
"""2020-02-02, as hatchling writes into wheels: some tools take zero for "unknown"."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder or file of this machine, at its path in the image."""

    source: Path
    target: str
    owner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Layer:
    path: Path
    digest: str
    size: int


def write(tree: Tree, folder: Path) -> Layer:
    """Write the layer into this folder, named by its digest, as an OCI layout has it."""
    unnamed = folder / ".layer"
    with unnamed.open("wb") as raw:
        hashing = _Hashing(raw)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for entry, source in _entries(tree):
                with source.open("rb") if source else io.BytesIO() as content:
                    tar.addfile(entry, content if source else None)
    digest = hashing.sha256.hexdigest()
    unnamed.replace(folder / digest)
    return Layer(folder / digest, digest, (folder / digest).stat().st_size)


class _Hashing:
    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._file.write(data)


def _entries(tree: Tree) -> Iterator[tuple[tarfile.TarInfo, Path | None]]:
    """Yield each entry, and the file with its content if it has one. Folders above the target come first."""
    target = tree.target.strip("/")
    parts = target.split("/")[:-1]
    for i in range(len(parts)):
        yield _folder("/".join(parts[: i + 1])), None
    for path in [tree.source, *_below(tree.source)]:
        name = "/".join(filter(None, [target, path.relative_to(tree.source).as_posix().removeprefix(".")]))
        if not name:
            continue
        entry = _entry(path, name)
        entry.uid, entry.gid = tree.owner
        yield entry, path if entry.isreg() else None


def _below(folder: Path) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        for each in sorted(os.scandir(folder), key=lambda entry: entry.name):
            yield Path(each.path)
            yield from _below(Path(each.path))


def _entry(path: Path, name: str) -> tarfile.TarInfo:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        entry = _named(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = os.readlink(path)
        return entry
    if stat.S_ISDIR(found.st_mode):
        return _folder(name, 0o1777 if found.st_mode & stat.S_ISVTX else 0o755)
    entry = _named(name, tarfile.REGTYPE, 0o755 if found.st_mode & stat.S_IXUSR else 0o644)
    entry.size = found.st_size
    return entry


def _folder(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return _named(name, tarfile.DIRTYPE, mode)


def _named(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, EPOCH_S
    return entry
