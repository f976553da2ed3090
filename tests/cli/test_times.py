"""Times and durations as the commands show them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpu_orchestrator.cli import times

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)
BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0s"),
        (0.44, "0.4s"),
        (9.95, "9.9s"),
        (42.4, "42s"),
        (59.6, "1m"),
        (1052.9, "17m 33s"),
        (3600, "1h"),
        (3661, "1h 1m"),
        (86_399, "23h 59m"),
        (604_800, "7d"),
        (604_800 + 7200, "7d 2h"),
        (-3, "0s"),
    ],
)
def test_duration_has_two_units_at_most(seconds: float, shown: str) -> None:
    assert times.duration(seconds) == shown


@pytest.mark.parametrize(
    ("passed_s", "age", "ago"),
    [
        (0.4, "0s", "0s ago"),
        (185, "3m", "3m ago"),
        (7300, "2h", "2h ago"),
        (5 * 86_400, "5d", "5d ago"),
        (-3 * 86_400, "0s", "in 3d"),
        (-3 * 86_400 + 2, "0s", "in 3d"),
        (-2 * 86_400 - 80_000, "0s", "in 2d"),
    ],
)
def test_age_has_one_unit(passed_s: float, age: str, ago: str) -> None:
    moment = NOW - timedelta(seconds=passed_s)
    assert (times.age(moment, NOW), times.ago(moment, NOW)) == (age, ago)


@pytest.mark.parametrize(
    ("text", "utc", "local"),
    [
        pytest.param("2026-11-16T08:05:30.046Z", "08:05:30", "09:05:30", id="today"),
        pytest.param("2026-11-15T23:30:00Z", "11-15 23:30:00", "00:30:00", id="yesterday, but today there"),
        pytest.param("2025-11-16T08:05:30Z", "2025-11-16 08:05:30", "2025-11-16 09:05:30", id="last year"),
        pytest.param(None, "", "", id="missing"),
        pytest.param("soon", "", "", id="not a time"),
    ],
)
def test_clock_shows_the_date_only_where_it_is_another(text: str | None, utc: str, local: str) -> None:
    moment = times.parse(text)
    assert (times.clock(moment, NOW, UTC), times.clock(moment, NOW, BERLIN)) == (utc, local)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("1.5m", 90), ("12h", 43_200), ("90d", 7_776_000)]
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert times.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "30 m", "-1h", "1y", "½h"])
def test_other_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write for example 30m, 12h or 90d"):
        times.seconds(text)
