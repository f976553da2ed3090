"""Write and read RFC 3339 times. All are written in UTC with a `Z`, in the precision that the function names.

Pure: callers pass the moment in. Kubernetes writes `Time` in seconds and `MicroTime` in microseconds.
"""

from datetime import UTC, datetime, timedelta

from gpu_orchestrator.api.units import BadAmount, span_s

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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


def parse_or_none(text: str) -> datetime | None:
    """Read a time that somebody else wrote; None if it is none, or names no time zone."""
    try:
        found = parse(text)
    except ValueError:
        return None
    return found if found.tzinfo else None


def span_or_moment_ms(text: str, most_span_s: float) -> int:
    """Read a span such as `10m` as a negative number of ms, for callers whose store has the clock, and a time
    as ms since 1970; 0 if empty. Raise ValueError or OverflowError if it is neither."""
    if not text:
        return 0
    try:
        return -max(int(min(span_s(text), most_span_s) * 1000), 1)  # 0 would mean none
    except BadAmount:
        moment = parse(text)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max((aware - EPOCH) // timedelta(milliseconds=1), 1)


def _text(moment: datetime, precision: str) -> str:
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
