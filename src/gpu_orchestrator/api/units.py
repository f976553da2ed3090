"""Amounts as people write them: `"24GB"`, `"3.2s"`, `"10m"`. Memory is in binary units, as GPU vendors use
them."""

import re
from functools import lru_cache

from gpu_orchestrator.core.limits import MOST_NUMBER

MIB = 1024 * 1024
"""Bytes in a MiB."""

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_MIB_PER = {"": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_MEMORY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b|i)?\s*", re.IGNORECASE)
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_SECONDS_PER = {"s": 1, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}


class BadAmount(ValueError):
    """The text is not an amount."""


def memory_mib(amount: str | int | float) -> int:
    """Parse `"24GB"`, `"24Gi"`, `"800 MiB"`, `"1048576B"`. Rounded up, because too little would not do. A
    number without a unit is refused, unless it is 0: its sender may mean GB, and would get bytes."""
    found = _MEMORY.fullmatch(str(amount))
    if not found:
        raise BadAmount(
            f"{amount!r} is not an amount of memory; write a number and a unit, such as 24GB or 800MiB"
        )
    number, unit, suffix = float(found[1]), found[2].lower(), found[3]
    if number and not unit and not suffix:
        raise BadAmount(
            f"{amount!r} has no unit; write {found[1]}GB or {found[1]}MiB, or {found[1]}B for bytes"
        )
    mib = number * _MIB_PER[unit]
    if mib > MOST_NUMBER:
        raise BadAmount(f"{amount!r} is more memory than can be counted; at most {MOST_NUMBER} MiB")
    return -int(-mib // 1)


@lru_cache(maxsize=1024)
def show_memory(mib: float) -> str:
    """`24GB`, `1.5GB`, `512MB`. Cached, because thousands of devices have the same sizes."""
    if mib >= 1024:
        return f"{round(mib / 1024, 1):g}GB"
    return f"{round(mib):g}MB"


def span_s(text: str) -> float:
    """Parse a span of time: `"90s"`, `"10m"`, `"2h"`, `"7d"`."""
    found = _SPAN.fullmatch(text)
    if not found:
        raise BadAmount(
            f"{text!r} is not a span of time; write a number and a unit, such as 30s, 10m, 2h or 7d"
        )
    return float(found[1]) * _SECONDS_PER[found[2]]


def show_seconds(seconds: float) -> str:
    """`3.2s`, `17m 33s`, `2h 5m`, `7 days`, `1 day 4h`."""
    if round(seconds, 1) < MINUTE_S:
        return f"{round(seconds, 1):g}s"
    whole = round(seconds)
    if whole < HOUR_S:
        return _two(whole, MINUTE_S, "m", 1, "s")
    if whole < DAY_S:
        return _two(whole, HOUR_S, "h", MINUTE_S, "m")
    return _two(whole, DAY_S, " day" if whole < 2 * DAY_S else " days", HOUR_S, "h")


def _two(whole: int, large_s: int, large: str, small_s: int, small: str) -> str:
    """Return the span in its two largest units, without the second if it is 0."""
    count, rest = divmod(whole, large_s)
    return f"{count}{large} {rest // small_s}{small}" if rest // small_s else f"{count}{large}"
