"""Logs of every process: a constant sentence with fields, as JSON lines or text on stderr, and as JSON in a
file if one is configured, which is rotated before it grows too large.

The command line calls `configure` once, before anything else runs.
"""

import logging
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

Format = Literal["auto", "json", "text"]
"""`auto` is text on a terminal and JSON elsewhere."""
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class Stream(Protocol):
    def write(self, text: str, /) -> Any: ...

    def flush(self) -> None: ...


class Unbreakable:
    """A stream whose errors are dropped: a full disk or a closed terminal costs lines, not the process."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it was closed
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class LogFile:
    """Writes to `path` and rotates it to `path.1` (the newest) up to `path.<kept>`. A disk error loses whole
    lines, but does not end the process. Nothing is buffered, so a full disk fails no later than here."""

    def __init__(self, path: Path, *, most_bytes: int = 50_000_000, kept: int = 5) -> None:
        self._path, self._most, self._kept = path, most_bytes, kept
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, line: str) -> None:
        data = f"{line}\n".encode(errors="backslashreplace")
        with suppress(OSError, ValueError):  # ValueError: it was closed
            if self._size() + len(data) > self._most:
                self._rotate()
            size = self._size()
            if self._file.write(data) != len(data):
                os.ftruncate(self._file.fileno(), size)

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _rotate(self) -> None:
        with suppress(OSError):
            for number in range(self._kept, 0, -1):
                older = self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))
        fresh = self._path.open("ab" if self._kept else "wb", buffering=0)
        self._file.close()
        self._file = fresh

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def configure(
    verbosity: int = 0,
    *,
    stream: TextIO | None = None,
    style: Format = "auto",
    file: LogFile | None = None,
    only_file: bool = False,
    least: Level = "INFO",
) -> None:
    """Configure all loggers. `verbosity` as in `--v`: 0 logs what happens, 1 and more also why. `least` is
    the level from which on lines are logged if there is no `verbosity`."""
    level = logging.DEBUG if verbosity > 0 else getattr(logging, least)
    shown = stream or sys.stderr
    is_terminal = shown.isatty()
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if file is not None:
        processors.append(_into(file, last=only_file))
    structlog.configure(
        processors=[*processors, *(_TEXT if style == "text" or (style == "auto" and is_terminal) else _JSON)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, Unbreakable(shown))),
        cache_logger_on_first_use=True,
    )


_JSON: tuple[Processor, ...] = (
    # Never log a frame's variables: those of a failed request contain its API key.
    structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    structlog.processors.EventRenamer("message"),
    structlog.processors.JSONRenderer(),
)


def _as_text(_logger: Any, _name: str, event: EventDict) -> str:
    """Return `16:20:01 joined  worker_id=gpu-box epoch=7`: what happened first, a level only if it is worth
    a look, and the time as the clock on the wall shows it."""
    time, level = event.pop("time", ""), event.pop("level", "info")
    message, traceback = event.pop("event", ""), event.pop("exception", "")
    fields = "".join(f" {name}={_shown(value)}" for name, value in event.items())
    line = (
        f"{_local(time)} {'' if level in ORDINARY else f'{level}: '}{message}{f' {fields}' if fields else ''}"
    )
    return f"{line}\n{traceback}" if traceback else line


def _local(time: str) -> str:
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return time


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    is_plain = text.isprintable() and text and not any(letter in " '\"=" for letter in text)
    return text if is_plain or not isinstance(value, str) else repr(text)


ORDINARY = ("info", "debug")
_TEXT: tuple[Processor, ...] = (structlog.processors.format_exc_info, _as_text)


def _into(file: LogFile, *, last: bool) -> Processor:
    def write(logger: Any, name: str, event: EventDict) -> EventDict:
        line: Any = dict(event)
        for processor in _JSON:
            line = processor(logger, name, line)
        file.write(line)
        if last:
            raise structlog.DropEvent
        return event

    return write
