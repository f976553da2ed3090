"""Times and durations as people read them: `3m ago`, `08:05:30`, `17m 33s`. Pure: callers pass `now` in."""

import re
from datetime import UTC, datetime, tzinfo

SLACK_S = 30
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse(text: object) -> datetime | None:
    """Read a time of the server; None for a missing or malformed one."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def seconds(text: str) -> float:
    """Read `30m`, `12h` or `90d`; raise ValueError for anything else."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"{text} is not a duration; write for example 30m, 12h or 90d")
    return float(found[1]) * UNITS[found[2]]


def duration(seconds: float) -> str:
    """`0.4s`, `42s`, `17m 33s`, `3h 5m`, `7d 2h`: two units at most, and none that is zero at the end."""
    if seconds < 10:
        return f"{round(max(seconds, 0.0), 1):g}s"
    left = round(seconds)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS[unit])
        if parts:
            return " ".join([*parts, *([f"{count}{unit}"] if count else [])])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def age(moment: datetime | None, now: datetime) -> str:
    """How long ago in one unit, for a narrow column: `3m`, `2h`, `5d`."""
    if moment is None:
        return ""
    return _one_unit(max((now - moment).total_seconds(), 0.0))


def ago(moment: datetime | None, now: datetime) -> str:
    """`3m ago`, or `in 3d` for a time to come."""
    if moment is None:
        return ""
    passed_s = (now - moment).total_seconds()
    # A moment after `--expires 90d` it is still `in 90d`.
    return f"in {_one_unit(-passed_s + SLACK_S)}" if passed_s < 0 else f"{_one_unit(passed_s)} ago"


def clock(moment: datetime | None, now: datetime, zone: tzinfo | None = None) -> str:
    """The time of day, with the date if it is not of today, in this zone or else the machine's."""
    if moment is None:
        return ""
    local, today = moment.astimezone(zone), now.astimezone(zone)
    if local.date() == today.date():
        return f"{local:%H:%M:%S}"
    return f"{local:%m-%d %H:%M:%S}" if local.year == today.year else f"{local:%Y-%m-%d %H:%M:%S}"


def _one_unit(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= UNITS[unit]:
            return f"{int(seconds // UNITS[unit])}{unit}"
    return f"{int(seconds)}s"
