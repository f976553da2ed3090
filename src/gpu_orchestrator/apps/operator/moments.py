"""Moments as the API server writes them, and back."""

from datetime import UTC, datetime


def text(moment: datetime) -> str:
    """With fractions of a second: the shortest backoff is one second, and jitter is a tenth of it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read(written: str | None) -> datetime | None:
    return datetime.fromisoformat(written) if written else None
