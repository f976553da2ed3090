"""The moments of a schedule: five cron fields in a time zone, or `@every 30s`. Pure.

Moments are found day by day, so that going forward and going back find the same ones. When the clocks change,
an expression that names hours and minutes runs once: a time that is skipped at the end of the gap, a time
that comes twice the first time. One whose minutes or hours begin with `*` runs as time passes: never in the
gap, and both times.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpu_orchestrator.api.units import BadAmount, span_s

LONGEST_DAYS = 41 * 366
"""Between two 29ths of February that are Sundays there may be forty years."""
DAYS_KEPT = 64
"""Moments of so many days are remembered: a schedule of every minute is asked for the same day often."""
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY = "@every "
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MOST_S = 366 * 86_400
Step = Literal[1, -1]


class BadSchedule(ValueError):
    """The text cannot be read as a schedule; the message says what is wrong with it."""


class Schedule(Protocol):
    """Moments in ms since 1970."""

    def after(self, at_ms: int) -> int | None:
        """Return the first moment later than this one; None if there is none."""

    def until(self, at_ms: int) -> int | None:
        """Return the last moment that is not later than this one."""


@lru_cache(maxsize=1024)
def read(text: str, zone: str = "UTC") -> Schedule:
    """Read a schedule, or raise `BadSchedule`."""
    place = _zone(zone)
    if text.startswith(EVERY):
        return _every(text)
    words = MACROS.get(text.lower(), text).upper().split()
    if len(words) != len(_FIELDS):
        known = ", ".join([*MACROS, "@every 30s"])
        raise BadSchedule(
            f"{text!r} has {len(words)} fields; write five (minute, hour, day of month, month, day of week), "
            f"such as '0 3 * * *', or one of {known}"
        )
    minutes, hours, days, months, weekdays = (
        field.read(word) for field, word in zip(_FIELDS, words, strict=True)
    )
    found = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        both_days=words[2].startswith("*") or words[4].startswith("*"),
        is_clock=not words[0].startswith("*") and not words[1].startswith("*"),
        zone=place,
    )
    if found.after(0) is None:
        raise BadSchedule(f"{text!r} names a day that no year has")
    return found


@dataclass(frozen=True, slots=True)
class Every:
    """Each whole multiple of a span since 1970, so that no beginning needs to be remembered."""

    ms: int

    def after(self, at_ms: int) -> int | None:
        return (at_ms // self.ms + 1) * self.ms

    def until(self, at_ms: int) -> int | None:
        return at_ms // self.ms * self.ms


@dataclass(frozen=True, slots=True)
class Cron:
    """`both_days`: day of month and day of week must both match, because one of them begins with `*`;
    else one of them is enough. `is_clock`: it names hours and minutes."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both_days: bool
    is_clock: bool
    zone: tzinfo

    def after(self, at_ms: int) -> int | None:
        for day in self._days(at_ms, 1):
            moments = _moments(self, day)
            if (at := bisect_right(moments, at_ms)) < len(moments):
                return moments[at]
        return None

    def until(self, at_ms: int) -> int | None:
        for day in self._days(at_ms, -1):
            moments = _moments(self, day)
            if at := bisect_right(moments, at_ms):
                return moments[at - 1]
        return None

    def _days(self, at_ms: int, step: Step) -> Iterator[date]:
        """Yield the days that match, from the other side of this moment: a skipped day ends on the next."""
        first = day = datetime.fromtimestamp(at_ms // 1000, self.zone).date() - timedelta(days=step)
        while abs((day - first).days) < LONGEST_DAYS:
            if day.month in self.months:
                if self._matches(day):
                    yield day
                day += timedelta(days=step)
            else:
                day = _next_month(day) if step > 0 else day.replace(day=1) - timedelta(days=1)

    def _matches(self, day: date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month and of_week if self.both_days else of_month or of_week


@lru_cache(maxsize=DAYS_KEPT)
def _moments(of: Cron, day: date) -> list[int]:
    """Return the moments of one day, in order. On most days the clocks do not change."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=of.zone)
    if midnight.utcoffset() == (midnight + timedelta(days=1)).utcoffset():
        begins = _ms(midnight)
        return [begins + (hour * 60 + minute) * 60_000 for hour in of.hours for minute in of.minutes]
    times = [midnight.replace(hour=hour, minute=minute) for hour in of.hours for minute in of.minutes]
    found = {_ms(at) for at in times if _exists(at)}
    if of.is_clock:
        return sorted(found | {_end_of_gap(at) for at in times if not _exists(at)})
    return sorted(found | {_ms(at.replace(fold=1)) for at in times if _exists(at)})


def _next_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)


def local(at_ms: int, zone: str) -> str:
    """Return a moment as the clocks of a zone show it: `2026-03-29T03:00:00+02:00`."""
    return datetime.fromtimestamp(at_ms // 1000, _zone(zone)).isoformat()


def _ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000


def _exists(at: datetime) -> bool:
    """Return False for a time that the clocks skip."""
    return at.astimezone(UTC).astimezone(at.tzinfo).replace(fold=0) == at


def _end_of_gap(at: datetime) -> int:
    while not _exists(at):
        at += timedelta(minutes=1)
    return _ms(at)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    first_name: int = 0

    def read(self, text: str) -> set[int]:
        """Read `*`, `*/15`, `1-5`, `1-5/2`, `30/10`, `MON`, and several of these with commas between."""
        return {value for part in text.split(",") for value in self._part(part)}

    def _part(self, text: str) -> range:
        span, has_step, step_text = text.partition("/")
        step = self._number(step_text, text) if has_step else 1
        if not 0 < step <= self.last:
            raise self._bad(text)
        if span == "*":
            return range(self.first, self.last + 1, step)
        begins, is_range, ends = span.partition("-")
        first = self._value(begins, text)
        last = self._value(ends, text) if is_range else self.last if has_step else first
        if last < first:
            raise self._bad(text)
        return range(first, last + 1, step)

    def _value(self, word: str, text: str) -> int:
        if word in self.names:
            return self.names.index(word) + self.first_name
        value = self._number(word, text)
        if not self.first <= value <= self.last:
            raise self._bad(text)
        return value

    def _number(self, word: str, text: str) -> int:
        if not (word.isascii() and word.isdigit() and len(word) <= 2):
            raise self._bad(text)
        return int(word)

    def _bad(self, text: str) -> BadSchedule:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return BadSchedule(
            f"{text!r} is no {self.name}; write {self.first} to {self.last}{names}, *, a range such as "
            f"{self.first}-{self.first + 2}, a step such as */2, or several with commas between"
        )


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, MONTHS, 1),
    _Field("day of the week", 0, 7, DAYS),
)


def _every(text: str) -> Every:
    try:
        seconds = span_s(text.removeprefix(EVERY).strip())
    except BadAmount as error:
        raise BadSchedule(f"{text!r}: {error}") from error
    if not 1 <= seconds <= MOST_S or seconds != int(seconds):
        raise BadSchedule(f"{text!r}: give whole seconds, from 1s to 366d")
    return Every(int(seconds) * 1000)


def _zone(name: str) -> tzinfo:
    """Return a time zone. UTC needs no database of the system."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadSchedule(
            f"the server knows no time zone {name!r}; write UTC, or a name such as Europe/Berlin "
            "(which needs tzdata on the server)"
        ) from error
