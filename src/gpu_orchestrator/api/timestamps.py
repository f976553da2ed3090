"""Write and read RFC 3339 times. All are written in UTC with a `Z`, in the precision that the function names.

Pure: callers pass the moment in. Kubernetes writes `Time` in seconds and `MicroTime` in microseconds.
"""

from datetime import UTC, datetime


def seconds(moment: datetime) -> str:
    """`2026-01-02T03:04:05Z`, the precision of most Kubernetes fields."""
    return _text(moment, "seconds")


def milliseconds(moment: datetime) -> str:
    """`2026-01-02T03:04:05.678Z`, for retries: the shortest backoff is a second, and its jitter a tenth."""
    return _text(moment, "milliseconds")


def micro_time(moment: datetime) -> str:
    """`2026-01-02T03:04:05.678901Z`, the `MicroTime` of Leases and Events."""
    return _text(moment, "microseconds")


def parse(text: str) -> datetime:
    """Read a time of any precision; raise ValueError if it is empty or malformed."""
    return datetime.fromisoformat(text)


def parse_optional(text: str | None) -> datetime | None:
    """Read a field that may be unset; raise ValueError if it is set and malformed."""
    return parse(text) if text else None


def _text(moment: datetime, precision: str) -> str:
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
