"""Files of the kernel that have one fact each. A driver in trouble leaves anything in them: what is not text,
or not a number that fits into 64 bits, is not there."""

from contextlib import suppress
from pathlib import Path

_LEAST, _MOST = -(2**63), 2**64 - 1


def text(path: Path) -> str:
    """Return what is in a file; nothing if it cannot be read or is not UTF-8."""
    with suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""


def number(path: Path) -> int | None:
    """Return the number in a file, None if there is none."""
    with suppress(OSError, ValueError):
        return read_number(path)
    return None


def read_number(path: Path) -> int:
    """Return the number in a file; raise OSError or ValueError, with the reason, if there is none."""
    return to_number(path.read_text())


def to_number(written: str) -> int:
    found = int(written)
    if not _LEAST <= found <= _MOST:
        raise ValueError(f"a number of {found.bit_length()} bits, where 64 are the most")
    return found
