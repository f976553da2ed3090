"""Logs of tasks in the store: what their attempts printed, in order, with positions that never go back.

A position counts the bytes since the log began, also those that were dropped: by the worker, or here to stay
within a bound. So a reader that asks for more from a position gets no byte twice and knows what it missed.
"""

from collections.abc import Sequence

import msgspec

from gpu_orchestrator.adapters.store.records import Item
from gpu_orchestrator.adapters.store.valkey.fenced import FencedDatabase
from gpu_orchestrator.adapters.store.valkey.scripts import Script

TRIM_AT_ONCE = 1000
ALL = ""


class LogPiece(Item, frozen=True):
    """What an attempt printed next; `at` is the position of the text in what this attempt printed."""

    id: str
    attempt: int
    worker: str
    epoch: int
    at: int
    text: str


class LogEntry(Item, frozen=True):
    """`end` is the position in the log after the text."""

    end: int
    text: str


class LogPart(Item, frozen=True):
    """A part of a log, and its task at the same moment; `state` is empty if there is no such task. `end` is
    where the log ends."""

    state: str
    owner: str
    attempt: int
    end: int
    entries: tuple[LogEntry, ...]


class LogText(msgspec.Struct, frozen=True):
    """Text of a log from the position `offset` to `next`. Before it, `omitted` bytes are missing."""

    offset: int
    next: int
    omitted: int
    text: str


_APPEND = Script[tuple[int, ...]]("log_append", tuple[int, ...])
_READ = Script[LogPart]("log_read", LogPart)
_TRIM = Script[tuple[int, int]]("log_trim", tuple[int, int])


class Logs:
    def __init__(self, fenced: FencedDatabase, *, most_bytes: int, keep_ms: int) -> None:
        self._fenced, self.most_bytes, self._keep_ms = fenced, most_bytes, keep_ms

    async def append(self, pieces: Sequence[LogPiece], most_of_all: int) -> tuple[int, ...]:
        """Store pieces; return 1 for each whose worker holds the attempt, else 0. A piece that is stored
        again counts once."""
        return await self._fenced.read(_APPEND, self.most_bytes, most_of_all, pieces)

    async def read(self, name: str, after: int, most_bytes: int) -> LogPart:
        return await self._fenced.read(_READ, name, after, most_bytes)

    async def trim(self, most_of_all: int, skip: int = 0) -> int:
        """Forget expired logs and those beyond the bound. Return how many to skip at the next call; 0 if all
        were looked at."""
        looked_at, forgotten = await self._fenced.read(_TRIM, most_of_all, self._keep_ms, skip, TRIM_AT_ONCE)
        return 0 if looked_at < TRIM_AT_ONCE else skip + looked_at - forgotten

    async def size(self) -> int:
        """Return how many bytes all logs have."""
        return int(await self._fenced.database.get_field("logs:sizes", ALL) or 0)


def text_of(part: LogPart, after: int, most_bytes: int) -> LogText:
    """Return at most `most_bytes` (4 or more) of a part after a position, as one text. A line in it stands
    for bytes that are missing in the middle; those before it are counted in `omitted`: all, if the log was
    dropped."""
    at = offset = min(after, part.end) if part.entries else part.end
    texts: list[str] = []
    left = most_bytes
    for entry in part.entries:
        data = entry.text.encode()
        begins = entry.end - len(data)
        if not texts:
            offset = max(begins, at)
        elif begins > at:
            texts.append(missing(begins - at, is_new_line=texts[-1].endswith("\n")))
        data = _first(data[max(at - begins, 0) :], left)
        at = max(begins, at) + len(data)
        left -= len(data)
        texts.append(data.decode(errors="replace"))
        if left <= 0 or at < entry.end:
            break
    return LogText(offset, at, max(offset - after, 0), "".join(texts))


def missing(count: int, *, is_new_line: bool = True) -> str:
    """Return a line in place of bytes that are no longer kept."""
    return f"{'' if is_new_line else chr(10)}[{count:,} bytes are not kept]\n"


def _first(data: bytes, most: int) -> bytes:
    """Return the first bytes, up to a whole character."""
    cut = most
    while 0 < cut < len(data) and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return data[:cut]
