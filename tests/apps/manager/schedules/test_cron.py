"""The moments of schedules: what is written, what is refused, and what happens when the clocks change."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_orchestrator.apps.manager.schedules import cron
from gpu_orchestrator.apps.manager.schedules.cron import BadSchedule, Schedule

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
)
BERLIN_GAP, BERLIN_FOLD = "2026-03-28T12:00", "2026-10-24T12:00"


def ms(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1000


def moments(schedule: Schedule, at_ms: int) -> Iterator[int]:
    while (at := schedule.after(at_ms)) is not None:
        yield at
        at_ms = at


def shown(text: str, after: str, count: int = 3, zone: str = "UTC") -> list[str]:
    found = islice(moments(cron.read(text, zone), ms(after)), count)
    return [cron.local(at, zone).removesuffix("+00:00") for at in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 3 * * *", ["2026-01-02T03:00:00", "2026-01-03T03:00:00"]),
        ("*/20 * * * *", ["2026-01-01T12:20:00", "2026-01-01T12:40:00"]),
        ("5-7,50 12 * * *", ["2026-01-01T12:05:00", "2026-01-01T12:06:00"]),
        ("10/25 * * * *", ["2026-01-01T12:10:00", "2026-01-01T12:35:00"]),
        ("10-50/20 * * * *", ["2026-01-01T12:10:00", "2026-01-01T12:30:00"]),
        ("0 0 1 */6 *", ["2026-07-01T00:00:00", "2027-01-01T00:00:00"]),
        ("0 9 * * mon-FRI", ["2026-01-02T09:00:00", "2026-01-05T09:00:00"]),
        ("0 9 * JUN 7", ["2026-06-07T09:00:00", "2026-06-14T09:00:00"]),
        ("0 0 13 * FRI", ["2026-01-02T00:00:00", "2026-01-09T00:00:00"]),
        ("0 0 1-7 * */7", ["2026-01-04T00:00:00", "2026-02-01T00:00:00"]),
        ("0 0 31 * *", ["2026-01-31T00:00:00", "2026-03-31T00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
        ("0 0 29 2 */7", ["2032-02-29T00:00:00", "2060-02-29T00:00:00"]),
        ("@hourly", ["2026-01-01T13:00:00", "2026-01-01T14:00:00"]),
        ("@daily", ["2026-01-02T00:00:00", "2026-01-03T00:00:00"]),
        ("@weekly", ["2026-01-04T00:00:00", "2026-01-11T00:00:00"]),
        ("@monthly", ["2026-02-01T00:00:00", "2026-03-01T00:00:00"]),
        ("@yearly", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
        ("@every 90s", ["2026-01-01T12:01:30", "2026-01-01T12:03:00"]),
    ],
)
def test_moments_of_an_expression(text: str, expected: list[str]) -> None:
    assert shown(text, "2026-01-01T12:00", 2) == expected


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        pytest.param(
            *("30 2 * * *", "Europe/Berlin", BERLIN_GAP),
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
            id="a time in the gap comes at its end",
        ),
        pytest.param(
            *("0,15,30 2,3 * * *", "Europe/Berlin", BERLIN_GAP),
            ["2026-03-29T03:00:00+02:00", "2026-03-29T03:15:00+02:00"],
            id="several in the gap come once",
        ),
        pytest.param(
            *("*/30 1-3 * * *", "Europe/Berlin", "2026-03-29T00:15"),
            ["2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"],
            id="steps pass the gap",
        ),
        pytest.param(
            *("30 2 * * *", "Europe/Berlin", BERLIN_FOLD),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
            id="a time that comes twice counts the first time",
        ),
        pytest.param(
            *("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15"),  # 02:15 for the second time
            ["2026-10-26T02:30:00+01:00"],
            id="and not the second time",
        ),
        pytest.param(
            *("30 * * * *", "Europe/Berlin", "2026-10-24T23:59"),
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"],
            id="every hour is every hour",
        ),
        pytest.param(
            *("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00"),
            ["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"],
            id="a gap at midnight",
        ),
        pytest.param(
            *("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00"),
            ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
            id="a gap of half an hour",
        ),
        pytest.param(
            *("30 2 * * *", "Pacific/Apia", "2011-12-29T14:00"),
            ["2011-12-31T00:00:00+14:00", "2011-12-31T02:30:00+14:00"],
            id="a day that does not exist",
        ),
        pytest.param(
            *("0 3 * * *", "America/New_York", "2026-06-01T00:00"),
            ["2026-06-01T03:00:00-04:00"],
            id="in local time",
        ),
    ],
)
def test_clocks_that_change(text: str, zone: str, after: str, expected: list[str]) -> None:
    assert shown(text, after, len(expected), zone) == expected


FIELDS = st.tuples(
    st.sampled_from(["0", "30", "*/15", "5,35", "0-40/20", "*"]),
    st.sampled_from(["*", "2", "1-3", "*/6", "0", "23", "0,1,2,3"]),
    st.sampled_from(["*", "1", "28-31", "*/2"]),
    st.sampled_from(["*", "3,10,11", "2"]),
    st.sampled_from(["*", "0", "1-5", "*/2"]),
).map(" ".join)
CHANGES = ("2026-03-28", "2026-10-24", "2018-11-03", "2018-02-17", "2026-10-03", "2026-04-04", "2011-12-29")


@settings(max_examples=12)
@given(FIELDS, st.sampled_from(ZONES), st.sampled_from(CHANGES), st.integers(0, 1440))
def test_forward_and_back_agree_with_a_walk_through_the_minutes(
    text: str, zone: str, day: str, minute: int
) -> None:
    schedule = cron.read(text, zone)
    begins = ms(day) + minute * 60_000
    ends = begins + 2 * 86_400_000
    walked = [at for at in range(begins + 60_000, ends + 1, 60_000) if matches(text, zone, at)]
    found = list(moments_until(schedule, begins, ends))
    assert found == sorted(back_to(schedule, begins, ends))
    if schedule.is_clock:  # type: ignore[attr-defined]
        assert set(found) - set(walked) <= set(ends_of_gaps(zone, begins, ends))
        assert all(is_second_time(at, zone) for at in set(walked) - set(found))
    else:
        assert found == walked


def moments_until(schedule: Schedule, begins: int, ends: int) -> Iterator[int]:
    for at in moments(schedule, begins):
        if at > ends:
            return
        yield at


def back_to(schedule: Schedule, begins: int, ends: int) -> Iterator[int]:
    while (at := schedule.until(ends)) is not None and at > begins:
        yield at
        ends = at - 1


def matches(text: str, zone: str, at: int) -> bool:
    """Ask whether the clock shows a time of the expression, field by field."""
    local = datetime.fromtimestamp(at // 1000, ZoneInfo(zone))
    words = text.split()
    values = (local.minute, local.hour, local.day, local.month, local.isoweekday() % 7)
    fits = [
        has(word, value, first) for word, value, first in zip(words, values, (0, 0, 1, 1, 0), strict=True)
    ]
    either = words[2][0] != "*" and words[4][0] != "*"
    days = fits[2] or fits[4] if either else fits[2] and fits[4]
    return fits[0] and fits[1] and fits[3] and days


def has(word: str, value: int, first: int) -> bool:
    for part in word.split(","):
        span, _, step = part.partition("/")
        low, _, high = (f"{first}-99" if span == "*" else span).partition("-")
        if int(low) <= value <= int(high or low) and (value - int(low)) % int(step or 1) == 0:
            return True
    return False


def is_second_time(at: int, zone: str) -> bool:
    return datetime.fromtimestamp(at // 1000, ZoneInfo(zone)).fold == 1


def ends_of_gaps(zone: str, begins: int, ends: int) -> Iterator[int]:
    def offset(at: int) -> timedelta:
        return datetime.fromtimestamp(at // 1000, ZoneInfo(zone)).utcoffset() or timedelta()

    for at in range(begins, ends + 1, 60_000):
        if offset(at) > offset(at - 60_000):
            yield at


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("* * * *", "has 4 fields; write five"),
        ("", "has 0 fields"),
        ("@reboot", "has 1 fields"),
        ("60 * * * *", "'60' is no minute; write 0 to 59"),
        ("* 24 * * *", "no hour"),
        ("* * 0 * *", "no day of the month"),
        ("* * * 13 *", "no month; write 1 to 12 or JAN to DEC"),
        ("* * * * 8", "no day of the week"),
        ("*/0 * * * *", "no minute"),
        ("*/99 * * * *", "no minute"),
        ("5-1 * * * *", "no minute"),
        ("1,, * * * *", "no minute"),
        ("٣ * * * *", "no minute"),
        ("0 0 * * MON#2", "no day of the week"),
        ("0 0 L * *", "no day of the month"),
        ("0 0 30 2 *", "a day that no year has"),
        ("@every 0s", "from 1s to 366d"),
        ("@every 1.5s", "whole seconds"),
        ("@every", "has 1 fields"),
        ("@every tomorrow", "is not a span of time"),
    ],
)
def test_bad_expressions_are_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(BadSchedule, match=said.replace("(", ".")):
        cron.read(text)


def test_utc_needs_no_database_of_time_zones() -> None:
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    cron.read.cache_clear()
    try:
        assert shown("0 3 * * *", "2026-01-01T12:00", 1) == ["2026-01-02T03:00:00"]
        with pytest.raises(BadSchedule, match="needs tzdata on the server"):
            cron.read("@daily", "Europe/Vaduz")
    finally:
        zoneinfo.reset_tzpath()


def test_day_of_a_frequent_schedule_is_computed_once() -> None:
    cron._moments.cache_clear()
    frequent = cron.read("* * * * *", "Europe/Berlin")
    at = ms("2026-10-25T06:00")
    for _ in range(500):
        at = frequent.until(at - 1) or 0
    assert cron._moments.cache_info().misses <= 5


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "", "/etc/localtime", "Europe"])
def test_unknown_time_zones_are_refused(zone: str) -> None:
    with pytest.raises(BadSchedule, match="knows no time zone"):
        cron.read("@daily", zone)
