"""Logs of every process: one JSON object a line on stderr, a constant sentence with fields.

Called once, by the command line, before anything else runs.
"""

import logging
import sys
from typing import TextIO

import structlog


def configure(verbosity: int = 0, *, stream: TextIO | None = None) -> None:
    """`verbosity` as in `--v`: 0 tells what happens, 1 and more also why."""
    level = logging.DEBUG if verbosity > 0 else logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.dict_tracebacks,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=True,
    )
