"""Times are written in UTC, in the precision asked for, and read back."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import timestamps

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        pytest.param(
            MOMENT,
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678901Z"),
            id="cuts off what the precision does not show",
        ),
        pytest.param(
            MOMENT.replace(microsecond=0),
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05.000000Z"),
            id="keeps zeros",
        ),
        pytest.param(
            MOMENT.astimezone(timezone(timedelta(hours=-7))),
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678901Z"),
            id="converts to UTC",
        ),
    ],
)
def test_writes_three_precisions(moment: datetime, expected: tuple[str, str, str]) -> None:
    written = timestamps.seconds(moment), timestamps.milliseconds(moment), timestamps.micro_time(moment)
    assert written == expected


@given(st.datetimes(timezones=st.just(UTC)))
def test_micro_time_reads_back_exactly(moment: datetime) -> None:
    assert timestamps.parse(timestamps.micro_time(moment)) == moment


@pytest.mark.parametrize("unset", ["", None])
def test_unset_field_reads_as_none(unset: str | None) -> None:
    assert timestamps.parse_optional(unset) is None


@pytest.mark.parametrize("malformed", ["", "soon", "2026-13-01T00:00:00Z"])
def test_malformed_time_raises(malformed: str) -> None:
    with pytest.raises(ValueError, match=r"Invalid isoformat|month must be"):
        timestamps.parse(malformed)
