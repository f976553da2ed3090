"""Remove what others put into a folder of ours: any depth, any number, while they may go on writing.

Nothing in it is trusted: no link is followed, and no path is longer than a name. Nothing is walked down:
folders inside are lifted to the top, so that thousands in one another need neither stack nor descriptors.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

MOST = 1_000_000
BATCH = 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: Path, most: int = MOST) -> None:
    """Remove a folder with all that is in it; raise OSError if that cannot be done. One that is not there is
    removed already."""
    with suppress(FileNotFoundError):
        empty(folder, most)
        folder.rmdir()


def empty(folder: Path, most: int = MOST) -> None:
    """Remove all that is in a folder; raise OSError if that cannot be done, or takes more than `most`
    steps, as it may while somebody goes on writing there."""
    mark, steps = secrets.token_hex(8), 0
    with _opened(folder) as top:
        while names := _names(top):
            for name in names:
                steps += _removed(name, top, f"{mark}-{steps}")
                if steps > most:
                    raise OSError(f"{folder} is not empty after {most:,} removals")


def _removed(name: str, top: int, lifted: str) -> int:
    """Remove an entry, or lift the folders in it; return in how many steps."""
    if _unlinked(name, top):
        return 1
    steps = 1
    with suppress(FileNotFoundError), _opened(name, top) as inner:
        for each in _names(inner):
            steps += 1
            if not _unlinked(each, inner):
                os.rename(each, f"{lifted}-{steps}", src_dir_fd=inner, dst_dir_fd=top)
    with suppress(FileNotFoundError):
        try:
            os.rmdir(name, dir_fd=top)
        except OSError:
            if not _is_filled(name, top):
                raise
    return steps


def _is_filled(name: str, top: int) -> bool:
    """Return True if there is more in it: more than one batch, or somebody goes on writing."""
    with _opened(name, top) as inner:
        return bool(_names(inner))


def _unlinked(name: str, folder: int) -> bool:
    """Remove an entry that is not a folder; return False if it is one."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [each.name for each in islice(entries, BATCH)]


@contextmanager
def _opened(name: Path | str, within: int | None = None) -> Iterator[int]:
    descriptor = os.open(name, _FOLDER, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
