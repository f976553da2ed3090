"""Rate limits as they are written in settings: `300/m,5000/h`, or `none`."""

import re
from dataclasses import dataclass

MINUTE_S, HOUR_S = 60.0, 3600.0
ROUTE = re.compile(r"\s*([A-Z]+) (/[^\s=]*)=(none|\d+/[mh](?:,\d+/[mh])?)\s*(?:;|$)")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `most` in any `seconds`."""

    most: int
    seconds: float


def rates(per_minute: int, per_hour: int) -> tuple[Rate, ...]:
    """Return the rates; 0 means no limit."""
    return tuple(Rate(most, s) for most, s in ((per_minute, MINUTE_S), (per_hour, HOUR_S)) if most)


def by_route(text: str) -> dict[str, tuple[Rate, ...]]:
    """Parse `POST /tasks=300/m,5000/h; GET /tasks/{task_id}=none` into rates by method and path; raise
    ValueError."""
    found, at = {}, 0
    while at < len(text.rstrip()):
        if (match := ROUTE.match(text, at)) is None:
            raise ValueError(f"cannot read {text[at:].strip()!r}")
        method, path, said = match.groups()
        found[f"{method} {path}"] = tuple(_rate(each) for each in said.split(",") if each != "none")
        at = match.end()
    return found


def _rate(text: str) -> Rate:
    most, _, unit = text.partition("/")
    if not int(most):
        raise ValueError(f"{text} would allow no request at all; write none for no limit")
    return Rate(int(most), MINUTE_S if unit == "m" else HOUR_S)
