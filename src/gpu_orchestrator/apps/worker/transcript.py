"""What one attempt prints, as lines for its log and as progress. Pure: text in, pieces out.

A log has whole lines, as a terminal shows them: of a line with carriage returns, such as a progress bar, only
what follows the last one is kept. Positions count the bytes of that text (UTF-8) since the attempt began.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST_PARTIAL = 16 << 10
"""A longer line is passed on in parts, so that text without any newline does not grow."""
LONGEST_PROGRESS = 4096
SENT_KEPT = 64 << 10
FAR = 4096
"""How far to look for the next newline when text is cut; beyond that, cut between two characters."""
BURST, BYTES_PER_S = 256 << 10, 64 << 10


def visible(line: str) -> str:
    """Return what a terminal shows of a line: what follows its last carriage return."""
    return line.rstrip("\r").rpartition("\r")[2]


class Lines:
    """Cuts text into lines, wherever the writer split it."""

    def __init__(self) -> None:
        self._partial = ""
        self._last = ""

    def feed(self, text: str) -> str:
        """Return the lines that are complete now, each with its newline."""
        done, newline, rest = text.rpartition("\n")
        whole = ""
        if newline:
            whole, self._partial = _shown(f"{self._partial}{done}\n"), ""
            self._last = whole.rstrip().rpartition("\n")[2] or self._last
        self._partial = _unfinished(self._partial + rest)
        if len(self._partial) > LONGEST_PARTIAL:
            self._last = visible(self._partial)
            whole, self._partial = whole + self._last, ""
        return whole

    def end(self) -> str:
        """Return the last line, if it has no newline yet, and forget it."""
        rest, self._partial = visible(self._partial), ""
        return f"{rest}\n" if rest else ""

    @property
    def newest(self) -> str:
        """Return the newest line that is not blank, whether it is complete or not."""
        return visible(self._partial).strip() or self._last


def _shown(lines: str) -> str:
    if "\r" not in lines:
        return lines
    return "".join([f"{visible(line)}\n" for line in lines.split("\n")[:-1]])


def _unfinished(line: str) -> str:
    """Return what is still needed of a line that may go on: the text on screen, and whether the next text
    overwrites it."""
    if "\r" not in line:
        return line
    return visible(line) + ("\r" if line.endswith("\r") else "")


class Piece(NamedTuple):
    """A part of a log; `at` is the position of its first byte."""

    at: int
    text: str


@dataclass(slots=True)
class Pace:
    """How many bytes may be sent now: BURST at once, and BYTES_PER_S on average."""

    _allowed: float = BURST
    _at: float = 0.0

    def allows(self, now: float) -> int:
        self._allowed = min(BURST, self._allowed + (now - self._at) * BYTES_PER_S)
        self._at = now
        return int(self._allowed)

    def spend(self, count: int) -> None:
        self._allowed -= count


@dataclass(slots=True)
class Transcript:
    """The log of one attempt as far as it was not sent, and at the end of it what was sent last.

    It keeps the newest bytes and drops the oldest. A reader notices what was dropped, because positions go
    on: the next piece does not begin where the last one ended.
    """

    pace: Pace = field(default_factory=Pace)
    _sources: dict[str, Lines] = field(default_factory=dict)
    _unsent: deque[bytes] = field(default_factory=deque)
    _size: int = 0
    _at: int = 0
    _sent: deque[bytes] = field(default_factory=deque)
    _sent_size: int = 0
    _newest: str = ""
    _reported: str = ""

    def write(self, text: str, most_bytes: int, source: str = "") -> None:
        """Add text; keep at most `most_bytes` unsent. Lines of different sources do not mix."""
        lines = self._sources.get(source)
        if lines is None:
            lines = self._sources[source] = Lines()
        self._add(lines.feed(text), most_bytes)
        self._newest = lines.newest or self._newest

    def end(self, most_bytes: int) -> None:
        """Add the lines that have no newline: no more text comes."""
        for lines in self._sources.values():
            self._add(lines.end(), most_bytes)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def progress(self) -> str:
        """Return the newest line if it has changed since the last call, else ""."""
        newest = self._newest[:LONGEST_PROGRESS]
        if newest == self._reported:
            return ""
        self._reported = newest
        return newest

    def take(self, most_bytes: int) -> Piece | None:
        """Return the next piece to send, whole lines if possible; None if there is none."""
        parts: list[bytes] = []
        left = most_bytes
        while self._unsent and left > 0:
            chunk = self._unsent.popleft()
            if len(chunk) > left:
                cut = _last_cut(chunk, left, must_cut=not parts)
                self._unsent.appendleft(chunk[cut:])
                chunk, left = chunk[:cut], 0
            parts.append(chunk)
            left -= len(chunk)
        return self._taken(b"".join(parts)) if parts else None

    def rewind(self) -> None:
        """Take back what was sent last, up to SENT_KEPT bytes: it may have been lost on the way. The store
        knows from the position what it has already."""
        self._unsent.extendleft(reversed(self._sent))
        self._size += self._sent_size
        self._at -= self._sent_size
        self._sent.clear()
        self._sent_size = 0

    def _add(self, text: str, most_bytes: int) -> None:
        if text:
            data = text.encode(errors="replace")
            self._unsent.append(data)
            self._size += len(data)
            while self._size > most_bytes:
                self._drop(self._size - most_bytes)

    def _drop(self, count: int) -> None:
        chunk = self._unsent.popleft()
        cut = len(chunk) if len(chunk) <= count else _next_cut(chunk, count, is_last=not self._unsent)
        if cut < len(chunk):
            self._unsent.appendleft(chunk[cut:])
        self._size -= cut
        self._at += cut
        self._sent.clear()  # what was sent no longer ends where the unsent text begins
        self._sent_size = 0

    def _taken(self, data: bytes) -> Piece:
        piece = Piece(self._at, data.decode())
        self._size -= len(data)
        self._at += len(data)
        self._sent.append(data)
        self._sent_size += len(data)
        while self._sent_size > SENT_KEPT and len(self._sent) > 1:
            self._sent_size -= len(self._sent.popleft())
        return piece


def _next_cut(data: bytes, at: int, *, is_last: bool = False) -> int:
    """Return the first position from `at` on where a line begins, or a character if no line begins near. Of
    the last text leave at least half."""
    newline = data.find(b"\n", at - 1, at + min(FAR, (len(data) - at) // 2) if is_last else at + FAR)
    if newline >= 0:
        return newline + 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _last_cut(data: bytes, at: int, *, must_cut: bool) -> int:
    """Return the last position up to `at` where a line begins, or a character if none does. With `must_cut`
    it is never 0, so that sending makes progress."""
    if newline := data.rfind(b"\n", 0, at) + 1:
        return newline
    if not must_cut:
        return 0
    cut = at
    while cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut or _next_cut(data, at)
