"""What the commands write: stdout and stderr that survive a closed pipe and any locale, tables or JSON, and
errors as one line."""

import codecs
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from gpu_orchestrator.cli.plain import lines
from gpu_orchestrator.cli.tables import Column, Page, card, table

PROGRAM = "gpu-orchestrator"
REPLACED = {
    "×": "x",
    "…": "...",
    "–": "-",
    "—": "-",
    "°": " ",
    "µ": "u",
    "→": "->",
    "“": '"',
    "”": '"',
    "’": "'",
}
"""What we write ourselves, for a terminal that knows ASCII only."""


class Stream(io.TextIOWrapper):
    """A standard stream. When its reader is gone, as with `| head -1`, the rest is dropped without an error,
    so the command keeps its exit code."""

    is_broken = False

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            return self._drop() or len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> int:
        self.is_broken = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return 0


def prepare() -> None:
    """Replace the standard streams of this process; one that is closed is sent nowhere."""
    codecs.register_error(PROGRAM, _readable)
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)


def _stream(given: TextIO | None, number: int) -> TextIO:
    if given is None:  # started with `>&-`
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(given, io.TextIOWrapper) or isinstance(given, Stream):
        return given  # a test has replaced it already
    given.flush()
    encoding, buffered = given.encoding, not (number == 2 or os.isatty(number))
    return Stream(given.detach(), encoding=encoding, errors=PROGRAM, line_buffering=not buffered)


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(REPLACED.get(each, "?") for each in found), error.end


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def page(stream: TextIO | None = None) -> Page:
    """Return how wide and how colourful the output may be."""
    stream = stream or sys.stdout
    if not is_terminal(stream):
        return Page()
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Page(size(stream)[0], colour)


def size(stream: TextIO | None = None) -> tuple[int, int]:
    """Return columns and lines of the terminal; COLUMNS and LINES win, as for other programs."""
    try:
        found = os.get_terminal_size((stream or sys.stdout).fileno())
    except (OSError, ValueError):
        found = os.terminal_size((80, 24))
    columns, lines = os.environ.get("COLUMNS", ""), os.environ.get("LINES", "")
    return (
        int(columns) if columns.isdecimal() and int(columns) else found.columns or 80,
        int(lines) if lines.isdecimal() and int(lines) else found.lines or 24,
    )


def is_gone() -> bool:
    """Return True if nobody reads our output any more: a command that follows something may end."""
    return isinstance(sys.stdout, Stream) and sys.stdout.is_broken


def say(*words: str) -> None:
    """Print lines at once."""
    for each in words:
        print(each)
    sys.stdout.flush()


def note(words: str) -> None:
    """Tell the user something that is not the answer."""
    print(lines(words), file=sys.stderr, flush=True)


def show_json(answer: Any) -> None:
    say(json.dumps(answer, indent=2))


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    say(*table(columns, rows, page()))


def show_card(pairs: Sequence[tuple[str, object]]) -> None:
    say(*card(pairs, page()))


def fail(message: object, code: int = 1) -> NoReturn:
    """End the command with one line that says what is wrong."""
    note(f"{PROGRAM}: {message}")
    sys.exit(code)
