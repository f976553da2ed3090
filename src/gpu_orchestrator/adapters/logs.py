"""Logs of every process: a constant sentence with fields, as JSON lines or text on stderr, and as JSON in a
file if one is configured, which is rotated before it grows too large.

The command line calls `configure` once, before anything else runs.
"""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TextIO

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

Format = Literal["json", "text"]


class LogFile:
    """Writes to `path` and rotates it to `path.1` (the newest) up to `path.<kept>`. A disk error loses lines,
    but does not end the process."""

    def __init__(self, path: Path, *, most_bytes: int = 50_000_000, kept: int = 5) -> None:
        self._path, self._most, self._kept = path, most_bytes, kept
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it was closed
            if self._file.tell() + len(line) > self._most:
                self._rotate()
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        with suppress(OSError):
            for number in range(self._kept, 0, -1):
                older = self._numbered(number - 1)
                if older.exists():
                    older.replace(self._numbered(number))
        fresh = self._path.open("a" if self._kept else "w")
        self._file.close()
        self._file = fresh

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def configure(
    verbosity: int = 0,
    *,
    stream: TextIO | None = None,
    style: Format = "json",
    file: LogFile | None = None,
    only_file: bool = False,
) -> None:
    """Configure all loggers. `verbosity` as in `--v`: 0 logs what happens, 1 and more also why."""
    level = logging.DEBUG if verbosity > 0 else logging.INFO
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    if file is not None:
        processors.append(_into(file, last=only_file))
    structlog.configure(
        processors=[*processors, *_JSON] if style == "json" else [*processors, _text()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=True,
    )


_JSON: tuple[Processor, ...] = (
    # Never log a frame's variables: those of a failed request contain its API key.
    structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    structlog.processors.EventRenamer("message"),
    structlog.processors.JSONRenderer(),
)


def _text() -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=False, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
    )


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
